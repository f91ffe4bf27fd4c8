"""Algorithms whose learners take a block of local steps between two averages."""

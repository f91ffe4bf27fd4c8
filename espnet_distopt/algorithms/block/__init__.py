"""Algorithms whose learners take blocks of local steps between two averages."""

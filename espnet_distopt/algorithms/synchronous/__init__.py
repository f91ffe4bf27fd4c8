"""Algorithms whose learners communicate in every step."""

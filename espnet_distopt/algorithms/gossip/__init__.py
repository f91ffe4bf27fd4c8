"""Algorithms whose learners average in pairs, beside the training."""

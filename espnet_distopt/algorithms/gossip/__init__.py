"""Algorithms whose learners average their replicas in pairs, beside the training."""

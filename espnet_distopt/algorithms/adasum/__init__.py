"""Adasum adds updates that are orthogonal and averages updates that are parallel."""

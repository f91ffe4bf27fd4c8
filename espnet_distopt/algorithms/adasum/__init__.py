"""Adasum: updates are added where they are orthogonal and averaged where parallel."""

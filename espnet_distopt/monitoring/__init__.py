"""What learners write about a training while it runs, and what a person sees of it.

This reads files only and does not import torch, so it works on a login node, during a
training and after it.
"""

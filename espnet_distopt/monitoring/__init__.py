"""What learners write of a training while it runs, and what a person sees of it.

Files only, and no torch: it works on a login node, during a training and after it.
"""

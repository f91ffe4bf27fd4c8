"""Writes, submits and watches jobs of Slurm."""

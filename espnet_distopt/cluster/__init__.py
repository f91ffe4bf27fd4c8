"""Slurm: jobs are written, submitted and watched; in a job, who is which learner."""

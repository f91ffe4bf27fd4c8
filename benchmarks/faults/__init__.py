"""A training whose learners are tormented, for `benchmarks/chaos.py`."""

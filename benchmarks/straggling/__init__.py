"""Training loops in which one learner is slow; each module of a loop has its `LOOP`."""

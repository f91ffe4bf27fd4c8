"""Trials: methods train a problem on a virtual cluster, for `bin.simulate`."""

"""The driver for real processes, which carries out the effects of algorithms.

Learners talk over `torch.distributed`. The other driver is `espnet_distopt.simulation`.
"""

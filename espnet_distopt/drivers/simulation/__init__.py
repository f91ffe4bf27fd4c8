"""The simulation driver: N virtual learners in one process, under a virtual clock."""

from espnet_distopt.drivers.simulation.cluster import Compute, Link, Network
from espnet_distopt.drivers.simulation.driver import DeadlockError, Simulation
from espnet_distopt.drivers.simulation.learner import VirtualLearner
from espnet_distopt.drivers.simulation.replay import ReplayError

__all__ = [
    "Compute",
    "DeadlockError",
    "Link",
    "Network",
    "ReplayError",
    "Simulation",
    "VirtualLearner",
]

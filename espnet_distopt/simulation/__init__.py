"""The simulation driver runs virtual learners in one process under a virtual clock."""

from espnet_distopt.simulation.compute import Compute
from espnet_distopt.simulation.faults import Fault
from espnet_distopt.simulation.network import Link, Network
from espnet_distopt.simulation.simulation import DeadlockError, Simulation
from espnet_distopt.simulation.virtual_learner import VirtualLearner

__all__ = [
    "Compute",
    "DeadlockError",
    "Fault",
    "Link",
    "Network",
    "Simulation",
    "VirtualLearner",
]

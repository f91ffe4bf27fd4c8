"""Looking at the consensus model of a simulation, between epochs."""

from collections.abc import Callable

import torch
from torch import nn

from espnet_distopt.simulation.simulation import Simulation


def evaluate(
    simulation: Simulation, loss: Callable[[nn.Module], float]
) -> tuple[float, float]:
    """Return the loss of the consensus model, and the consensus distance.

    The consensus model is in learner 0's replica while `loss` is called with it; then
    the learner has its own parameters back. The distance is what a `Session` gives:
    ||x_i - consensus|| / ||consensus||, averaged over the learners. Forming the
    consensus takes virtual time, as it does in a training.
    """
    own = [virtual.learner.params.clone() for virtual in simulation.learners]
    consensus = simulation.consensus()
    scale = float(consensus.norm().clamp_min(1e-30))
    distances = [float((params - consensus).norm()) / scale for params in own]
    virtual = simulation.learners[0]
    kept = virtual.learner.params.clone()  # an algorithm may go on from the consensus
    with torch.no_grad():
        virtual.learner.params.copy_(consensus)
    try:
        value = loss(virtual.model)
    finally:
        with torch.no_grad():
            virtual.learner.params.copy_(kept)
    return value, sum(distances) / len(distances)

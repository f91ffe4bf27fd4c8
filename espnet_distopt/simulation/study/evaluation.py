"""The module evaluates the consensus model of a simulation between epochs."""

from collections.abc import Callable

import torch
from torch import nn

from espnet_distopt.simulation.simulation import Simulation


def evaluate(
    simulation: Simulation, loss: Callable[[nn.Module], float]
) -> tuple[float, float]:
    """Return the loss of the consensus model, and the consensus distance.

    The consensus distance is ||x_i - consensus|| / ||consensus||, averaged over the
    living learners i, as a `Session` computes it. The consensus takes virtual time, as
    it takes time in a real training. The replica of the first of them holds the
    consensus model while `loss` runs; afterwards it has the parameters that it had
    before.

    Args:
        simulation: the simulation, between two epochs.
        loss: a function that returns the loss of the model that it is called with.
    """
    own = [virtual.learner.params.clone() for virtual in simulation.learners]
    models = simulation.consensus_models()
    first, consensus = next(iter(models.items()))
    scale = float(consensus.norm().clamp_min(1e-30))
    distances = [float((own[rank] - consensus).norm()) / scale for rank in models]
    virtual = simulation.learners[first]
    # `consensus` may have replaced the parameters: some algorithms go on from it.
    kept = virtual.learner.params.clone()
    with torch.no_grad():
        virtual.learner.params.copy_(consensus)
    try:
        value = loss(virtual.model)
    finally:
        with torch.no_grad():
            virtual.learner.params.copy_(kept)
    return value, sum(distances) / len(distances)

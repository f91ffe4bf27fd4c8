"""These tests run H-ADPSGD with learners of a node that step unequally often."""

import pytest

from espnet_distopt.algorithms.base import UnequalStepsError
from espnet_distopt.simulation import Compute, Network, Simulation
from tests import virtual


@pytest.mark.parametrize("steps", [[3, 4, 3, 3], [3, 3, 5, 2], [0, 1, 0, 0]])
def test_unequal_steps_inside_a_node_leave_nobody_waiting(steps: list[int]) -> None:
    learners = virtual.points("hadpsgd", 4, virtual.towards_rank, per_node=2)
    simulation = Simulation(learners, Compute(spread=0.5), Network(per_node=2))
    simulation.start()
    with pytest.raises(UnequalStepsError, match="unequal numbers of steps"):
        simulation.epoch(steps)

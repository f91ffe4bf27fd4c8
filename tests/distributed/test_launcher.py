"""Learners on each machine, from the variables of the launchers."""

import pytest

from espnet_distopt.distributed.launcher import learners_per_node


def slurm(tasks: str, **more: str) -> dict[str, str]:
    return {"SLURM_PROCID": "0", "SLURM_STEP_TASKS_PER_NODE": tasks, **more}


@pytest.mark.parametrize(
    ("size", "environment", "expected"),
    [
        (4, {}, None),
        (8, {"LOCAL_WORLD_SIZE": "4"}, 4),
        (8, {"LOCAL_WORLD_SIZE": "4", "GROUP_WORLD_SIZE": "2"}, 4),
        (6, {"LOCAL_WORLD_SIZE": "4", "GROUP_WORLD_SIZE": "2"}, None),
        (6, {"LOCAL_WORLD_SIZE": "2", "GROUP_WORLD_SIZE": "2"}, None),
        (8, {"LOCAL_WORLD_SIZE": "3"}, None),
        (8, {"LOCAL_WORLD_SIZE": "0"}, None),
        (8, {"LOCAL_WORLD_SIZE": "many"}, None),
        (4, slurm("4"), 4),
        (8, slurm("4(x2)"), 4),
        (12, slurm("4(x2),4"), 4),
        (7, slurm("4,3"), None),
        (10, slurm("4(x2),2"), None),
        (8, slurm("four"), None),
        (8, slurm("1(x2)"), None),  # each task has started four
        (8, slurm("1(x2)", LOCAL_WORLD_SIZE="4"), 4),  # torchrun in Slurm
        (8, {"SLURM_PROCID": "0", "SLURM_NTASKS_PER_NODE": "4"}, 4),
        (
            8,
            {
                "SLURM_PROCID": "0",
                "SLURM_NTASKS_PER_NODE": "1",
                "SLURM_NTASKS": "2",
            },
            None,
        ),
        (8, slurm("1(x2)", DISTOPT_LEARNERS="4,4", LOCAL_WORLD_SIZE="4"), 4),
        # The middle node's own variables look as if all three had two learners.
        (
            6,
            {
                "DISTOPT_LEARNERS": "1,2,3",
                "LOCAL_WORLD_SIZE": "2",
                "GROUP_WORLD_SIZE": "3",
            },
            None,
        ),
        (8, {"SLURM_PROCID": "0"}, None),
        (8, {"SLURM_STEP_TASKS_PER_NODE": "4(x2)"}, None),  # not started by Slurm
    ],
)
def test_learners_per_node(
    size: int, environment: dict[str, str], expected: int | None
) -> None:
    assert learners_per_node(size, environment) == expected

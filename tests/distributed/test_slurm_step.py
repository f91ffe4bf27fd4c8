"""The variables of torch.distributed, from those of Slurm."""

import os
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from espnet_distopt.distributed import slurm_step as environment
from espnet_distopt.distributed.slurm_step import from_slurm, tasks_per_node
from espnet_distopt.errors import InputError


def step(tasks: str, rank: int = 0, node: int = 0, **more: str) -> dict[str, str]:
    return {
        "SLURM_JOB_ID": "12",
        "SLURM_STEP_ID": "0",
        "SLURM_PROCID": str(rank),
        "SLURM_NODEID": str(node),
        "SLURM_LOCALID": "1",
        "SLURM_STEP_TASKS_PER_NODE": tasks,
        "SLURM_LAUNCH_NODE_IPADDR": "10.1.2.3",
        "SLURM_NODELIST": "gpu-a-[1-2],login",
        **more,
    }


def test_a_rank_on_uneven_nodes() -> None:
    assert from_slurm(step("2(x2),1,3", rank=6, node=3)) == {
        "RANK": "6",
        "WORLD_SIZE": "8",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "3",
        "MASTER_ADDR": "10.1.2.3",
        "MASTER_PORT": "20192",
    }


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"SLURM_JOB_ID": "12", "SLURM_NTASKS": "4"},  # the batch script itself
        step("1"),
        step("2", RANK="0"),
        step("many"),
        {"SLURM_STEP_TASKS_PER_NODE": "2"},
    ],
)
def test_it_applies_only_to_steps_of_several_tasks(environ: dict[str, str]) -> None:
    assert from_slurm(environ) == {}


def test_a_master_that_is_set_stays() -> None:
    found = from_slurm(step("2", MASTER_ADDR="10.9.9.9", MASTER_PORT="29500"))
    assert (found["MASTER_ADDR"], found["MASTER_PORT"]) == ("10.9.9.9", "29500")


@given(job=st.integers(1, 10**8), start=st.integers(0, 50), other=st.integers(1, 700))
def test_ports(job: int, start: int, other: int) -> None:
    def port(job: int, start: int) -> int:
        more = {"SLURM_JOB_ID": str(job), "SLURM_RESTART_COUNT": str(start)}
        return int(from_slurm({**step("2"), **more})["MASTER_PORT"])

    assert 20000 <= port(job, start) < 32000
    assert port(job, start) != port(job, start + 1)
    assert port(job, start) != port(job + other, start + 1)


@given(st.lists(st.tuples(st.integers(1, 64), st.integers(1, 40)), min_size=1))
def test_task_lists(parts: list[tuple[int, int]]) -> None:
    text = ",".join(f"{n}(x{times})" if times > 1 else str(n) for n, times in parts)
    expected = [n for n, times in parts for _ in range(times)]
    assert tasks_per_node(step(text)) == expected


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        (step("2", node=1), "SLURM_NODEID=1 does not fit SLURM_STEP_TASKS_PER_NODE=2"),
        ({**step("2"), "SLURM_NODEID": "a"}, "SLURM_NODEID=a does not fit"),
        (
            {k: v for k, v in step("2").items() if k != "SLURM_LAUNCH_NODE_IPADDR"},
            "SLURM_LAUNCH_NODE_IPADDR is not set: start it by srun",
        ),
    ],
)
def test_variables_that_do_not_fit(environ: dict[str, str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        from_slurm(environ)


@pytest.mark.parametrize(
    ("rank", "address", "good"),
    [(0, "127.0.0.1", True), (1, "192.0.2.1", True), (0, "192.0.2.1", False)],
)
def test_rank_0_must_be_at_the_meeting_point(
    rank: int, address: str, good: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 192.0.2.1 is nobody's address (RFC 5737)
    variables = step("2", rank=rank, SLURM_LAUNCH_NODE_IPADDR=address)
    monkeypatch.setattr(os, "environ", variables)
    if good:
        environment.apply([])
        assert variables["MASTER_ADDR"] == address
    else:
        with pytest.raises(InputError, match=r"rank 0 is not on 192\.0\.2\.1"):
            environment.apply([])
        assert "RANK" not in variables


@pytest.mark.parametrize(
    "options", [["--dist_launcher", "slurm"], ["--dist_launcher=slurm"]]
)
@pytest.mark.parametrize("given", [True, False])
def test_espnets_launcher_has_slurms_variables_to_itself(
    options: list[str], given: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables = step("2", SLURM_LAUNCH_NODE_IPADDR="127.0.0.1")
    monkeypatch.setattr(os, "environ", variables)
    monkeypatch.setattr(sys, "argv", ["asr_train", *([] if given else options)])
    environment.apply(["--seed", "1", *options] if given else None)
    assert "RANK" not in variables
    environment.apply(["--dist_launcher_of_ours", "slurm"])
    assert variables["RANK"] == "0"

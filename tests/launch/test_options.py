"""What the launcher understands, and what it refuses in one line."""

import socket
from dataclasses import replace

import pytest

from espnet_distopt.bin.launch import FLAGS, main
from espnet_distopt.distributed.launcher import learners_per_node
from espnet_distopt.distributed.slurm_step import Node, this_node
from espnet_distopt.errors import InputError
from espnet_distopt.launch.plan import Plan, make_plan, network_variables
from espnet_distopt.launch.program import split
from tests.refusal import error_of

STEP = {
    "SLURM_PROCID": "1",
    "SLURM_NODEID": "1",
    "SLURM_LOCALID": "0",
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.1",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
    "SLURMD_NODENAME": "n2",
}

REFUSED = [
    ("--nproc 0 true", "--nproc 0: expected a number from 1"),
    ("--nproc -1 true", "--nproc -1: expected a number from 1"),
    ("--nproc two true", "--nproc two: expected a number from 1"),
    ("--nproc 2,2 true", "--nproc 2,2: that is 2 nodes, not 1"),
    ("--nproc 2 --restarts -1 true", "--restarts -1: expected a number from 0"),
    ("--nproc 2 --restarts x true", "--restarts x: expected a number from 0"),
    (
        "--nproc 2 --restarts 1 --on-death end true",
        "--restarts 1: a learner that is started again needs the others",
    ),
    ("--nproc 2 --nnodes 0 true", "--nnodes 0: expected at least 1"),
    ("--nproc 2 --nnodes 2 true", "--nnodes 2 needs --node_rank, 0 to 1"),
    ("--nproc 2 --nnodes 2 --node_rank 2 true", "--node_rank 2: expected 0 to 1"),
    ("--nproc 2 --nnodes 2 --node_rank 1 true", "--nnodes 2 needs --master HOST:PORT"),
    ("--nproc 2 --master here true", "--master here: expected HOST:PORT"),
    ("--nproc 2 --master here:0 true", "--master here:0: expected HOST:PORT"),
    ("--nproc 2 --slow 2:3 true", "--slow 2:3: learners are 0 to 1"),
    ("--nproc 2 --slow 1 true", "--slow 1: expected LEARNER:FACTOR"),
    ("--nproc 2 --slow 1:0.5 true", "--slow 1:0.5: expected LEARNER:FACTOR"),
    ("--nproc 2", "no program to launch"),
    ("--nproc 2 -m", "no program to launch"),
    ("--nproc 2 no_such_command", "no_such_command: command not found"),
    ("--nproc 2 no_such.py", "no_such.py: no such file"),
]


@pytest.fixture(autouse=True)
def outside_of_slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_PROCID", raising=False)


@pytest.mark.parametrize(("words", "message"), REFUSED)
def test_refused_in_one_line(
    words: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert error_of(main, words.split(), capsys).startswith(message)


@pytest.mark.processes
def test_a_port_that_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        where = f"127.0.0.1:{other.getsockname()[1]}"
        words = f"--nproc 2 --master {where} true".split()
        line = error_of(main, words, capsys)
    assert f"the rendezvous store cannot listen at {where}: " in line


@pytest.mark.parametrize(
    ("words", "options", "program"),
    [
        ("--nproc 2 -m a --lr 1", "--nproc 2", "-m a --lr 1"),
        ("--nproc 2 --label a.py -m b", "--nproc 2 --label", "a.py -m b"),
        ("--nproc=2 a.py --nproc 3", "--nproc=2", "a.py --nproc 3"),
        ("--nproc 2 --share-gpu a.py -m b", "--nproc 2 --share-gpu", "a.py -m b"),
        ("--nproc 2 -- -m a -- b", "--nproc 2", "-m a -- b"),
        ("--help", "--help", ""),
    ],
)
def test_where_the_program_begins(words: str, options: str, program: str) -> None:
    assert split(words.split(), FLAGS) == (
        options.split(),
        program.split(),
    )


def test_a_step_of_slurm_says_which_node_this_is() -> None:
    node = this_node(STEP)
    assert node is not None
    plan = make_plan("4,3", None, None, None, node, STEP)
    assert plan == Plan((4, 3), 1, "10.0.0.1", node.port, "n2")
    assert list(plan.ranks(1)) == [4, 5, 6]
    found = plan.variables(5, 2, 20000)
    expected = {"RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "7", "GROUP_RANK": "1"}
    expected |= {"LOCAL_WORLD_SIZE": "3", "DISTOPT_INCARNATION": "2"}
    assert found.items() >= expected.items()
    assert this_node({**STEP, "SLURM_STEP_TASKS_PER_NODE": "1"}) is None


def test_options_come_before_slurm() -> None:
    node = Node(8, 3, "10.0.0.1", 20000)
    plan = make_plan("2", 2, 0, "10.0.0.9:3000", node, {})
    assert (plan.counts, plan.node, plan.address, plan.port) == (
        (2, 2),
        0,
        "10.0.0.9",
        3000,
    )


def test_several_launchers_on_a_node_are_refused() -> None:
    with pytest.raises(InputError, match="one launcher on each"):
        this_node({**STEP, "SLURM_STEP_TASKS_PER_NODE": "2(x2)"})


def test_each_learner_that_shares_a_gpu_seems_to_have_a_machine_of_its_own() -> None:
    plan = make_plan("2", 2, 1, "10.0.0.1:3000", None, {})
    found = replace(plan, share_gpu=True).variables(3, 0, 3000)
    expected = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "GROUP_RANK": "3"}
    expected |= {"GROUP_WORLD_SIZE": "4", "NCCL_HOSTID": "learner3"}
    assert found.items() >= (expected | {"RANK": "3", "WORLD_SIZE": "4"}).items()
    assert learners_per_node(4, found) == 2  # A super learner is what it was.
    assert plan.variables(3, 0, 3000).items() >= {"LOCAL_RANK": "1"}.items()
    assert "NCCL_HOSTID" not in plan.variables(3, 0, 3000)


def test_nccl_goes_by_the_loopback_between_learners_that_share_a_gpu() -> None:
    plan = make_plan("2", None, None, None, None, {})
    sharing = replace(plan, share_gpu=True)
    needed = {"NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1"}
    assert network_variables(sharing, {}) == needed
    own = {"NCCL_SOCKET_IFNAME": "eth1"}
    assert network_variables(sharing, own) == {"NCCL_IB_DISABLE": "1"}
    assert network_variables(plan, {}) == {}

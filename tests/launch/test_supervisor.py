"""One launcher and its learners: deaths, signals, restarts, and no process left."""

import json
import os
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from espnet_distopt.errors import STOPPED
from tests.launch.launched import HERE, Launched, all_gone, begun

pytestmark = pytest.mark.processes
CONTINUE = ("--on-death", "continue")
END = ("--on-death", "end")
HOST = socket.gethostname()


def variables(directory: Path, name: str) -> dict[str, str]:
    found: dict[str, str] = json.loads((directory / name).read_text())
    return found


SHARED = {"LOCAL_RANK": "0", "NCCL_SOCKET_IFNAME": "lo"}


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ("--label", [{"LOCAL_RANK": "0"}, {"LOCAL_RANK": "1"}]),
        (
            "--share-gpu",
            [SHARED | {"NCCL_HOSTID": f"learner{rank}"} for rank in (0, 1)],
        ),
    ],
)
def test_a_learner_has_its_variables_and_leaves_no_child(
    tmp_path: Path, option: str, expected: list[dict[str, str]]
) -> None:
    run = begun(tmp_path, 2, option, *END)
    children = [run.pids(rank)[1] for rank in (0, 1)]
    run.tell_end()
    status, out, err = run.ended()
    assert (status, err) == (0, [])
    labels = ["0: ", "1: "] if option == "--label" else ["", ""]
    says = [f"{label}worker {rank} listens" for rank, label in enumerate(labels)]
    assert sorted(out) == says
    assert all_gone(*children)
    both = [variables(tmp_path, f"{rank}.0") for rank in (0, 1)]
    for rank, (each, own) in enumerate(zip(both, expected, strict=True)):
        own |= {"RANK": str(rank), "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
        own |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "DISTOPT_LEARNERS": "2"}
        own |= {"TORCHELASTIC_RESTART_COUNT": "0", "MASTER_ADDR": "127.0.0.1"}
        if option == "--label":
            own |= {"LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1"}
        assert each.items() >= own.items()
    assert both[0]["MASTER_PORT"] == both[1]["MASTER_PORT"]


def test_a_slow_learner_is_stopped_and_continued(tmp_path: Path) -> None:
    run = begun(tmp_path, 2, "--slow", "1:4", *CONTINUE)
    seen: tuple[set[str], set[str]] = set(), set()

    def both_states_were_seen() -> bool:
        for rank in (0, 1):
            status = Path(f"/proc/{run.pids(rank)[0]}/stat").read_text()
            seen[rank].add(status.rpartition(")")[2].split()[0])
        return "T" in seen[1] and len(seen[1]) > 1

    run.until(both_states_were_seen)
    assert "T" not in seen[0]
    run.tell_end()
    assert run.ended()[0] == 0


def test_a_death_just_after_the_word_that_the_others_survive(tmp_path: Path) -> None:
    """The launcher looks into the store twice a second, and once more for a death."""
    run = Launched(tmp_path, "--nproc", "2", program=str(HERE / "survives.py"))
    status, _, err = run.ended()
    assert "it is lost, and the others go on" in err[0]
    assert (tmp_path / "alone").exists()
    assert status == 0


def test_the_others_go_on(tmp_path: Path) -> None:
    run = begun(tmp_path, 3, *CONTINUE)
    run.kill(0)
    run.kill(1, signal.SIGSEGV)
    assert all_gone(*run.pids(0), *run.pids(1))
    run.tell_end()
    status, _, err = run.ended()
    assert status == 0
    lost = "it is lost, and the others go on"
    assert sorted(err[:2]) == [
        f"launch: learner 0 on {HOST} was killed by SIGKILL: {lost}",
        f"launch: learner 1 on {HOST} was killed by SIGSEGV: {lost}",
    ]
    assert err[2:] == [
        "launch: the run ended well, though not with all learners: "
        f"lost: learner 0 ({HOST}), learner 1 ({HOST})"
    ]


@pytest.mark.parametrize(
    ("on_death", "failed", "how"),
    [
        (END, 137, "was killed by SIGKILL"),
        # It has not been lost: what it has met, the others may have met unnoticed.
        (CONTINUE, 5, "ended with status 5"),
        (CONTINUE, 255, "ended with status 255"),
    ],
)
def test_all_others_are_ended(
    tmp_path: Path, on_death: tuple[str, ...], failed: int, how: str
) -> None:
    # SIGTERM does not end the others of one that was killed.
    deaf = "deaf" if on_death == END else ""
    run = begun(tmp_path, 3, *on_death, what=deaf)
    pids = run.all_pids(3)
    if failed == 137:
        run.kill(1)
    else:
        run.tell_end(failed, rank=1)
    status, _, err = run.ended()
    assert status == failed
    assert err == [
        f"launch: learner 1 on {HOST} {how}: the others are ended",
        f"launch: the run failed: learner 1 on {HOST} {how}",
    ]
    assert all_gone(*pids)


def test_a_failure_is_none_of_a_run_that_was_stopped_well(tmp_path: Path) -> None:
    run = begun(tmp_path, 2, *CONTINUE, what="deaf")
    run.process.send_signal(signal.SIGTERM)
    run.tell_end(3, rank=1)
    run.reaped(1)
    run.tell_end(STOPPED)
    status, _, err = run.ended()
    assert status == 3
    assert err[-1].startswith("launch: the run was told to stop, and learner 1 on ")


def test_a_replacement_that_refuses_to_join_is_lost(tmp_path: Path) -> None:
    run = begun(tmp_path, 2, *CONTINUE, "--restarts", "5")
    run.kill(1)
    run.began("1.1")
    run.tell_end(2, rank=1)
    run.reaped(1)
    run.tell_end()
    status, _, err = run.ended()
    assert status == 0
    assert err[1].endswith("ended with status 2: it is lost, and the others go on")


def test_a_dead_learner_is_replaced_so_many_times(tmp_path: Path) -> None:
    run = Launched(tmp_path, "--nproc", "2", *CONTINUE, "--restarts", "2")
    for incarnation in range(3):
        run.began("0.0", f"1.{incarnation}")
        assert variables(tmp_path, f"1.{incarnation}")["RANK"] == "1"
        left = run.pids(1)
        run.kill(1)
        assert all_gone(*left)
    run.tell_end(rank=0)
    status, _, err = run.ended()
    assert status == 0
    assert [line.rpartition(": ")[2] for line in err[:3]] == [
        "it is started again (1 of at most 2)",
        "it is started again (2 of at most 2)",
        "it is lost, and the others go on",
    ]
    assert not (tmp_path / "1.3").exists()


def test_what_refuses_its_input_is_not_started_again(tmp_path: Path) -> None:
    run = begun(tmp_path, 2, *CONTINUE, "--restarts", "5")
    run.tell_end(2)
    status, _, err = run.ended()
    assert status == 2
    assert "the run failed: learner" in err[-1]
    assert not (tmp_path / "1.1").exists()


@pytest.mark.parametrize("status", [0, STOPPED])
def test_none_is_started_again_when_one_has_ended(tmp_path: Path, status: int) -> None:
    run = begun(tmp_path, 3, *CONTINUE, "--restarts", "5")
    run.tell_end(status, rank=0)
    run.reaped(0)
    run.kill(1)
    run.reaped(1)
    run.tell_end(status)
    assert run.ended()[0] == status
    assert not (tmp_path / "1.1").exists()


def test_when_all_are_lost_the_first_one_counts(tmp_path: Path) -> None:
    run = begun(tmp_path, 2, *CONTINUE)
    run.kill(1, signal.SIGSEGV)
    run.reaped(1)
    run.kill(0)
    status, _, err = run.ended()
    assert status == 139
    assert err[-1] == (
        f"launch: the run failed: learner 1 on {HOST} was killed by SIGSEGV"
    )


@pytest.mark.parametrize(
    ("number", "heard"),
    [
        (signal.SIGUSR1, "SIGUSR1"),
        (signal.SIGTERM, "SIGTERM"),
        (signal.SIGHUP, "SIGTERM"),
    ],
)
def test_a_stop_is_forwarded(
    tmp_path: Path, number: signal.Signals, heard: str
) -> None:
    run = begun(tmp_path, 2, "--restarts", "3", what="save")
    run.process.send_signal(number)
    status, out, err = run.ended()
    said = f"launch: {signal.Signals(number).name}: the learners are told"
    assert (status, err) == (75, [said])
    assert out.count(f"saved on {heard}") == 2


def test_learners_save_when_the_terminal_is_gone(tmp_path: Path) -> None:
    terminal, launchers = os.openpty()
    options = ("--nproc", "2", "--label")
    run = Launched(tmp_path, *options, what="save", output=launchers)
    os.close(launchers)
    run.began("0.0", "1.0")
    os.close(terminal)
    run.process.send_signal(signal.SIGHUP)
    assert run.process.wait(60) == 75


IMPATIENT = (
    "from espnet_distopt.bin import launch; launch.STOP_SECONDS = 0; launch.main()"
)
STEP = {"SLURM_PROCID": "0", "SLURM_STEP_TASKS_PER_NODE": "1"}


@pytest.mark.parametrize("variables", [{}, STEP])
def test_only_slurm_limits_the_time_of_a_stop_in_its_step(
    tmp_path: Path, variables: dict[str, str]
) -> None:
    how = {"launcher": ("-c", IMPATIENT), "variables": variables}
    run = begun(tmp_path, 2, what="deaf", **how)
    run.process.send_signal(signal.SIGTERM)
    if variables:
        with pytest.raises(subprocess.TimeoutExpired):  # It looks every 0.5 s.
            run.process.wait(1.5)
        run.tell_end(STOPPED)
    assert run.ended()[0] == (STOPPED if variables else 137)


def test_ctrl_c_ends_all(tmp_path: Path) -> None:
    run = begun(tmp_path, 2)
    pids = run.all_pids(2)
    os.killpg(run.process.pid, signal.SIGINT)  # as a terminal does
    status, _, err = run.ended()
    assert status == 130
    assert err[-1] == "launch: stopped by Ctrl-C"
    assert all_gone(*pids)


def test_nothing_outlives_a_killed_launcher(tmp_path: Path) -> None:
    run = begun(tmp_path, 2, what="deaf")
    pids = run.all_pids(2)
    helpers = run.helpers()
    assert len(helpers) == 1
    run.process.kill()
    assert all_gone(*pids, *helpers)
    run.process.communicate(timeout=60)


@pytest.mark.parametrize("on_death", [CONTINUE, ()])
def test_the_death_of_the_store_ends_all(
    tmp_path: Path, on_death: tuple[str, ...]
) -> None:
    run = begun(tmp_path, 2, *on_death, "--restarts", "3")
    pids = run.all_pids(2)
    [store] = run.helpers()
    os.kill(store, signal.SIGKILL)
    status, _, err = run.ended()
    assert status == 1
    assert err == [
        "launch: the process of the rendezvous store was killed by SIGKILL: "
        "no learner can go on without it",
        "launch: the run failed: its rendezvous store is gone",
    ]
    assert all_gone(*pids)

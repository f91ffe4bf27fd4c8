"""Several launchers on this machine, each as if it were a node of its own."""

import os
import signal
import socket
import sys
from pathlib import Path

import pytest

from tests.launch.launched import WORKER, Launched, all_gone
from tests.ports import free_ports

pytestmark = pytest.mark.processes
HOST = socket.gethostname()


def nodes(
    directory: Path,
    *options: str,
    each: tuple[str, str] = ("1,2", "1,2"),
    what: str = "",
    host: str = "127.0.0.1",
) -> list[Launched]:
    """Return the launchers of two nodes, when one learner and two have begun."""
    master = ("--nnodes", "2", "--master", f"{host}:{free_ports(1)[0]}")
    both = [
        Launched(
            directory,
            *("--nproc", each[n], "--node_rank", str(n)),
            *master,
            *options,
            what=what,
        )
        for n in (0, 1)
    ]
    if each[0] == each[1]:
        both[0].began("0.0", "1.0", "2.0")
    return both


def options_of(run: Launched) -> list[str]:
    """Return the options of a launcher."""
    return [str(word) for word in run.process.args[3:-2]]  # type: ignore[index]


def test_one_run_on_two_nodes(tmp_path: Path) -> None:
    first, second = nodes(tmp_path, "--on-death", "continue", "--restarts", "1")
    first.kill(2)
    first.began("2.1")
    second.kill(1)
    first.began("1.1")
    second.kill(1)
    first.reaped(1)
    first.tell_end()
    assert [node.ended()[0] for node in (second, first)] == [0, 0]


def test_a_node_says_what_the_others_lost(tmp_path: Path) -> None:
    first, second = nodes(tmp_path, "--on-death", "continue")
    first.kill(2)
    first.reaped(2)
    first.tell_end()
    status, _, err = first.ended()
    assert (status, second.ended()[0]) == (0, 0)
    what = "the run ended well, though not with all learners"
    assert err == [f"launch: {what}: lost: learner 2 ({HOST})"]


@pytest.mark.parametrize("dying", [0, 1])
def test_a_death_ends_the_learners_of_all_nodes(tmp_path: Path, dying: int) -> None:
    both = nodes(tmp_path, "--on-death", "end")
    pids = both[0].all_pids(3)
    both[0].kill(dying)
    status, _, err = both[0].ended()
    assert (status, both[1].ended()[0]) == (137, 137)
    failed = f"learner {dying} on {HOST} was killed by SIGKILL"
    assert err[-1] == f"launch: the run failed: {failed}"
    assert all_gone(*pids)


def test_a_stop_of_nodes_that_meet_at_an_address_of_ipv6(tmp_path: Path) -> None:
    both = nodes(tmp_path, what="save", host="[::1]")
    for node in both:
        node.process.send_signal(signal.SIGUSR1)
    assert [node.ended()[0] for node in both] == [75, 75]


def alone(directory: Path, on_death: str) -> Launched:
    """Start node 0 of two, with two learners; node 1 never comes."""
    master = ("--nnodes", "2", "--master", f"127.0.0.1:{free_ports(1)[0]}")
    words = ("--nproc", "2,1", "--node_rank", "0", "--on-death", on_death)
    run = Launched(directory, *words, *master)
    run.began("0.0", "1.0")
    return run


@pytest.mark.parametrize("on_death", ["continue", "end"])
@pytest.mark.parametrize("ends", [130, 7])
def test_a_node_that_waits_for_one_that_never_comes_can_end(
    tmp_path: Path, on_death: str, ends: int
) -> None:
    """By Ctrl-C, or when its learners fail."""
    run = alone(tmp_path, on_death)
    if ends == 130:
        run.process.send_signal(signal.SIGINT)
    else:
        run.tell_end(ends)
    status, _, err = run.ended(30)
    assert status == ends
    said = "stopped by Ctrl-C" if ends == 130 else "the run failed: learner"
    assert said in err[-1]


def test_a_node_that_comes_late_is_awaited(tmp_path: Path) -> None:
    run = alone(tmp_path, "end")
    run.tell_end(0)
    run.reaped(0)
    run.reaped(1)
    options = options_of(run)
    options[options.index("--node_rank") + 1] = "1"
    second = Launched(tmp_path, *options)
    assert [node.ended()[0] for node in (second, run)] == [0, 0]
    assert (tmp_path / "2.0").exists()


def test_nodes_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    first, second = nodes(tmp_path, each=("1,2", "3"))
    status, _, err = second.ended()
    assert (status, len(err)) == (2, 1), err
    assert first.process.poll() is None  # It waits for a node that fits.
    first.process.kill()
    second.process.kill()


def test_a_second_launcher_of_a_node_is_refused_and_disturbs_nobody(
    tmp_path: Path,
) -> None:
    both = nodes(tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    status, _, err = Launched(other, *options_of(both[1])).ended()
    assert (status, err) == (2, ["error: another launcher is node 1 of this run"])
    assert not list(other.iterdir()), "it has started no learner"
    both[0].tell_end()
    assert [node.ended()[0] for node in both] == [0, 0]


def test_a_lost_node_may_come_back(tmp_path: Path) -> None:
    first, second = nodes(tmp_path, "--on-death", "continue", "--restarts", "1")
    lost = [pid for rank in (1, 2) for pid in first.pids(rank)]
    os.kill(second.process.pid, signal.SIGKILL)
    assert all_gone(*lost)
    again = Launched(tmp_path, *options_of(second))
    first.began("1.2", "2.2")
    first.tell_end()
    assert [node.ended()[0] for node in (again, first)] == [0, 0]
    second.process.communicate(timeout=60)


def test_silent_nodes(tmp_path: Path) -> None:
    """One was only cut off, and the other ends a run that cannot go on.

    The learners of the first one have trained on, and would be killed with the end of
    the others. A node is silent for 30 seconds before it is lost, for both at a time.
    """
    folders = [tmp_path / name for name in ("back", "ends")]
    for folder in folders:
        folder.mkdir()
    first, second = nodes(folders[0], "--on-death", "continue")
    ends, lost = nodes(folders[1], "--on-death", "end")
    [link] = second.helpers()
    os.kill(link, signal.SIGSTOP)
    lost.process.kill()

    assert first.process.stderr is not None
    words = f"{sys.executable} {WORKER} {folders[0]}"
    begins = f"launch: learner 0 of 3, on {HOST}: {words}\n"
    assert first.process.stderr.readline() == begins
    silent = "launch: node 1 has gone silent: it is lost, and the others"
    assert first.process.stderr.readline() == f"{silent} go on\n"
    os.kill(link, signal.SIGCONT)
    back = "launch: node 1 is back: it is not lost any more\n"
    assert first.process.stderr.readline() == back
    first.tell_end(rank=0)
    first.reaped(0)
    second.tell_end(rank=1)
    second.tell_end(rank=2)
    assert [node.ended()[::2] for node in (second, first)] == [(0, [])] * 2

    status, _, err = ends.ended()
    assert status == 137
    assert err[0] == f"{silent} are ended"
    lost.process.communicate(timeout=60)

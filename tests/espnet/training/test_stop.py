"""A stop within an epoch: exit code 75, and a run that goes on as if uninterrupted."""

import functools
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from espnet_distopt.algorithms import ALGORITHMS
from espnet_distopt.espnet.training.epoch import Epoch
from espnet_distopt.espnet.training.progress import Progress
from espnet_distopt.espnet.training.saving import load_learner
from espnet_distopt.espnet.training.trainer import DistoptTrainer
from espnet_distopt.files.tensors import is_whole
from espnet_distopt.session import Session
from tests.espnet.toy import arguments, write_toy_data
from tests.espnet.training.learners import (
    Injection,
    SignalAt,
    assert_same,
    before,
    kill_at_step,
    trained,
)

# Of those that share their code (bmuf and its relatives), the two that differ most.
SYNCHRONOUS = sorted(
    ALGORITHMS.keys() - {"adpsgd", "hadpsgd", "bmuf", "local_sgd", "slowmo"}
)
OPTIONS = {
    "adasum": "period=2",
    "bmuf_adam": "period=3",
    "diloco": "period=3",
    "hadpsgd": "per_node=2",
    "local_sgd": "period=3",
}


@dataclass(frozen=True)
class RecordBatches:
    """An injection: writes the names of the utterances that are trained on."""

    folder: Path
    then: Injection | None = None

    def __call__(self, rank: int) -> None:
        if self.then is not None:
            self.then(rank)
        iterate, path = Epoch.__iter__, self.folder / f"batches.{rank}"

        def recording(epoch: Epoch):  # type: ignore[no-untyped-def]
            for names, batch in iterate(epoch):
                with path.open("a") as file:
                    file.write("".join(f"{name}\n" for name in names))
                yield names, batch

        Epoch.__iter__ = recording  # type: ignore[method-assign]


def read_batches(folder: Path) -> Counter[str]:
    paths = folder.glob("batches.*")
    return Counter(name for path in paths for name in path.read_text().splitlines())


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("toy")
    write_toy_data(root, train=40)
    return root


@pytest.fixture(scope="module")
def whole_runs(
    data: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Path]:
    """Return a function: the directory of an uninterrupted run, trained only once."""

    @functools.cache
    def whole(algorithm: str) -> Path:
        root = tmp_path_factory.mktemp("whole")
        trained(options_of(algorithm, data, root / "exp"), 2, root)
        return root / "exp"

    return whole


def options_of(algorithm: str, data: Path, exp: Path, *more: str) -> list[str]:
    own = OPTIONS.get(algorithm)
    conf = ["--distopt_conf", own] if own is not None else []
    # Dropout and an epoch's scheduler, so that random numbers and rates matter.
    noise = ["--encoder_conf", "dropout=0.3", "--specaug", "specaug"]
    noise += ["--specaug_conf", "apply_time_warp=false", "--scheduler", "warmuplr"]
    noise += ["--specaug_conf", "apply_time_mask=false"]
    noise += ["--specaug_conf", "freq_mask_width_range=3"]
    return arguments(data, exp, "--distopt", algorithm, *conf, *noise, *more)


@pytest.mark.parametrize("algorithm", SYNCHRONOUS)
def test_stopped_in_an_epoch_a_synchronous_run_ends_the_same(
    algorithm: str, data: Path, tmp_path: Path, whole_runs: Callable[..., Path]
) -> None:
    whole, stopped = whole_runs(algorithm), tmp_path / "stopped"
    # Only learner 1 is told; 10 steps make an epoch.
    options = options_of(algorithm, data, stopped)
    trained(options, 2, tmp_path, SignalAt(14, 1, signal.SIGUSR1), ends=75)
    state = load_learner(stopped, 0, 2)
    assert state is not None
    assert 4 <= state["batches"] <= 7
    assert not (stopped / "2epoch.pth").exists()
    said = trained(options, 2, tmp_path)
    assert f"stopped after step {state['batches']}/10 by another learner" in said
    assert f"goes on after step {state['batches']}/10" in said
    assert_same(whole / "2epoch.pth", stopped / "2epoch.pth")
    own = [load_learner(exp, 1, 2) for exp in (whole, stopped)]
    assert own[0] is not None and own[1] is not None
    assert own[0]["scheduler"] == own[1]["scheduler"]
    losses = [state["reported"]["stats"]["loss"] for state in own]
    assert losses[0] == losses[1]


@dataclass(frozen=True)
class StopAfterOthers:
    """An injection: SIGTERM to learner 1 in a step, once `others` utterances are begun.

    The other learners wait in that step for learner 1, because they could take all
    batches before it is so far. If `others` is all, learner 1 takes none after that,
    and can be the only one that still trains.
    """

    folder: Path
    step: int
    others: int

    def __call__(self, rank: int) -> None:
        arrived = self.folder / "arrived"

        def wait(session: Session) -> None:
            if session.learner.steps + 1 != self.step:
                return
            if rank != 1:
                while not arrived.exists():
                    time.sleep(0.01)
                return
            arrived.touch()
            while read_batches(self.folder).total() < self.others:
                time.sleep(0.01)

        SignalAt(self.step, 1, signal.SIGTERM)(rank)
        before(Session, "step", wait)


@pytest.mark.parametrize(
    ("algorithm", "size", "accum_grad"),
    [("adpsgd", 2, 1), ("adpsgd", 2, 3), ("hadpsgd", 4, 1)],
)
def test_stopped_in_an_epoch_gossip_trains_on_every_batch_once(
    algorithm: str, size: int, accum_grad: int, data: Path, tmp_path: Path
) -> None:
    exp = tmp_path / "exp"
    more = ["--max_epoch", "1", "--accum_grad", str(accum_grad)]
    options = options_of(algorithm, data, exp, *more)
    # With three batches a step, the other learner is through with all when this stops.
    others = 40 if accum_grad > 1 else 0
    stop = RecordBatches(tmp_path, StopAfterOthers(tmp_path, 2, others))
    trained(options, size, tmp_path, stop, ends=75)
    assert others <= read_batches(tmp_path).total() <= 40
    trained(options, size, tmp_path, RecordBatches(tmp_path))
    batches = read_batches(tmp_path)
    assert len(batches) == 40
    assert set(batches.values()) == {1}
    assert (exp / "1epoch.pth").exists()
    state = load_learner(exp, 0, 1)
    assert state is not None
    assert state["scheduler"]["last_epoch"] == 10 // accum_grad


def test_a_second_stop_goes_on_from_the_second_place(
    data: Path, tmp_path: Path, whole_runs: Callable[..., Path]
) -> None:
    whole, stopped = whole_runs("allreduce"), tmp_path / "stopped"
    options = options_of("allreduce", data, stopped, "--max_epoch", "1")
    for step in (3, 7):
        trained(options, 2, tmp_path, SignalAt(step, None, signal.SIGUSR1), ends=75)
    trained(options, 2, tmp_path)
    assert_same(whole / "1epoch.pth", stopped / "1epoch.pth")


@pytest.mark.parametrize(
    ("algorithm", "change"),
    [
        ("adpsgd", "another number of learners"),
        ("allreduce", "a state is lost, as of different stops"),
        ("allreduce", "other batches"),
        ("adpsgd", "other batches"),
    ],
)
def test_the_epoch_is_repeated_where_states_do_not_fit(
    algorithm: str, change: str, data: Path, tmp_path: Path
) -> None:
    exp, size = tmp_path / "exp", 2
    options = options_of(algorithm, data, exp, "--max_epoch", "1")
    trained(options, 2, tmp_path, SignalAt(3, None, signal.SIGUSR1), ends=75)
    if change == "other batches":
        options += ["--batch_size", "8"]
    elif change == "another number of learners":
        size = 1
    else:
        (exp / "distopt" / "learner1.1epoch.pth").unlink()
    said = trained(options, size, tmp_path, RecordBatches(tmp_path))
    assert f"no common state of all {size} learners within epoch 1" in said
    assert "the epoch is repeated" in said
    assert read_batches(tmp_path).total() == 40


@dataclass(frozen=True)
class KillInValidation:
    """An injection: SIGKILL in an epoch's validation, once the states are written."""

    epoch: int

    def __call__(self, rank: int) -> None:
        def kill(options: Any, reporter: Any, **_: Any) -> None:
            if reporter.get_epoch() == self.epoch:
                options.run.saved.write()
                os.kill(os.getpid(), signal.SIGKILL)

        before(DistoptTrainer, "validate_one_epoch", kill)


def test_killed_in_validation_only_the_validation_is_repeated(
    data: Path, tmp_path: Path, whole_runs: Callable[..., Path]
) -> None:
    whole, killed = whole_runs("bmuf_adam"), tmp_path / "killed"
    options = options_of("bmuf_adam", data, killed)
    trained(options, 2, tmp_path, KillInValidation(2), ends=-9)
    assert not (killed / "2epoch.pth").exists()
    assert "epoch 2/2  goes on with its validation" in trained(options, 2, tmp_path)
    assert_same(whole / "2epoch.pth", killed / "2epoch.pth")


@dataclass(frozen=True)
class TermAfterBatches:
    """An injection: SIGTERM to oneself after some batches."""

    batches: int

    def __call__(self, rank: int) -> None:
        def signal_oneself(_: Progress, number: int, *__: object) -> None:
            if number == self.batches:
                os.kill(os.getpid(), signal.SIGTERM)

        before(Progress, "step", signal_oneself)


def test_stock_training_stops_and_repeats_the_epoch(data: Path, tmp_path: Path) -> None:
    exp = tmp_path / "exp"
    options = arguments(data, exp, "--max_epoch", "1")
    said = trained(options, 1, tmp_path, TermAfterBatches(3), ends=75)
    assert "the epoch will be repeated" in said
    trained(options, 1, tmp_path)
    assert (exp / "1epoch.pth").exists()


def test_a_kill_after_a_stop_loses_nothing_that_was_saved(
    data: Path, tmp_path: Path, whole_runs: Callable[..., Path]
) -> None:
    whole, killed = whole_runs("diloco"), tmp_path / "killed"
    options = options_of("diloco", data, killed, "--max_epoch", "1")
    trained(options, 2, tmp_path, SignalAt(4, 0, signal.SIGUSR1), ends=75)
    trained(options, 2, tmp_path, kill_at_step(8), ends=-9)
    trained(options, 2, tmp_path)
    assert_same(whole / "1epoch.pth", killed / "1epoch.pth")


@dataclass(frozen=True)
class SignalGroup:
    """An injection: a signal to one's process group in the second step.

    The file `readers` receives the numbers of the processes that read the data.
    """

    number: int
    readers: Path

    def __call__(self, rank: int) -> None:
        # As in a command; the children of a fork server have another default.
        multiprocessing.set_start_method("fork", force=True)

        def signal_group(session: Session) -> None:
            if session.learner.steps == 1:
                pids = [str(child.pid) for child in multiprocessing.active_children()]
                self.readers.write_text(" ".join(pids))
                os.killpg(os.getpgrp(), self.number)
                time.sleep(0.2)  # So that the end of a reader is noticed.

        before(Session, "step", signal_group)


def lives(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


@pytest.mark.processes
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 75), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_no_reader_of_data_hinders_a_stop_or_outlives_it(
    number: int, code: int, data: Path, tmp_path: Path
) -> None:
    readers, exp = tmp_path / "readers", tmp_path / "exp"
    options = arguments(data, exp, "--distopt", "allreduce", "--num_workers", "1")
    trained(options, 1, tmp_path, SignalGroup(number, readers), ends=code)
    assert (load_learner(exp, 0, 1) is not None) == (code == 75)
    [reader] = map(int, readers.read_text().split())
    # PyTorch's look for their parent once in 5 s.
    assert wait_for(lambda: not lives(reader), 60)


LAUNCHERS = {
    "torchrun": ["torch.distributed.run", "--standalone", "--nproc_per_node", "2"],
    "launch": ["espnet_distopt.bin.launch", "--nproc", "2"],
}


def start(launcher: str, options: list[str], log: Path) -> subprocess.Popen[bytes]:
    launch = [sys.executable, "-m", *LAUNCHERS[launcher]]
    with log.open("ab") as file:
        return subprocess.Popen(
            [*launch, "-m", "espnet_distopt.bin.asr_train", *options],
            stdout=file,
            stderr=file,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )


def group_is_empty(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    return False


def wait_for(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.1)
    return False


@pytest.mark.processes
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_ctrl_c_ends_all_processes_and_leaves_a_state_that_resumes(
    launcher: str, tmp_path: Path
) -> None:
    write_toy_data(tmp_path)
    exp, log = tmp_path / "exp", tmp_path / "log.launcher"
    options = arguments(tmp_path, exp, "--distopt", "adpsgd")
    endless = start(launcher, [*options, "--max_epoch", "100000"], log)
    try:
        kept = exp / "distopt" / "checkpoint.pth"
        assert wait_for(kept.exists, 90), log.read_text()
        os.killpg(endless.pid, signal.SIGINT)
        endless.wait(40)
        assert endless.returncode != 0
        if launcher == "launch":
            assert endless.returncode == 130
            assert "stopped by Ctrl-C, and its state is saved" in log.read_text()
        assert wait_for(lambda: group_is_empty(endless.pid), 20)
    finally:
        if not group_is_empty(endless.pid):
            os.killpg(endless.pid, signal.SIGKILL)
    assert is_whole(exp / "checkpoint.pth") or is_whole(kept)
    done = max(
        int(p.name.split(".")[1][:-5]) for p in exp.glob("distopt/learner0.*epoch.pth")
    )
    # The resumed run needs no launcher, and these processes start at once.
    said = trained([*options, "--max_epoch", str(done + 1)], 2, tmp_path)
    assert "The training was resumed using" in said
    assert is_whole(exp / f"{done + 1}epoch.pth")

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
from pathlib import Path
from typing import Any

import pytest
import torch

from espnet_distopt.algorithms import ALGORITHMS
from espnet_distopt.espnet.training.saving import load_learner
from espnet_distopt.files.tensors import is_whole
from tests.espnet.toy import arguments, write_toy_data
from tests.espnet.training.learners import Injection, kill_at_step, read, train

# Of those that share their code (bmuf and its relatives), the two that differ most.
SYNCHRONOUS = sorted(
    ALGORITHMS.keys() - {"adpsgd", "hadpsgd", "bmuf", "local_sgd", "slowmo"}
)
OPTIONS = {
    "adasum": ["period=2"],
    "bmuf_adam": ["period=3"],
    "diloco": ["period=3"],
    "hadpsgd": ["per_node=2"],
    "local_sgd": ["period=3"],
}


class SignalAt:
    """An injection: a signal to oneself in one step, of one learner or of all."""

    def __init__(self, step: int, victim: int | None, number: int) -> None:
        self.step, self.victim, self.number = step, victim, number

    def __call__(self, rank: int) -> None:
        from espnet_distopt.session import Session

        if self.victim not in (None, rank):
            return
        step = Session.step

        def signalling(session: Session) -> None:
            if session.learner.steps + 1 == self.step:
                os.kill(os.getpid(), self.number)
            step(session)

        Session.step = signalling  # type: ignore[method-assign]


class RecordBatches:
    """An injection: writes the names of the utterances that are trained on."""

    def __init__(self, folder: Path, then: Injection | None = None) -> None:
        self.folder, self.then = folder, then

    def __call__(self, rank: int) -> None:
        from espnet_distopt.espnet.training.epoch import Epoch

        if self.then is not None:
            self.then(rank)
        iterate, path = Epoch.__iter__, self.folder / f"batches.{rank}"

        def recording(epoch: Epoch):  # type: ignore[no-untyped-def]
            for names, batch in iterate(epoch):
                with path.open("a") as file:
                    file.write("".join(f"{name}\n" for name in names))
                yield names, batch

        Epoch.__iter__ = recording  # type: ignore[method-assign]


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
    def whole(algorithm: str, *more: str) -> Path:
        root = tmp_path_factory.mktemp("whole")
        options, log = options_of(algorithm, data, root / "exp", *more), root / "log"
        assert train(options, 2, root / "meet", log) == [0, 0], read(log)
        return root / "exp"

    return whole


def options_of(algorithm: str, data: Path, exp: Path, *more: str) -> list[str]:
    conf = [part for o in OPTIONS.get(algorithm, []) for part in ("--distopt_conf", o)]
    # Dropout and an epoch's scheduler, so that random numbers and rates matter.
    noise = ["--encoder_conf", "dropout=0.3", "--specaug", "specaug"]
    noise += ["--specaug_conf", "apply_time_warp=false", "--scheduler", "warmuplr"]
    noise += ["--specaug_conf", "apply_time_mask=false"]
    noise += ["--specaug_conf", "freq_mask_width_range=3"]
    return arguments(data, exp, "--distopt", algorithm, *conf, *noise, *more)


def assert_same(one: Path, other: Path) -> None:
    left = torch.load(one, weights_only=True)
    right = torch.load(other, weights_only=True)
    assert left.keys() == right.keys()
    for name, tensor in left.items():
        assert torch.equal(tensor, right[name]), name


def read_batches(folder: Path) -> Counter[str]:
    return Counter(
        name
        for path in folder.glob("batches.*")
        for name in path.read_text().splitlines()
    )


@pytest.mark.parametrize("algorithm", SYNCHRONOUS)
def test_stopped_in_an_epoch_a_synchronous_run_ends_the_same(
    algorithm: str, data: Path, tmp_path: Path, whole_runs: Callable[..., Path]
) -> None:
    whole, stopped, log = whole_runs(algorithm), tmp_path / "stopped", tmp_path / "log"
    # Only learner 1 is told; 10 steps make an epoch.
    options = options_of(algorithm, data, stopped)
    injection = SignalAt(14, 1, signal.SIGUSR1)
    assert train(options, 2, tmp_path / "meet2", log, injection) == [75, 75], read(log)
    state = load_learner(stopped, 0, 2)
    assert state is not None
    assert 4 <= state["batches"] <= 7
    assert not (stopped / "2epoch.pth").exists()
    assert train(options, 2, tmp_path / "meet3", log) == [0, 0], read(log)
    said = read(log)
    assert f"stopped after step {state['batches']}/10 by another learner" in said
    assert f"goes on after step {state['batches']}/10" in said
    assert_same(whole / "2epoch.pth", stopped / "2epoch.pth")
    own = [load_learner(exp, 1, 2) for exp in (whole, stopped)]
    assert own[0] is not None and own[1] is not None
    assert own[0]["scheduler"] == own[1]["scheduler"]
    losses = [state["reported"]["stats"]["loss"] for state in own]
    assert losses[0] == losses[1]


class StopAfterOthers:
    """An injection: SIGTERM to learner 1 in a step, once `others` utterances are begun.

    The other learners wait in that step for learner 1, because they could take all
    batches before it is so far. If `others` is all, learner 1 takes none after that,
    and can be the only one that still trains.
    """

    def __init__(self, folder: Path, step: int, others: int) -> None:
        self.folder, self.step, self.others = folder, step, others

    def __call__(self, rank: int) -> None:
        from espnet_distopt.session import Session

        SignalAt(self.step, 1, signal.SIGTERM)(rank)
        step, arrived = Session.step, self.folder / "arrived"

        def may_go_on() -> bool:
            if rank != 1:
                return arrived.exists()
            return read_batches(self.folder).total() >= self.others

        def waiting(session: Session) -> None:
            if session.learner.steps + 1 == self.step:
                if rank == 1:
                    arrived.touch()
                while not may_go_on():
                    time.sleep(0.01)
            step(session)

        Session.step = waiting  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("algorithm", "size", "accum_grad"),
    [("adpsgd", 2, 1), ("adpsgd", 2, 3), ("hadpsgd", 4, 1)],
)
def test_stopped_in_an_epoch_gossip_trains_on_every_batch_once(
    algorithm: str, size: int, accum_grad: int, data: Path, tmp_path: Path
) -> None:
    exp, log = tmp_path / "exp", tmp_path / "log"
    accumulate = ["--accum_grad", str(accum_grad)]
    options = options_of(algorithm, data, exp, "--max_epoch", "1", *accumulate)
    # With three batches a step, the other learner is through with all when this stops.
    others = 40 if accum_grad > 1 else 0
    injection = RecordBatches(tmp_path, StopAfterOthers(tmp_path, 2, others))
    codes = train(options, size, tmp_path / "meet1", log, injection)
    assert codes == [75] * size, read(log)
    assert others <= read_batches(tmp_path).total() <= 40
    resumed = RecordBatches(tmp_path)
    codes = train(options, size, tmp_path / "meet2", log, resumed)
    assert codes == [0] * size, read(log)
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
    whole, stopped, log = (
        whole_runs("allreduce"),
        tmp_path / "stopped",
        tmp_path / "log",
    )
    options = options_of("allreduce", data, stopped, "--max_epoch", "1")
    for number, step in enumerate((3, 7), 1):
        injection = SignalAt(step, None, signal.SIGUSR1)
        codes = train(options, 2, tmp_path / f"meet{number}", log, injection)
        assert codes == [75, 75], read(log)
    assert train(options, 2, tmp_path / "meet3", log) == [0, 0], read(log)
    assert_same(whole / "1epoch.pth", stopped / "1epoch.pth")


def test_another_number_of_learners_repeats_the_epoch(
    data: Path, tmp_path: Path
) -> None:
    exp, log = tmp_path / "exp", tmp_path / "log"
    options = options_of("adpsgd", data, exp, "--max_epoch", "1")
    injection = SignalAt(3, None, signal.SIGUSR1)
    assert train(options, 2, tmp_path / "meet1", log, injection) == [75, 75], read(log)
    record = RecordBatches(tmp_path)
    assert train(options, 1, tmp_path / "meet2", log, record) == [0], read(log)
    assert "no common state of all 1 learners within epoch 1" in read(log)
    assert read_batches(tmp_path).total() == 40


def test_states_of_different_stops_are_not_mixed(data: Path, tmp_path: Path) -> None:
    exp, log = tmp_path / "exp", tmp_path / "log"
    options = options_of("allreduce", data, exp, "--max_epoch", "1")
    injection = SignalAt(3, None, signal.SIGUSR1)
    assert train(options, 2, tmp_path / "meet1", log, injection) == [75, 75]
    (exp / "distopt" / "learner1.1epoch.pth").unlink()
    assert train(options, 2, tmp_path / "meet2", log) == [0, 0], read(log)
    assert "the epoch is repeated" in read(log)


def test_killed_in_validation_only_the_validation_is_repeated(
    data: Path, tmp_path: Path, whole_runs: Callable[..., Path]
) -> None:
    whole, killed, log = whole_runs("bmuf_adam"), tmp_path / "killed", tmp_path / "log"
    options = options_of("bmuf_adam", data, killed)
    injection = KillInValidation(2)
    assert train(options, 2, tmp_path / "meet2", log, injection) == [-9, -9]
    assert not (killed / "2epoch.pth").exists()
    assert train(options, 2, tmp_path / "meet3", log) == [0, 0], read(log)
    assert "epoch 2/2  goes on with its validation" in read(log)
    assert_same(whole / "2epoch.pth", killed / "2epoch.pth")


class KillInValidation:
    """An injection: SIGKILL in an epoch's validation, once the states are written."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch

    def __call__(self, rank: int) -> None:
        from espnet_distopt.espnet.training.trainer import DistoptTrainer

        validate = DistoptTrainer.validate_one_epoch

        def killing(*args: object, **kwargs: object) -> None:
            options: Any = kwargs["options"]
            reporter: Any = kwargs["reporter"]
            if reporter.get_epoch() == self.epoch:
                options.run.saved.write()
                os.kill(os.getpid(), signal.SIGKILL)
            validate(*args, **kwargs)

        DistoptTrainer.validate_one_epoch = killing  # type: ignore[method-assign]


def test_stock_training_stops_and_repeats_the_epoch(data: Path, tmp_path: Path) -> None:
    exp, log = tmp_path / "exp", tmp_path / "log"
    options = arguments(data, exp, "--max_epoch", "1")
    injection = TermAfterBatches(3)
    assert train(options, 1, tmp_path / "meet1", log, injection) == [75], read(log)
    assert "the epoch will be repeated" in read(log)
    assert train(options, 1, tmp_path / "meet2", log) == [0], read(log)
    assert (exp / "1epoch.pth").exists()


class TermAfterBatches:
    """An injection: SIGTERM to oneself after some batches."""

    def __init__(self, batches: int) -> None:
        self.batches = batches

    def __call__(self, rank: int) -> None:
        from espnet_distopt.espnet.training.progress import Progress

        step = Progress.step

        def signalling(progress: Progress, number: int, *rest: object) -> None:
            if number == self.batches:
                os.kill(os.getpid(), signal.SIGTERM)
            step(progress, number, *rest)  # type: ignore[arg-type]

        Progress.step = signalling  # type: ignore[method-assign]


def test_a_kill_after_a_stop_loses_nothing_that_was_saved(
    data: Path, tmp_path: Path
) -> None:
    whole, killed, log = tmp_path / "whole", tmp_path / "killed", tmp_path / "log"
    options = options_of("local_sgd", data, whole, "--max_epoch", "1")
    assert train(options, 2, tmp_path / "meet0", log) == [0, 0], read(log)
    options = options_of("local_sgd", data, killed, "--max_epoch", "1")
    injection = SignalAt(4, 0, signal.SIGUSR1)
    assert train(options, 2, tmp_path / "meet1", log, injection) == [75, 75], read(log)
    codes = train(options, 2, tmp_path / "meet2", log, kill_at_step(8))
    assert codes == [-9, -9]
    assert train(options, 2, tmp_path / "meet3", log) == [0, 0], read(log)
    assert_same(whole / "1epoch.pth", killed / "1epoch.pth")


class SignalGroup:
    """An injection: a signal to one's process group in the second step.

    Args:
        number: The signal.
        readers: A file that receives the numbers of the processes that read the data.
    """

    def __init__(self, number: int, readers: Path) -> None:
        self.number, self.readers = number, readers

    def __call__(self, rank: int) -> None:
        from espnet_distopt.session import Session

        # As in a command; the children of a fork server have another default.
        multiprocessing.set_start_method("fork", force=True)
        step = Session.step

        def signalling(session: Session) -> None:
            if session.learner.steps == 1:
                pids = [str(child.pid) for child in multiprocessing.active_children()]
                self.readers.write_text(" ".join(pids))
                os.killpg(os.getpgrp(), self.number)
                time.sleep(0.2)  # So that the end of a reader is noticed.
            step(session)

        Session.step = signalling  # type: ignore[method-assign]


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
    readers, log = tmp_path / "readers", tmp_path / "log"
    options = arguments(data, tmp_path / "exp", "--distopt", "allreduce")
    options += ["--num_workers", "1"]
    injection = SignalGroup(number, readers)
    assert train(options, 1, tmp_path / "meet", log, injection) == [code], read(log)
    saved = load_learner(tmp_path / "exp", 0, 1)
    assert (saved is not None) == (code == 75)
    [reader] = map(int, readers.read_text().split())
    deadline = time.monotonic() + 60  # PyTorch's look for their parent once in 5 s.
    while lives(reader) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not lives(reader)


LAUNCHERS = {
    "torchrun": ["torch.distributed.run", "--standalone", "--nproc_per_node", "2"],
    "launch": ["espnet_distopt.bin.launch", "--nproc", "2"],
}


def start(launcher: str, options: list[str], log: Path) -> subprocess.Popen[bytes]:
    launch = [sys.executable, "-m", *LAUNCHERS[launcher]]
    command = [*launch, "-m", "espnet_distopt.bin.asr_train"]
    with log.open("ab") as file:
        return subprocess.Popen(
            [*command, *options],
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


def wait_for(condition: object, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():  # type: ignore[operator]
            return True
        time.sleep(0.1)
    return False


@pytest.mark.processes
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_ctrl_c_ends_all_processes_and_leaves_a_state_that_resumes(
    launcher: str,
    tmp_path: Path,
) -> None:
    write_toy_data(tmp_path)
    exp, log = tmp_path / "exp", tmp_path / "log"
    options = arguments(tmp_path, exp, "--distopt", "adpsgd")
    endless = start(launcher, [*options, "--max_epoch", "100000"], log)
    try:
        assert wait_for((exp / "distopt" / "checkpoint.pth").exists, 90), (
            log.read_text()
        )
        os.killpg(endless.pid, signal.SIGINT)
        endless.wait(40)
        assert endless.returncode != 0
        if launcher == "launch":
            assert endless.returncode == 130
            said = "stopped by Ctrl-C, and its state is saved"
            assert said in log.read_text()
        assert wait_for(lambda: group_is_empty(endless.pid), 20)
    finally:
        if not group_is_empty(endless.pid):
            os.killpg(endless.pid, signal.SIGKILL)
    assert is_whole(exp / "checkpoint.pth") or is_whole(exp / "distopt/checkpoint.pth")
    done = max(
        int(p.name.split(".")[1][:-5]) for p in exp.glob("distopt/learner0.*epoch.pth")
    )
    # The resumed run needs no launcher, and these processes start at once.
    options += ["--max_epoch", str(done + 1)]
    assert train(options, 2, tmp_path / "meet", log) == [0, 0], read(log)
    assert "The training was resumed using" in read(log)
    assert is_whole(exp / f"{done + 1}epoch.pth")

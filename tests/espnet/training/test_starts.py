"""Learners start in any order, and it is always the same run.

Very many random starts, and each step of each learner in turn: `STARTS=1000 pytest
tests/espnet/training/test_starts.py`. With `FIRST_START=NUMBER STARTS=1` it is the
random start of that number.
"""

import multiprocessing
import os
import re
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from threading import Lock
from typing import Any

import pytest

from tests.espnet.toy import arguments, write_toy_data
from tests.espnet.training.starts import (
    ALGORITHMS,
    RENDEZVOUS,
    STEPS,
    Delay,
    Start,
    begin,
    drawn,
    equal,
    every_step,
    files,
)

MANY = int(os.environ.get("STARTS", "0"))

AT_ONCE = 3
"""So many runs are started at a time: their learners mostly wait."""

REPEATABLE = ("none", "allreduce", "bmuf")
"""Algorithms that give the same model, bit for bit, in each run."""


class Toy:
    """A small data set, and how trainings on it end when nothing is late.

    Args:
        root: a folder for all that.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._ended: dict[tuple[str, int, bool], dict[str, Any]] = {}
        self._locks = defaultdict[tuple[str, int], Lock](Lock)
        write_toy_data(root, 12, 9)

    def options(self, exp: Path, *more: str) -> list[str]:
        """Return the options of a training in a directory."""
        return arguments(self.root, exp, "--batch_size", "3", *more)

    def ended(self, algorithm: str, size: int, resumes: bool = False) -> dict[str, Any]:
        """Return the files of a training that no learner was late for."""
        key = algorithm, size, resumes
        with self._locks[algorithm, size]:
            if key not in self._ended:
                folder = self.root / f"{algorithm}.{size}.{resumes}"
                folder.mkdir()
                exp, begun = folder / "exp", self.begun(algorithm, size)
                if resumes:
                    self._train(begun, algorithm, size, "--max_epoch", "1")
                    shutil.copytree(begun, exp)
                self._train(exp, algorithm, size)
                self._ended[key] = files(exp)
        return self._ended[key]

    def begun(self, algorithm: str, size: int) -> Path:
        """Return the directory of a training that has stopped after its first epoch."""
        return self.root / f"{algorithm}.{size}.begun" / "exp"

    def _train(self, exp: Path, algorithm: str, size: int, *more: str) -> None:
        exp.parent.mkdir(exist_ok=True)
        (exp.parent / "meet").unlink(missing_ok=True)
        start = Start((), algorithm, "file", lazy=False, size=size)
        run = begin(start, self.options(exp, *more), exp.parent)
        assert run.end() == [0] * size, run.printed

    def same_run(self, start: Start, folder: Path) -> str:
        """Start learners; return what is wrong with what comes of it, or nothing."""
        expected = self.ended(start.algorithm, start.size, start.resumes)
        folder.mkdir()
        exp = folder / "exp"
        if start.resumes:
            shutil.copytree(self.begun(start.algorithm, start.size), exp)
        run = begin(start, self.options(exp), folder)
        codes = run.end()
        if codes != [0] * start.size:
            return f"{start}: exit codes {codes}\n{run.printed}"
        found = files(exp)
        if found["names"] != expected["names"]:
            return f"{start}: {sorted(found['names'] ^ expected['names'])}"
        same = equal(found["model"], expected["model"])
        if start.algorithm in REPEATABLE and not same:
            return f"{start}: another model"
        shutil.rmtree(folder)
        return ""


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Toy:
    return Toy(tmp_path_factory.mktemp("starts"))


def all_the_same(toy: Toy, starts: Sequence[Start], folder: Path) -> None:
    """Start each, some at a time; fail with all that are not the same run."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        folders = [folder / str(number) for number in range(len(starts))]
        wrong = [each for each in pool.map(toy.same_run, starts, folders) if each]
    assert not wrong, f"{len(wrong)} of {len(starts)} starts:\n" + "\n".join(wrong)


def in_turn(seconds: float) -> list[Start]:
    """Return a start for each step of each learner; rendezvous and the rest vary."""
    ways = list(product(ALGORITHMS, RENDEZVOUS, (True, True, False)))
    return [
        Start((delay,), *ways[5 * number % len(ways)], resumes=number % 3 > 0)
        for number, delay in enumerate(every_step(2, seconds))
    ]


def test_a_late_step_of_any_learner(toy: Toy, tmp_path: Path) -> None:
    """Each step once, of one learner, before or after it; or all with `STARTS`."""
    starts, steps = in_turn(0.4), len(STEPS)
    once = [2 * (s % 2 * steps + s) + s // 2 % 2 for s in range(steps)]
    all_the_same(toy, starts if MANY else [starts[n] for n in once], tmp_path)


LATE = (Delay(1, "options", "before", 1.5),)
WHILE_WRITTEN = (
    Delay(0, "config", "before", 1.5),
    Delay(1, "options", "before", 0.7),
)
"""Learner 0 stops within config.yaml, and learner 1 comes meanwhile."""


@pytest.mark.parametrize("delays", [LATE, WHILE_WRITTEN], ids=["late", "config"])
def test_a_learner_finds_the_directory_in_use(
    toy: Toy, tmp_path: Path, delays: tuple[Delay, ...]
) -> None:
    starts = [Start(delays, rendezvous=each) for each in RENDEZVOUS]
    all_the_same(toy, starts, tmp_path)


def test_random_starts(toy: Toy, tmp_path: Path) -> None:
    all_the_same(toy, [drawn(seed) for seed in range(6)], tmp_path)


@pytest.mark.thorough
@pytest.mark.timeout(36000)
def test_very_many_random_starts(toy: Toy, tmp_path: Path) -> None:
    first, count = int(os.environ.get("FIRST_START", "6")), MANY or 24
    all_the_same(toy, [drawn(first + n) for n in range(count)], tmp_path)


@dataclass(frozen=True)
class Stay:
    """Lets a run, once it trains, do so until a file is there."""

    file: Path

    def __call__(self) -> None:
        from espnet_distopt.espnet.training import one_run
        from espnet_distopt.session import Session

        one_run.PATIENCE = 0.2
        take = one_run.RunLock.take
        step = Session.step

        def stay(session: Session) -> None:
            while not self.file.exists():
                time.sleep(0.02)
            step(session)

        one_run.RunLock.take = lambda lock, patience=0.2: take(lock, patience)
        Session.step = stay


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize(
    "late",
    [(), ((0, "init"),), ((1, "init"),), ((0, "lock"),), ((1, "lock"),), ((1, "run"),)],
)
def test_of_two_runs_in_one_directory_one_trains(
    toy: Toy, tmp_path: Path, size: int, late: tuple[tuple[int, str], ...]
) -> None:
    """`late` names a step that takes longer in a run."""
    exp, file = tmp_path / "exp", tmp_path / "go"
    runs = []
    for number in range(2):
        steps = [step for of, step in late if of == number]
        delays = tuple(Delay(0, step, "before", 0.5) for step in steps)
        (tmp_path / str(number)).mkdir()
        start = Start(delays, "bmuf", "launcher", size=size)
        where = tmp_path / str(number)
        runs.append(begin(start, toy.options(exp), where, Stay(file)))
    ended = _first_that_ends(runs)
    refused = runs.pop(ended)
    codes = refused.end()
    file.touch()
    assert codes == [2] * size, refused.printed
    assert runs[0].end() == [0] * size, runs[0].printed
    line = f"error: {exp}: another run trains there (process {runs[0].processes[0].pid}"
    assert refused.printed.count(line) == 1, refused.printed
    assert "Traceback" not in refused.printed
    assert files(exp)["names"] == toy.ended("bmuf", 2)["names"]


def _first_that_ends(runs: Sequence[Any]) -> int:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        for number, run in enumerate(runs):
            if any(code is not None for code in run.codes):
                return number
        time.sleep(0.02)
    pytest.fail("\n".join(run.printed for run in runs))


class Without:
    """Lets a learner's machine lack a file, or have another one of that name."""

    def __init__(self, rank: int, path: Path, text: str | None = None) -> None:
        self.rank, self.path, self.text = rank, path, text

    def __call__(self) -> None:
        from espnet_distopt.errors import InputError
        from espnet_distopt.espnet.training import same_training

        read, text = same_training._read, self.text

        def reading(tokens: Any) -> Any:
            if tokens != str(self.path):
                return read(tokens)
            if text is None:
                raise InputError(f"{tokens}: No such file or directory")
            return text.split()

        if os.environ["RANK"] == str(self.rank):
            same_training._read = reading


@pytest.mark.parametrize("late", [0, 1])
@pytest.mark.parametrize("text", [None, "<blank> <unk> mid low high <sos/eos>"])
def test_a_machine_without_the_tokens_says_so(
    toy: Toy, tmp_path: Path, late: int, text: str | None
) -> None:
    """Nobody trains, and nothing is written that would look like a training."""
    exp, tokens = tmp_path / "exp", toy.root / "tokens.txt"
    start = Start((Delay(late, "init", "before", 0.5),))
    run = begin(start, toy.options(exp), tmp_path, Without(1, tokens, text))
    assert run.end() == [2, 2], run.printed
    first, second = ((tmp_path / f"log.{rank}").read_text() for rank in (0, 1))
    assert "Traceback" not in first + second
    if text is None:
        missing = f"{tokens}: No such file or directory\n"
        assert second.endswith(f"error: {missing}")
        assert re.search(rf"error: learner 1 on \S+: {re.escape(missing)}$", first)
    else:
        assert f"error: learner 1 has {tokens} of digest" in first
        assert "error" not in second
    assert not (exp / "config.yaml").exists()


def test_wrong_options_are_told_by_each_learner(toy: Toy, tmp_path: Path) -> None:
    """A launcher would end learner 1 when learner 0 has ended, a moment before."""
    options = toy.options(tmp_path / "exp", "--distopt_conf", "perod=3")
    run = begin(Start(algorithm="bmuf"), options, tmp_path)
    assert run.end() == [2, 2], run.printed
    for rank in (0, 1):
        lines = (tmp_path / f"log.{rank}").read_text().splitlines()
        assert lines[-1].startswith("error: ") and "perod" in lines[-1]


def start_by_espnet() -> None:
    """Let ESPnet start its own learners here, on CPUs, and quickly."""
    import torch

    from espnet_distopt.espnet.training import tasks

    main_worker = tasks.DistoptASRTask.main_worker.__func__

    def on_cpus(task: type, args: Any) -> None:
        args.ngpu, args.dist_backend = 0, "gloo"
        main_worker(task, args)

    tasks.DistoptASRTask.main_worker = classmethod(on_cpus)
    tasks.check_gpus = lambda _: None
    torch.multiprocessing.get_context = lambda _: multiprocessing.get_context("fork")


def test_learners_that_espnet_starts(toy: Toy, tmp_path: Path) -> None:
    exp, alone = tmp_path / "exp", Start((), "bmuf", size=1)
    options = toy.options(exp, "--ngpu", "2", "--multiprocessing_distributed", "true")
    run = begin(alone, options, tmp_path, start_by_espnet)
    assert run.end() == [0], run.printed
    found, ended = files(exp), toy.ended("bmuf", 2)
    assert found["names"] == ended["names"]
    assert equal(found["model"], ended["model"])
    (tmp_path / "log.0").unlink()
    options += ["--frontend_conf", "hop_length=80"]
    run = begin(alone, options, tmp_path, start_by_espnet)
    assert run.end() == [2], run.printed
    assert run.printed.count("error: ") == 1 and "hop_length: 160" in run.printed
    assert "Traceback" not in run.printed


PROGRAM = "tests.espnet.training.starts"


@pytest.mark.parametrize(
    "launcher",
    [
        pytest.param(["espnet_distopt.bin.launch", "--nproc", "2", "-m"], id="launch"),
        pytest.param(
            ["torch.distributed.run", "--standalone", "--nproc_per_node", "2", "-m"],
            id="torchrun",
            marks=pytest.mark.thorough,
        ),
    ],
)
def test_a_launcher_s_learners_come_seconds_apart(
    toy: Toy, tmp_path: Path, launcher: list[str]
) -> None:
    exp = tmp_path / "exp"
    options = toy.options(exp, "--distopt", "bmuf")
    late = {"DELAYS": "1 init before 3,0 config before 2", "TORCH_GLOO_LAZY_INIT": "1"}
    done = subprocess.run(
        [sys.executable, "-m", *launcher, PROGRAM, *options],
        env=os.environ | {"OMP_NUM_THREADS": "1"} | late,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    ended = toy.ended("bmuf", 2)
    found = files(exp)
    assert found["names"] == ended["names"]
    assert equal(found["model"], ended["model"])

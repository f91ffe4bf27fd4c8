"""Start-ups of a small ESPnet training in which steps of some learners take longer.

`python -m tests.espnet.training.starts OPTIONS` is `asr_train` with the delays that the
variable `DELAYS` lists for its rank, as in `1 init before 0.5, 0 model after 2`.
"""

import functools
import importlib
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from inspect import getattr_static
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch.distributed as dist

from espnet_distopt.bin import asr_train
from espnet_distopt.launch.plan import Plan
from tests.espnet.training.learners import become_learner, load, read
from tests.fork_server import PRELOAD, context
from tests.ports import free_ports

PRELOAD.extend(["espnet_distopt.bin.asr_train", "tests.espnet.toy"])

_TRAINING = "espnet_distopt.espnet.training"

STEPS = {
    "options": f"{_TRAINING}.tasks:settle",
    "main": f"{_TRAINING}.tasks:DistoptASRTask.main_worker",
    "init": "espnet2.train.distributed_utils:DistributedOption.init_torch_distributed",
    "admission": f"{_TRAINING}.tasks:start_together",
    "lock": f"{_TRAINING}.one_run:RunLock.take",
    "note": f"{_TRAINING}.tasks:keep_to_one_training",
    "model": "espnet2.tasks.asr:ASRTask.build_model",
    "config": "espnet2.tasks.abs_task:yaml_no_alias_safe_dump",
    "data": "espnet2.tasks.abs_task:AbsTask.build_iter_factory",
    "run": f"{_TRAINING}.trainer:DistoptTrainer.run",
    "repair": f"{_TRAINING}.run:Run.prepare_checkpoint",
    "barrier": "torch.distributed:barrier",
    "resume": f"{_TRAINING}.trainer:DistoptTrainer.resume",
    "ddp": "torch.nn.parallel:DistributedDataParallel.__init__",
    "epoch": f"{_TRAINING}.trainer:DistoptTrainer.train_one_epoch",
    "session": f"{_TRAINING}.run:Run.open_session",
    "liveness": "espnet_distopt.distributed.liveness:Liveness.__init__",
    "groups": "espnet_distopt.distributed.groups:Groups.__init__",
    "connect": "torch.distributed:ProcessGroupGloo.__init__",
    "step": "espnet_distopt.session:Session.step",
    "consensus": "espnet_distopt.session:Session.enter_consensus",
    "validation": f"{_TRAINING}.trainer:DistoptTrainer.validate_one_epoch",
}
"""The steps of a learner's start, in their order, and the functions that make them.

`config` is that ESPnet writes config.yaml: a delay before it is one in the middle."""

_ONE_AT_A_TIME = threading.Lock()
"""Of two threads of the tests that ask for an exit code, multiprocessing tells one that
it is 255."""

ALGORITHMS = ("none", "allreduce", "bmuf", "adpsgd")
RENDEZVOUS = ("file", "env", "tcp", "launcher")
"""With `file` and `launcher` the store is outside learner 0, as torchrun's is."""


@dataclass(frozen=True)
class Delay:
    """A delay of one learner, "before" or "after" its first call of a step."""

    rank: int
    step: str
    side: str
    seconds: float

    def __str__(self) -> str:
        return f"{self.rank} {self.step} {self.side} {self.seconds:g}"


@dataclass(frozen=True)
class Start:
    """How learners start.

    Attributes:
        lazy: whether gloo connects only when it must, as NCCL does.
        resumes: whether the training goes on after its first epoch.
    """

    delays: tuple[Delay, ...] = ()
    algorithm: str = "bmuf"
    rendezvous: str = "launcher"
    lazy: bool = True
    resumes: bool = True
    size: int = 2

    def __str__(self) -> str:
        lazy = "lazy" if self.lazy else "eager"
        begin = "resumed" if self.resumes else "new"
        how = f"{self.algorithm} {self.rendezvous} {lazy} {begin} {self.size}"
        return f"{how}: {', '.join(map(str, self.delays)) or 'no delay'}"


def drawn(seed: int) -> Start:
    """Return a random start with up to four delays."""
    draw = random.Random(seed)
    size = draw.choice([2, 2, 2, 3])
    steps = list(STEPS)
    delays = tuple(
        Delay(
            draw.randrange(size),
            draw.choice(steps),
            draw.choice(["before", "after"]),
            draw.choice([0.05, 0.2, 0.5, 1.0]),
        )
        for _ in range(draw.randint(1, 4))
    )
    return Start(
        delays,
        draw.choice(ALGORITHMS),
        draw.choice(RENDEZVOUS),
        draw.random() < 0.7,
        draw.random() < 0.6,
        size,
    )


def slow_down(delays: tuple[Delay, ...]) -> None:
    """Let the steps of this process take longer."""
    for delay in delays:
        module, _, path = STEPS[delay.step].partition(":")
        owner: Any = importlib.import_module(module)
        *outer, name = path.split(".")
        for each in outer:
            owner = getattr(owner, each)
        _replace(owner, name, delay)


def _replace(owner: Any, name: str, delay: Delay) -> None:
    raw = getattr_static(owner, name)
    method = isinstance(raw, classmethod | staticmethod)
    function: Callable[..., Any] = raw.__func__ if method else raw
    calls: list[None] = []

    @functools.wraps(function)
    def slowed(*args: Any, **kwargs: Any) -> Any:
        calls.append(None)
        first = len(calls) == 1
        if first and delay.step == "config" and delay.side == "before":
            args = args[0], _Halting(args[1], delay.seconds)
        elif first and delay.side == "before":
            time.sleep(delay.seconds)
        try:
            return function(*args, **kwargs)
        finally:
            if first and delay.side == "after":
                time.sleep(delay.seconds)

    setattr(owner, name, type(raw)(slowed) if method else slowed)


class _Halting:
    """A stream that stops for a while within the list of tokens."""

    def __init__(self, stream: Any, seconds: float) -> None:
        self._stream, self._seconds = stream, seconds

    def write(self, text: str) -> None:
        """Write a text."""
        self._stream.write(text)
        if "<unk>" in text:
            self.flush()
            time.sleep(self._seconds)

    def flush(self) -> None:
        """Let others read what has been written."""
        self._stream.flush()


@dataclass
class Run:
    """Learners of one run, which have been started.

    Attributes:
        log: the path before `.RANK` of what they print.
        store: what they meet in, if this process keeps it.
    """

    start: Start
    log: Path
    processes: list[BaseProcess]
    store: Any = field(repr=False)

    def end(self, seconds: float = 60) -> list[int | None]:
        """Return the exit codes; a learner that has not ended in time has None."""
        deadline = time.monotonic() + seconds
        while None in self.codes and time.monotonic() < deadline:
            time.sleep(0.02)
        codes = self.codes
        with _ONE_AT_A_TIME:
            for process in self.processes:
                process.kill()
                process.join()
        return codes

    @property
    def codes(self) -> list[int | None]:
        """The exit codes so far."""
        with _ONE_AT_A_TIME:
            return [process.exitcode for process in self.processes]

    @property
    def printed(self) -> str:
        return read(self.log)


def begin(
    start: Start, options: list[str], folder: Path, then: Callable[[], None] = int
) -> Run:
    """Start learners, which come from the fork server and so need no second each.

    The options are without that of the algorithm. They meet in an empty folder and
    print there, and each calls `then` before it trains.
    """
    store, size = None, start.size
    if start.rendezvous == "launcher":
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        port = store.port
    else:
        [port] = free_ports(1)
    processes = []
    for rank in range(size):
        environment, more = _meeting(start.rendezvous, rank, size, port, folder)
        if start.lazy:
            environment["TORCH_GLOO_LAZY_INIT"] = "1"
        if start.algorithm != "none":
            more += ["--distopt", start.algorithm]
        more += ["--multiprocessing_distributed", "false"]
        delays = tuple(each for each in start.delays if each.rank == rank)
        process = context().Process(
            target=_learn,
            args=(environment, [*more, *options], folder / f"log.{rank}", delays, then),
        )
        with _ONE_AT_A_TIME:
            process.start()
        processes.append(process)
    return Run(start, folder / "log", processes, store)


def _meeting(
    rendezvous: str, rank: int, size: int, port: int, folder: Path
) -> tuple[dict[str, str], list[str]]:
    """Return the variables and options by which a learner meets the others."""
    if size == 1:
        return {}, []
    if rendezvous == "launcher":
        plan = Plan((size,), 0, "127.0.0.1", port, "here")
        return dict(plan.variables(rank, 0, port)), []
    options = ["--dist_world_size", str(size), "--dist_rank", str(rank)]
    if rendezvous == "env":
        where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        return {**where, "RANK": str(rank), "WORLD_SIZE": str(size)}, []
    at = f"file://{folder}/meet" if rendezvous == "file" else f"tcp://127.0.0.1:{port}"
    return {}, [*options, "--dist_init_method", at]


def _learn(
    environment: dict[str, str],
    options: list[str],
    log: Path,
    delays: tuple[Delay, ...],
    then: Callable[[], None],
) -> None:
    become_learner(log)
    os.environ.pop("RANK", None)
    os.environ |= environment
    slow_down(delays)
    then()
    asr_train.main(options)


def files(exp: Path) -> dict[str, Any]:
    """Return the names of an experiment's files, and its model's parameters."""
    names = {str(path.relative_to(exp)) for path in exp.rglob("*")}
    assert not [name for name in names if name.endswith(".part")]
    own = {name for name in names if not name.startswith("distopt/")}
    return {"names": own, "model": load(exp / "2epoch.pth")}


def equal(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Return whether two trainings have the same parameters, bit for bit."""
    return one.keys() == other.keys() and all(
        bool((one[name] == other[name]).all()) for name in one
    )


def every_step(size: int, seconds: float) -> Iterator[Delay]:
    """Yield a delay before and after each step of each learner, in turn."""
    for rank in range(size):
        for step in STEPS:
            for side in ("before", "after"):
                yield Delay(rank, step, side, seconds)


if __name__ == "__main__":
    _found = [each.split() for each in os.environ.get("DELAYS", "").split(",") if each]
    _rank = os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0"))
    slow_down(
        tuple(
            Delay(int(rank), step, side, float(seconds))
            for rank, step, side, seconds in _found
            if rank == _rank
        )
    )
    asr_train.main()

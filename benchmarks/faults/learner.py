"""One learner of the tormented training: a plain loop with a session of adpsgd.

usage: learner.py DIR

DIR/settings.json says how to train (`settings.Settings`). Each process writes what it
does to DIR/RANK.INCARNATION.jsonl, one line for each event, in one write each: so a
process that is killed leaves whole lines. When the file DIR/end is there, the learners
agree on it at the end of their epoch, and make the last epochs with a falling learning
rate.

A small network follows another. Each batch is drawn anew, and is a function of the
seed, the epoch and its number. So a training without faults sees the very same batches,
and no batch is seen twice.
"""

import json
import os
import sys
import time
from pathlib import Path

DIRECTORY = Path(sys.argv[1])
RANK, INCARNATION = int(os.environ["RANK"]), int(os.environ["DISTOPT_INCARNATION"])


class Record:
    """The file of this process's events, each with its name and its time."""

    def __init__(self) -> None:
        path = DIRECTORY / f"{RANK}.{INCARNATION}.jsonl"
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def note(self, event: str, *values: object) -> None:
        """Write down an event; any thread may call this."""
        line = json.dumps([event, round(time.monotonic(), 4), *values])
        os.write(self._file, line.encode() + b"\n")


record = Record()
record.note("process", os.getpid())  # Before the imports, which take seconds.

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import faulthandler  # noqa: E402
import signal  # noqa: E402

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from emulated.learners import enter  # noqa: E402
from torch import Tensor, nn  # noqa: E402

from espnet_distopt import Session, WorkQueue  # noqa: E402
from espnet_distopt.algorithms.gossip.adpsgd import Adpsgd  # noqa: E402
from espnet_distopt.core.effects import Exchange, Program  # noqa: E402
from espnet_distopt.core.learner import Learner  # noqa: E402
from espnet_distopt.files.writing import whole_file  # noqa: E402
from faults.run import Settings  # noqa: E402

WIDTH = 16
BATCH = 32
NOISE = 0.3
HELD_OUT = 4096
RATE = 0.003


def network(hidden: int, seed: int) -> nn.Sequential:
    """Return a network of two hidden layers, whose start is a function of the seed."""
    generator = torch.Generator().manual_seed(seed)
    layers = nn.Sequential(
        nn.Linear(WIDTH, hidden),
        nn.Tanh(),
        nn.Linear(hidden, hidden),
        nn.Tanh(),
        nn.Linear(hidden, 1),
    )
    with torch.no_grad():
        for layer in layers:
            if isinstance(layer, nn.Linear):
                fan_in = layer.in_features
                layer.weight.normal_(0, 1.5 * fan_in**-0.5, generator=generator)
                layer.bias.normal_(0, 0.1, generator=generator)
    return layers


class Problem:
    """The batches of one seed, and the loss of a model on data that it never sees.

    Args:
        seed: the seed of the batches; the teacher and the held-out data are the same
            for all seeds, so that their losses can be compared.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._teacher = network(48, seed=1)
        self._held_out = self._draw(torch.Generator().manual_seed(2), HELD_OUT)

    def batch(self, epoch: int, item: int) -> tuple[Tensor, Tensor]:
        """Return the inputs (BATCH, WIDTH) and targets (BATCH, 1) of a batch."""
        number = (self._seed * 100_003 + epoch) * 1_000_003 + item
        return self._draw(torch.Generator().manual_seed(number), BATCH)

    @torch.no_grad()
    def _draw(self, generator: torch.Generator, size: int) -> tuple[Tensor, Tensor]:
        inputs = torch.randn(size, WIDTH, generator=generator)
        noise = torch.randn(size, 1, generator=generator)
        return inputs, self._teacher(inputs) + NOISE * noise

    @torch.no_grad()
    def loss(self, model: nn.Module) -> float:
        """Return the mean squared error on the held-out data."""
        inputs, targets = self._held_out
        return float((model(inputs) - targets).square().mean())


def observe_exchanges() -> None:
    """Note each exchange that this learner applies, with its partner."""
    gossip = Adpsgd.gossip

    def observed(self: Adpsgd, learner: Learner) -> Program:
        program, result = gossip(self, learner), None
        while True:
            try:
                effect = program.send(result)
            except StopIteration:
                return
            result = yield effect
            if isinstance(effect, Exchange) and result is not None:
                record.note("exchange", effect.peer)

    Adpsgd.gossip = observed  # type: ignore[method-assign]


class Training:
    """The loop of one learner.

    Args:
        settings: how to train.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.problem = Problem(settings.seed)
        self.model = network(32, seed=1000 + settings.seed)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=RATE)
        self._version = -1

    def run(self) -> None:
        """Train to the end, from wherever the others are."""
        record.note("session")
        heartbeat = self.settings.heartbeat
        with Session(
            self.model, self.optimizer, "adpsgd", heartbeat_seconds=heartbeat
        ) as session:
            epoch = session.first_epoch
            record.note("begun", epoch, session.learner.steps)
            while epoch < (last := self._last_epoch()):
                for group in self.optimizer.param_groups:
                    group["lr"] = RATE * min(
                        1.0, (last - epoch) / self.settings.cooling
                    )
                self._epoch(session, epoch)
                epoch += 1
        record.note("ended")

    def _last_epoch(self) -> int:
        """Return how many epochs there are; very many until that is agreed on."""
        agreed = DIRECTORY / "epochs"
        return int(agreed.read_text()) if agreed.exists() else self.settings.epochs

    def _epoch(self, session: Session, epoch: int) -> None:
        record.note("epoch", epoch)
        queue = WorkQueue(session, self.settings.items)
        for (item,) in queue.read(lambda numbers: [(n,) for n in numbers]):
            self._step(session, epoch, item)
        with session.consensus() as distance:
            loss = self.problem.loss(self.model)
            asked = session.mean(float((DIRECTORY / "end").exists()))
        record.note("consensus", epoch, loss, distance)
        if asked and not (DIRECTORY / "epochs").exists():
            agreed = epoch + 1 + self.settings.cooling
            with whole_file(DIRECTORY / "epochs") as new:
                new.write_text(str(agreed))

    def _step(self, session: Session, epoch: int, item: int) -> None:
        inputs, targets = self.problem.batch(epoch, item)
        self.optimizer.zero_grad()
        (self.model(inputs) - targets).square().mean().backward()
        time.sleep(self.settings.step_seconds)
        self.optimizer.step()
        session.step()
        record.note("step", epoch, item)
        if not bool(session.learner.params.isfinite().all()):
            record.note("broken", "a parameter is not finite")
        members = session.driver.members
        if members.version < self._version:
            record.note("broken", "the version of the members has fallen")
        if members.version != self._version:
            record.note("members", members.version, list(members.ranks))
            self._version = members.version


def main() -> None:
    """Train, and note an error that ends this learner."""
    faulthandler.register(
        signal.SIGUSR2,
        (DIRECTORY / f"{RANK}.{INCARNATION}.stacks").open("w"),
    )
    settings = Settings.read(DIRECTORY)
    torch.set_num_threads(1)
    observe_exchanges()
    if settings.namespaces:
        enter(settings.namespaces[RANK])
        os.environ["GLOO_SOCKET_IFNAME"] = settings.interface
    dist.init_process_group("gloo")
    try:
        Training(settings).run()
    except Exception as error:
        record.note("error", f"{type(error).__name__}: {error}")
        raise


if __name__ == "__main__":
    main()

"""One learner of `healing.py` and `chaos.py`: a plain training loop with a session.

usage: learner.py DIR

DIR/settings.json has the `settings.Settings` of the run. Each process writes what
happens to DIR/RANK.INCARNATION.jsonl, a line for each event with its time, each in one
write, so that what a killed process has written is whole. Times are those of the
monotonic clock, which all processes of a machine share, and the processor's seconds of
the process. When the file DIR/end is there, the learners agree on it at the end of
their epoch, which is then the last one.
"""

import json
import logging
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parents[1]))

from emulated.methods import Emulated, batch

from espnet_distopt import Session, WorkQueue
from espnet_distopt.distributed.pairs import Pairs
from espnet_distopt.errors import PeerLostError
from survival.run import Settings


class Record(logging.Handler):
    """The file of a learner's events; the lines of its log are among them.

    Args:
        directory: the folder of the run.
    """

    def __init__(self, directory: Path) -> None:
        super().__init__(logging.WARNING)
        variables = os.environ
        name = f"{variables['RANK']}.{variables['DISTOPT_INCARNATION']}.jsonl"
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self._file = os.open(directory / name, flags, 0o644)

    def note(self, event: str, **values: object) -> None:
        """Write an event down; any thread may call this."""
        times = {"at": time.monotonic(), "processor": time.process_time()}
        line = json.dumps({"event": event, **times, **values})
        os.write(self._file, line.encode() + b"\n")

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line of the log down."""
        self.note("line", text=record.getMessage())


def note_exchanges(record: Record) -> None:
    """Write down each exchange that this learner applies, and when it began."""
    swap = Pairs.swap

    def noted(pairs: Any, *arguments: Any) -> bool:
        began, peer = time.monotonic(), pairs._peer
        applied: bool = swap(pairs, *arguments)
        if applied:
            record.note("exchange", began=began, peer=peer)
        return applied

    Pairs.swap = noted  # type: ignore[method-assign, assignment]


def batches(session: Session, settings: Settings) -> Iterator[int]:
    """Yield a learner's batches of an epoch: from a queue, or an equal share."""
    if settings.algorithm == "adpsgd":
        items = settings.steps * session.learner.size
        return WorkQueue(session, items).read(lambda numbers: numbers)
    return iter(range(settings.steps))


def train(
    model: Emulated, optimizer: torch.optim.Adam, directory: Path, record: Record
) -> None:
    """Train for some epochs, and write down each step."""
    settings = Settings.read(directory)
    with Session(
        model,
        optimizer,
        settings.algorithm,
        heartbeat_seconds=settings.heartbeat,
        **settings.options,
    ) as session:
        record.note("session", epoch=session.first_epoch)
        for epoch in range(session.first_epoch, settings.epochs):
            for item in batches(session, settings):
                optimizer.zero_grad()
                model(batch()).backward()
                optimizer.step()
                session.step()
                record.note("step", epoch=epoch, item=item)
            with session.consensus():
                members = session.learner.members.ranks
                norm = float(session.learner.params.norm())
                record.note("epoch", epoch=epoch, members=members, norm=norm)
                if session.mean(float((directory / "end").exists())) > 0:
                    break
    record.note("end")


def main() -> None:
    """Be one learner."""
    directory = Path(sys.argv[1])
    settings = Settings.read(directory)
    torch.set_num_threads(1)
    record = Record(directory)
    record.note("process", pid=os.getpid())
    logging.getLogger().addHandler(record)
    note_exchanges(record)
    # The first optimizer of a process imports a compiler, which takes a second or two.
    model = Emulated(settings.parameters, settings.seconds, int(os.environ["RANK"]))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-5)
    dist.init_process_group("gloo")
    record.note("reachable")
    try:
        train(model, optimizer, directory, record)
    except PeerLostError as error:
        record.note("error", text=str(error))
        sys.stderr.write(f"{error}\n")
        sys.stderr.flush()
        os._exit(1)


if __name__ == "__main__":
    main()

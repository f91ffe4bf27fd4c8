"""What each learner saves of a run, and from what it goes on.

Between epochs, learner 0 writes ESPnet's `checkpoint.pth` with the consensus model
(`checkpoints`). Here is what every learner needs beside it. A learner saves its state
when it stops within an epoch, and before each epoch's validation. The files are written
while ESPnet validates, and ESPnet writes its checkpoint after that: it never lacks the
learners' files.

A learner's state goes to `distopt/learner{rank}.{epoch}epoch.pth`. It consists of
tensors, numbers, strings, lists and dicts, so that `torch.load` reads it with
`weights_only`. Large tensors are in files of their own, and the learner's file refers
to them by name: `distopt/{epoch}epoch.{digest}.pth`, where the digest is that of the
content. Where learners have the same tensors, these names are the same, and a learner
that finds the file does not write it again. With BMUF-Adam, whose learners are alike
after a block, an epoch of 64 learners takes hardly more room than that of one.

The files of the last two epochs are kept. Bytes of an epoch, for N learners: what they
have in common, once; what differs between them, N times; and some KB for each learner.
"""

import hashlib
import logging
import re
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from espnet2.schedulers.abs_scheduler import (
    AbsBatchStepScheduler,
    AbsEpochStepScheduler,
)
from espnet2.train.reporter import (
    Average,
    SubReporter,
    WeightedAverage,
    to_reported_value,
)
from torch import Tensor, nn

from espnet_distopt.errors import InputError, in_words
from espnet_distopt.espnet.training.batches import QueuedBatches
from espnet_distopt.files.random_state import random_state
from espnet_distopt.files.tensors import atomic_save, is_whole, plain
from espnet_distopt.session import Session

State = dict[str, Any]

LARGE = 128
"""A tensor with as many elements goes to another file than the learner's."""

_SHARED = ("session", "optimizer", "buffers")
"""The sections of a state whose tensors may be those of other learners, too."""

_PART, _INDEX = "in file", "number"
"""The keys of a reference to a large tensor."""

_OF_EPOCH = re.compile(r"(?:learner\d+\.)?(\d+)epoch\.(?:[0-9a-f]+\.)?pth")
"""The name of a learner's file, or of one with large tensors, and its epoch."""


# The state of a learner


@dataclass(frozen=True)
class Position:
    """Where a learner begins an epoch: by default, at its first batch.

    Attributes:
        batches: So many has this learner trained on in earlier runs.
        step: The step that the epoch has come to; None if its training is over.
        spent: What `Progress.spent` returned in the earlier run, if there was one.
        random: The state of the random number generators.
        queued: That of the epoch's work queue, if there is one. The queue itself has
            None for a learner that joins others that are reading it.
    """

    batches: int = 0
    step: int | None = 0
    spent: dict[str, float] | None = None
    random: State | None = None
    queued: State | None = None

    @classmethod
    def of(cls, state: State) -> Self:
        """Return the position at which a learner's state was saved."""
        keys = ("step", "spent", "random", "queued")
        return cls(state["batches"] or 0, **{key: state[key] for key in keys})

    @property
    def is_trained(self) -> bool:
        """Whether only the epoch's validation is left."""
        return self.step is None


@dataclass
class TrainingState:
    """What takes part in the training of one epoch, and its state.

    The scheduler and the scaler may be None, and so is `queued` where the learner does
    not take its batches from a work queue.
    """

    session: Session
    model: nn.Module
    reporter: SubReporter
    optimizer: Any
    scheduler: Any
    scaler: Any
    queued: QueuedBatches | None = None

    def capture(self, batches: int | None) -> State:
        """Return the state of this learner between two steps, with nothing in flight.

        It has trained on so many batches of this epoch; None if the epoch's training is
        over, and the consensus model is formed.
        """
        learner, queued = self.session.learner, None
        if self.queued is not None and batches is not None:
            queued = self.queued.state_dict()
        buffers = self.model.named_buffers()
        return {
            "epoch": self.reporter.get_epoch(),
            "learners": learner.size,
            "equal": _equal(self.session),
            "batches": batches,
            "queued": queued,
            "session": self.session.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            **self._rates(),
            "buffers": {name: b.detach().clone() for name, b in buffers},
            "reported": _reported(self.reporter),
            "random": random_state(),
        }

    def carried(self) -> State:
        """Return what a replacement takes over beside the session, after a step."""
        queued = self.queued
        assert queued is not None  # Only those who step alone are joined.
        return {
            "epoch": self.reporter.get_epoch(),
            "step": queued.queue.step,
            "scheduled": queued.scheduled,
            **self._rates(),
        }

    def take_over(self, state: State) -> Position:
        """Take over what `carried` has returned on a member; return where to begin."""
        self._restore_rates(state)
        queued = {"queue": None, "scheduled": state["scheduled"]}
        return Position(step=state["step"], queued=queued)

    def restore_within(self, state: State) -> Position:
        """Go on within the epoch in which `state` was captured; return where to begin.

        The random numbers there are left to the epoch's iterator: data loaders draw
        some before the first batch.
        """
        self.optimizer.load_state_dict(state["optimizer"])
        self._restore_rates(state)
        self.session.load_state_dict(state["session"])
        buffers = dict(self.model.named_buffers())
        for name, saved in state["buffers"].items():
            buffers[name].copy_(saved)
        _report_again(self.reporter, state["reported"])
        return Position.of(state)

    def restore_after(self, state: State) -> None:
        """Go on from the end of the epoch in which `state` was captured.

        ESPnet has already loaded the consensus model and learner 0's optimizer. The own
        state of this learner replaces them.
        """
        optimizer, scheduler = self.optimizer, self.scheduler
        rates = [group["lr"] for group in optimizer.param_groups]
        optimizer.load_state_dict(state["optimizer"])
        steps_between = isinstance(scheduler, AbsEpochStepScheduler)
        if isinstance(scheduler, AbsBatchStepScheduler) and not steps_between:
            scheduler.load_state_dict(state["scheduler"])
        else:
            # A scheduler of epochs has stepped after the state was saved, so it and the
            # rates are right as in ESPnet's checkpoint. WarmupReduceLROnPlateau is one,
            # although it also steps with every batch.
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate
        self.session.load_state_dict(state["session"])
        logging.info(
            f"Learner {self.session.learner.rank} goes on from its own state after "
            f"epoch {state['epoch']}"
        )

    def _rates(self) -> State:
        """Return the states of a scheduler that steps within an epoch, and a scaler."""
        schedule: State = {}
        if isinstance(self.scheduler, AbsBatchStepScheduler):
            # CyclicLR does not load its state without an entry of its own that is None.
            kept = (int, float, list, type(None))
            state = self.scheduler.state_dict()
            schedule = {k: v for k, v in state.items() if isinstance(v, kept)}
        scaler = self.scaler.state_dict() if self.scaler is not None else {}
        return {"scheduler": schedule, "scaler": scaler}

    def _restore_rates(self, state: State) -> None:
        if isinstance(self.scheduler, AbsBatchStepScheduler):
            self.scheduler.load_state_dict(state["scheduler"])
        if self.scaler is not None and state["scaler"]:
            self.scaler.load_state_dict(state["scaler"])


def _equal(session: Session) -> list[int]:
    """Return the ranks whose replicas equal this learner's after each step."""
    return list(session.algorithm.equal_replicas(session.learner))


def _reported(reporter: SubReporter) -> State:
    """Return the figures of the epoch so far, as arguments of `to_reported_value`."""

    def arguments(value: Average | WeightedAverage) -> list[float]:
        weight = [float(value.weight)] if isinstance(value, WeightedAverage) else []
        return [float(value.value), *weight]

    stats = {key: list(map(arguments, each)) for key, each in reporter.stats.items()}
    counts = {"count": reporter.count, "total_count": reporter.total_count}
    return {**counts, "stats": stats}


def _report_again(reporter: SubReporter, state: State) -> None:
    """Give the reporter of a resumed epoch what `_reported` returned."""
    reporter.count = state["count"]
    reporter.total_count = state["total_count"]
    for key, values in state["stats"].items():
        reporter.stats[key] = [to_reported_value(*value) for value in values]


# Its files


class SavedStates:
    """The saved states of one learner, which are written in two parts.

    Attributes:
        saves: How often it has saved its state, as all others have.
    """

    def __init__(self, output_dir: Path, rank: int, size: int) -> None:
        self.saves = 0
        self._output_dir, self._rank, self._size = output_dir, rank, size
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._writing: Future[None] | None = None

    def stage(self, state: State) -> None:
        """Begin to write a state; its tensors must not change until `write` is over.

        Cost: a pass over the tensors for their digests; the rest is done by a thread.
        """
        self.saves += 1
        epoch = state["epoch"]
        content, parts = _take_apart(plain({**state, "saves": self.saves}), epoch)
        self._writing = self._writer.submit(self._write, content, parts, epoch)

    def _write(
        self, content: State, parts: dict[str, list[Tensor]], epoch: int
    ) -> None:
        """Write a learner's file and what it refers to; remove those of old epochs."""
        folder, names = self._output_dir / "distopt", list(parts)
        # Learners begin at different files, and so mostly find the others written.
        first = self._rank * len(names) // self._size
        for name in names[first:] + names[:first]:
            if not is_whole(folder / name):
                atomic_save(parts[name], folder / name)
        atomic_save(content, _path(self._output_dir, self._rank, epoch))
        _path(self._output_dir, self._rank, epoch - 2).unlink(missing_ok=True)
        for old in folder.glob("*epoch.*.pth"):
            number, _, rest = old.name.partition("epoch.")
            if number.isdigit() and rest and int(number) <= epoch - 2:
                old.unlink(missing_ok=True)

    def write(self) -> None:
        """Wait until nothing of the state is missing; raise OSError if it cannot be."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def resume(
        self, training: TrainingState, batches: int | None, resume: bool
    ) -> Position:
        """Go on from a saved state within this epoch or after the last one, if any.

        All learners call this together, before any of them saves, in the first epoch of
        a run. It has so many batches, or None if that is not known. Without `resume`,
        ESPnet's option, the training begins anew.
        """
        session, epoch = training.session, training.reporter.get_epoch()
        self.forget_later(epoch if resume else 0)
        within = self._within(session, epoch, batches)
        if within is not None:
            return training.restore_within(within)
        after = self._after(session, epoch - 1) if epoch > 1 else None
        if after is not None:
            training.restore_after(after)
        return Position()

    def forget_later(self, epoch: int) -> None:
        """Remove what an earlier training has saved within or after later epochs."""
        for path in (self._output_dir / "distopt").glob("*epoch.*pth"):
            name = _OF_EPOCH.fullmatch(path.name)
            if name is not None and int(name[1]) > epoch:
                path.unlink(missing_ok=True)

    def _within(
        self, session: Session, epoch: int, batches: int | None
    ) -> State | None:
        """Return this learner's saved state within `epoch` if all learners have one.

        A kill during a save can leave states of different stops, or of some learners
        only; those are of no use together. States of another number of learners or
        batches, or of other nodes, are of no use either, because a learner's batches
        were others then; nor are those of another algorithm.
        """
        state = load_learner(self._output_dir, self._rank, epoch)
        if session.mean(float(state is not None)) == 0.0:
            return None
        fits = state is not None and _fits(state, session, batches)
        saves = float(state["saves"]) if state is not None else -1.0
        same = saves == session.mean(saves)
        if session.mean(float(fits and same)) == 1.0:
            self.saves = int(saves)
            return state
        if self._rank == 0:
            logging.warning(
                f"there is no common state of all {session.learner.size} learners "
                f"within epoch {epoch} with {session.name} and these batches: "
                "the epoch is repeated"
            )
        _path(self._output_dir, self._rank, epoch).unlink(missing_ok=True)
        return None

    def _after(self, session: Session, epoch: int) -> State | None:
        """Return the saved state after `epoch` with which this learner goes on.

        It is the learner's own, if there is one. A learner without one, as after its
        death, goes on from the checkpoint. With a block method, where all are alike
        between epochs, it takes the state of the lowest learner that has one. With
        gossip between nodes, all learners of a node take the first one's state, because
        they must go on alike. A state of another algorithm counts as none.
        """
        equal = _equal(session) if session.algorithm.wants_gossip else [self._rank]
        state = load_learner(self._output_dir, equal[0], epoch)
        if state is not None and (
            state["batches"] is not None  # It died within the epoch, where it was saved
            or not {*equal} <= {*state["equal"]}  # or the node has others' learners now
            or state["session"]["algorithm"] != session.name
        ):
            state = None
        ranks = range(self._size)
        lacks = session.means([float(state is None and r == self._rank) for r in ranks])
        having = [r for r in ranks if not lacks[r]]
        source = "the consensus model with the checkpoint's optimizer"
        block = session.algorithm.survives and not session.algorithm.wants_gossip
        if block and having:
            source = f"that of learner {having[0]}"
            if state is None:
                state = load_learner(self._output_dir, having[0], epoch)
        if self._rank == 0 and len(having) < self._size:
            lacking = ", ".join(str(r) for r in ranks if r not in having)
            logging.info(
                f"learners without a state of their own after epoch {epoch} with "
                f"{session.name}: {lacking}; they go on from {source}"
            )
        # All learners get one number of saves, which none has had before: one that has
        # no state of its own has counted fewer than the others.
        self.saves = 0 if state is None else state["saves"]
        mean = session.mean(float(self.saves))
        if session.mean(float(self.saves == mean)) < 1.0:
            self.saves = round(mean * session.learner.size)
        return state


def _fits(state: State, session: Session, batches: int | None) -> bool:
    """Return whether a state within an epoch is of the same division of its batches."""
    if state["session"]["algorithm"] != session.name:
        return False
    now = _equal(session)
    same = state["learners"] == session.learner.size and state["equal"] == now
    trained = state["batches"] is None  # Only the validation is left.
    return same and (trained or state["of"] == batches)


def _path(output_dir: Path, rank: int, epoch: int) -> Path:
    return output_dir / "distopt" / f"learner{rank}.{epoch}epoch.pth"


def load_learner(output_dir: Path, rank: int, epoch: int) -> State | None:
    """Return a learner's state within or after `epoch`, or None if it has none.

    It counts as none if a file that it refers to is missing.

    Raises:
        InputError: A file cannot be read.
    """
    path = _path(output_dir, rank, epoch)
    if not path.exists():
        return None
    parts: dict[str, list[Tensor]] = {}

    def fill(value: Any) -> Any:
        if isinstance(value, list):
            return [fill(each) for each in value]
        if not isinstance(value, dict):
            return value
        if _PART not in value:
            return {key: fill(each) for key, each in value.items()}
        name = value[_PART]
        if name not in parts:
            parts[name] = _read(path.parent / name)
        return parts[name][value[_INDEX]]

    content = _read(path)
    try:
        state: State = fill(content)
    except FileNotFoundError as error:
        logging.error(f"{path} is of no use: {error.filename} is missing")
        return None
    return state


def _read(path: Path) -> Any:
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise
    except Exception as error:
        raise InputError(
            f"{path} cannot be read: remove the experiment's distopt/ folder to go on "
            f"from the consensus model ({in_words(error)})"
        ) from error


def _take_apart(state: State, epoch: int) -> tuple[State, dict[str, list[Tensor]]]:
    """Return `state` with references in the place of large tensors, and their files.

    Each large tensor of the session has a file of its own, because some of them may be
    equal on all learners and others not. Those of any other section share a file.
    """
    content = dict(state)
    parts: dict[str, list[Tensor]] = {}
    for section in (each for each in _SHARED if each in state):
        found: list[tuple[Tensor, State]] = []
        content[section] = _refer(state[section], found)
        files = [[each] for each in found] if section == "session" else [found]
        for file in filter(None, files):
            tensors = [tensor for tensor, _ in file]
            name = f"{epoch}epoch.{_digest(tensors)}.pth"
            parts[name] = tensors
            for number, (_, reference) in enumerate(file):
                reference.update({_PART: name, _INDEX: number})
    return content, parts


def _refer(value: Any, found: list[tuple[Tensor, State]]) -> Any:
    """Return `value` with an empty reference for each large tensor; append both."""
    if isinstance(value, Tensor) and value.numel() >= LARGE:
        reference: State = {}
        found.append((value.detach(), reference))
        return reference
    if isinstance(value, dict):
        return {key: _refer(each, found) for key, each in value.items()}
    if isinstance(value, list):
        return [_refer(each, found) for each in value]
    return value


def _digest(tensors: list[Tensor]) -> str:
    """Return 32 hexadecimal digits of the SHA-256 of dtypes, shapes and bits."""
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(f"{tensor.dtype} {tuple(tensor.shape)};".encode())
        flat = tensor.cpu().contiguous().view(-1)
        found.update(flat.view(torch.uint8).numpy().data)
    return found.hexdigest()[:32]

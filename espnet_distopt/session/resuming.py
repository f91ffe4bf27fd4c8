"""A run that goes on where an earlier one has ended: what `Session.resume` begins.

What a learner saves is in `files.saves`. Here is when it saves, and how a run goes on:
exactly, from a save of each learner's own, or anew from the model that learners had at
the end of an epoch.
"""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn, Protocol

import torch
from torch import nn

from espnet_distopt.algorithms.lifecycle import Lifecycle
from espnet_distopt.core.changes import Changes
from espnet_distopt.core.driver import Driver, Stateful
from espnet_distopt.core.effects import Broadcast, only
from espnet_distopt.core.learner import Learner
from espnet_distopt.core.membership import Members
from espnet_distopt.distributed.run_lock import RunLock
from espnet_distopt.distributed.state_transfer import check_sendable
from espnet_distopt.distributed.stop_signals import Stopped
from espnet_distopt.errors import InputError, in_words, message
from espnet_distopt.files.random_state import random_state, set_random_state
from espnet_distopt.files.saves import Parts, Save, Saves


class Resumable(Protocol):
    """What goes on: a `Session`, whose methods these are."""

    name: str
    learner: Learner
    driver: Driver

    @property
    def is_leader(self) -> bool: ...  # noqa: D102
    def barrier(self) -> Members: ...  # noqa: D102
    def mean(self, value: float) -> float: ...  # noqa: D102
    def restart_from_model(self) -> None: ...  # noqa: D102
    def state_dict(self) -> dict[str, Any]: ...  # noqa: D102
    def load_state_dict(self, state: dict[str, Any]) -> None: ...  # noqa: D102


class Resumption:
    """The saves of a session's run.

    Attributes:
        parts: what the loop keeps beside the session, with its state.
        lock: the lock on the folder, which the leader of the learners holds.

    Args:
        session: the session.
        model: its model.
        lifecycle: its epochs.
        changes: its watch on changes of the model.
        folder: where to save.
        parts: what else to save, by name.

    Raises:
        InputError: a part has no state, or one that cannot be sent.
    """

    def __init__(
        self,
        session: Resumable,
        model: nn.Module,
        lifecycle: Lifecycle,
        changes: Changes,
        folder: Path,
        parts: Mapping[str, Stateful],
    ) -> None:
        self._session, self._model = session, model
        self._lifecycle, self._changes = lifecycle, changes
        learner = session.learner
        self._saves = Saves(folder, session.name, learner.rank, learner.size)
        self.parts = Parts(parts)
        self.lock = RunLock(folder)
        for name, part in parts.items():
            if not isinstance(part, Stateful):
                raise InputError(
                    f"{learner.where}: resume: {name} is a {type(part).__name__}: give "
                    "objects that have state_dict() and load_state_dict()"
                )
        self._queues: list[Any] = []
        self._queues_left: list[dict[str, Any]] = []
        for name, state in self.parts.state_dict().items():
            check_sendable(state, f"{learner.where}: the state of '{name}'")

    def go_on(self) -> None:
        """Go on from the save that learner 0 chooses, if there is one.

        Raises:
            InputError: the folder cannot be used, or another run does; or a save cannot
                be read, or is not of this model, optimizer and parts.
        """
        first, chosen, whole = self._session.learner.rank == 0, None, False
        if first:
            self.lock.take()
            chosen, whole = self._saves.choose()
        told = self._tell(f"{chosen or ''} {'whole' if whole else ''}")
        name, _, of_all = told.partition(" ")
        if save := Save.of(name):
            self._go_on_from(save, bool(of_all) and self._saves.is_own(save))
        elif first:  # A folder that is full is noticed now.
            self._saves.write_model(self._model.state_dict())

    def _tell(self, text: str) -> str:
        """Return learner 0's text, of at most 256 bytes."""
        session = self._session
        told = torch.zeros(256, dtype=torch.uint8)
        data = text.encode()
        told[: len(data)] = torch.tensor([*data], dtype=torch.uint8)
        session.driver.run(only(Broadcast(told, tuple(range(session.learner.size)))))
        return bytes(told.tolist()).rstrip(b"\0").decode()

    def _go_on_from(self, save: Save, own: bool) -> None:
        """Go on from a save.

        Args:
            save: a learner's save.
            own: whether each learner has such a save of its own; otherwise all begin
                anew at the model, with the optimizer of this one.
        """
        session, saves = self._session, self._saves
        learner = session.learner
        if own:
            save = saves.last = save._replace(rank=learner.rank)
        state, model = saves.read(str(save)), saves.read("model.pt")
        try:
            self._model.load_state_dict(model)
            learner.optimizer.load_state_dict(state["optimizer"])
            if own:
                session.load_state_dict(state["session"])
                self._model.load_state_dict(state["buffers"], strict=False)
                self._changes.forget_load()
            else:
                session.restart_from_model()
            self.parts.load_state_dict(state["parts"])
        except (KeyError, RuntimeError, ValueError) as error:
            # PyTorch says below its first line which parameter is another one.
            details = [line.strip() for line in message(error).splitlines()[1:2]]
            raise InputError(
                f"{saves.folder / str(save)} is not of this model, optimizer and "
                f"parts: {': '.join([in_words(error), *details])}; name another folder "
                "to begin anew"
            ) from None
        if own:
            self._queues_left = state["queues"]
            set_random_state(state["random"])
        self._lifecycle.epochs, self._lifecycle.stops = save.epochs, save.stops
        if learner.rank == 0:
            saved = f"{saves.folder}: saved after {save.epochs} epochs"
            if own:
                within = f" and within epoch {save.epochs + 1}" * (save.stops > 0)
                line = f"{saved}{within}: the training goes on there"
            else:
                whose = f" of {save.algorithm} by {save.size} of the learners, and"
                if saves.is_own(save):
                    whose = ", though not by all learners:"
                line = (
                    f"{saved}{whose} {learner.size} go on by {session.name}: they "
                    "begin anew at the model of then"
                )
            logging.getLogger(__name__).warning(line)

    def save(self) -> None:
        """Save this learner at an epoch's end; the first one also writes the model.

        Raises:
            InputError: a file cannot be written.
        """
        session = self._session
        met: tuple[int, ...] = ()
        while (leader := session.learner.members.ranks[0]) not in met:
            if leader == session.learner.rank:
                self._saves.write_model(self._model.state_dict())
            else:
                self.lock.free()  # A replacement may lead in this learner's place.
            met = session.barrier().ranks  # No learner's save is newer than the model.
        if session.is_leader:
            self.lock.take_over()
        self._write()

    def _write(self) -> None:
        session = self._session
        state = {
            "session": session.state_dict(),
            "optimizer": session.learner.optimizer.state_dict(),
            "buffers": {name: b.detach() for name, b in self._model.named_buffers()},
            "parts": self.parts.state_dict(),
            "queues": [queue.state_dict() for queue in self._queues],
            "random": random_state(),
        }
        size = len(session.learner.members.ranks)
        place = self._lifecycle.epochs, self._lifecycle.stops
        self._saves.write(*place, size, state)

    def stop(self) -> NoReturn:
        """Save this learner, which has paused within the epoch, and end the process."""
        self._lifecycle.stops += 1
        self._write()
        self._session.mean(0.0)  # No learner leaves while others need its store.
        self.end()

    def end(self) -> NoReturn:
        """End the process, whose learner is saved."""
        if self._session.is_leader:
            logging.getLogger(__name__).warning(
                f"the training has stopped, and is saved in {self._saves.folder}: the "
                "same command goes on"
            )
        raise Stopped

    def begin_queue(self, queue: Any) -> dict[str, Any] | None:
        """Save a work queue beside the learner; return what was left of an earlier one.

        Args:
            queue: the queue, as new.
        """
        self._queues.append(queue)
        return self._queues_left.pop(0) if self._queues_left else None

    def end_queues(self) -> None:
        """Forget the queues of the epoch, which has ended."""
        self._queues, self._queues_left = [], []

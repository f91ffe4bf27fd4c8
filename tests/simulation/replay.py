"""Replay: a simulation that follows what each learner recorded elsewhere, bit for bit.

A recording is a learner's list of sections, in the order in which they ran. A section
is what a program of the algorithm does between two of its yields.

    ("training", None)      a section of after_backward, after_step, end_steps, finish
    ("gossip", value)       a section of gossip. Where it awaited an invitation, value
                            is the peer, or None; where it awaited a step, value is a
                            bool; elsewhere it is None.

The parameters depend on these orders and on the gradients, and on nothing else. The
exchanges of a pair match in their order, and so do collectives. What runs after an
effect of the lifecycle (`core.effects.LIFECYCLE`) is no section.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from espnet_distopt.core.effects import AwaitInvitation, AwaitStep
from espnet_distopt.simulation.engine import (
    DeadlockError,
    Engine,
    Programs,
    Rejoin,
)
from espnet_distopt.simulation.sides import Side, Sides
from espnet_distopt.simulation.simulation import Simulation

Entry = tuple[str, Any]
Recordings = Mapping[int, Sequence[Entry]]
"""Rank -> its sections, in the order in which they ran."""


class ReplayError(RuntimeError):
    """A recording cannot be followed; the message names learner and entry."""


def record(simulation: Simulation) -> None:
    """Let a simulation keep its sections from now on, for `recordings`."""
    simulation.engine.sections = []


def recordings_of(simulation: Simulation) -> dict[int, list[Entry]]:
    """Return what each learner of a simulation has recorded since `record`."""
    found: dict[int, list[Entry]] = {v.learner.rank: [] for v in simulation.learners}
    for rank, name, value in simulation.engine.sections or []:
        found[rank].append((name, value))
    return found


class ReplayEngine(Engine):
    """Lets each learner's sections run in the recorded order, whatever the clock says.

    A side that could go on waits until its turn comes.

    Args:
        recordings: the recording of every learner.
        arguments: the arguments of `Engine`.
    """

    def __init__(self, recordings: Recordings, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._recordings = recordings
        self._position = [0] * len(recordings)
        self._held: dict[tuple[int, str], tuple[Side, Any]] = {}

    def run(
        self,
        programs: Programs,
        after_event: Callable[[], None],
        in_epoch: bool,
        rejoin: Rejoin | None = None,
    ) -> list[Any]:
        """Run an epoch as recorded; other programs run freely.

        Raises:
            ReplayError: the recording cannot be followed.
        """
        self._held.clear()
        try:
            return super().run(programs, after_event, in_epoch, rejoin)
        except DeadlockError as error:
            rank = min((rank for rank, _ in self._held), default=self._stuck())
            raise self._cannot(rank, str(error)) from error

    def _stuck(self) -> int:
        return self._running()[0].rank

    def _cannot(self, rank: int, why: str) -> ReplayError:
        number = self._position[rank]
        entries = self._recordings[rank]
        entry = entries[number] if number < len(entries) else "the end"
        return ReplayError(
            f"learner {rank} cannot follow its recording at entry {number} of "
            f"{len(entries)}, {entry}: {why}"
        )

    def check_complete(self) -> None:
        """Raise ReplayError if something recorded has not been run."""
        for rank, entries in self._recordings.items():
            if self._position[rank] < len(entries):
                raise self._cannot(rank, "the epochs have ended")

    def _advance(self, side: Side, result: Any) -> None:
        if not self._counts(side):
            super()._advance(side, result)
            return
        self._held[side.rank, side.name] = side, result
        while (turn := self._turn(side.rank)) in self._held:
            held, result = self._held.pop(turn)
            number = self._position[side.rank]
            _, value = self._recordings[side.rank][number]
            result = self._decided(held, result, value)
            self._position[side.rank] += 1
            super()._advance(held, result)

    def _turn(self, rank: int) -> tuple[int, str]:
        """Return the side of `rank` that runs next."""
        entries, number = self._recordings[rank], self._position[rank]
        return rank, entries[number][0] if number < len(entries) else "nobody"

    def _decided(self, side: Side, result: Any, value: Any) -> Any:
        """Return what the program is sent: where it decides, what was recorded."""
        match side.effect:
            case AwaitStep():
                valid = isinstance(value, bool)
            case AwaitInvitation(peers):
                valid = value is None or value in peers
            case _:
                if value is not None:
                    raise self._cannot(side.rank, f"{side.story()} decides nothing")
                return result
        if not valid:
            raise self._cannot(side.rank, f"no answer for {side.story()}")
        return value

    def _wake(self, sides: Sides) -> None:
        """Resume a gossip side that waits: its turn, not its mail, says when."""
        gossip = sides.gossip
        if gossip.waiting and isinstance(gossip.effect, (AwaitStep, AwaitInvitation)):
            self._resume(gossip)

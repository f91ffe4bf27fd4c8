"""What a session and a work queue need of a driver."""

from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol, runtime_checkable

from espnet_distopt.core.effects import Effect
from espnet_distopt.core.membership import Members


class JoinLater(Exception):
    """Raised by what takes over a member's state: the learner joins the next epoch."""


class Place(NamedTuple):
    """How far a learner is in a training; a greater one is further.

    Attributes:
        epochs: the number of epochs that have ended in this session.
        steps: the attempted steps of the epoch.
    """

    epochs: int
    steps: int


@runtime_checkable
class Stateful(Protocol):
    """What a training loop keeps beside a session, and a replacement takes over."""

    def state_dict(self) -> dict[str, Any]:
        """Return tensors, numbers, strings, lists and dicts."""

    def load_state_dict(self, state: dict[str, Any]) -> Any:
        """Take over what another learner's `state_dict` has returned."""


class SharedStore(Protocol):
    """Keys and values that all learners see; each operation is atomic.

    It may take as long as a message to another machine and back.
    """

    def set(self, key: str, value: str) -> None:
        """Write a value."""

    def get(self, key: str) -> bytes:
        """Return the value of a key; wait until there is one."""

    def add(self, key: str, amount: int) -> int:
        """Add to a counter, atomically; return its new value."""

    def check(self, keys: list[str]) -> bool:
        """Return whether all keys have values."""

    def multi_get(self, keys: list[str]) -> list[bytes]:
        """Return the values of several keys, in one operation."""

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        """Write `desired` if the value is `expected`; return the value from then on."""

    def delete_key(self, key: str) -> bool:
        """Delete a key; return whether there was one."""


class Driver(Protocol):
    """Carries out the effects of one learner's programs.

    Attributes:
        rank: the number of this learner, 0 <= rank < size.
        size: the number of learners.
        per_node: the learners on each machine; None where nobody knows.
        joins: whether this learner replaces one that has died, and has not joined yet.
        spent: seconds that the training side has waited ("comm_time", "wait_time"),
            and bytes that the learner has sent ("bytes").
    """

    rank: int
    size: int
    per_node: int | None
    joins: bool
    spent: defaultdict[str, float]

    def run(self, program: Generator[Effect, Any, Any], in_epoch: bool = False) -> Any:
        """Run a program of the training side to its end, and return its value."""

    @property
    def store(self) -> SharedStore:
        """What all learners of the run share."""

    def asking(self, what: str) -> AbstractContextManager[None]:
        """Inside, the shared store is asked, which is counted as communication.

        Raises:
            PeerLostError: a learner is lost, or the store, while `what` was under way.
        """

    def await_lease(self) -> None:
        """Return when the others cannot have given this learner up for silence.

        It comes before an operation of the store by which a learner takes what others
        take over from the dead, inside `asking`.

        Raises:
            RuntimeError: the run ends for this learner.
        """

    @property
    def members(self) -> Members:
        """The learners that live, as this one knows by now."""

    def incarnation(self, rank: int) -> int:
        """Return how often a learner of `rank` was started before the present one."""

    @property
    def dead(self) -> Mapping[int, int]:
        """For each other learner that has died: how often it was started before.

        The result does not change later, when another learner dies or joins.
        """

    def survive(
        self,
        lost_with: Callable[[int], Iterable[int]],
        change: Callable[[Members], None],
        remark: Callable[[], str] = str,
    ) -> None:
        """Let the training go on when a learner is lost, from now on.

        Args:
            lost_with: returns the ranks that leave the members with a lost one.
            change: is called between two yields when the members have changed.
            remark: returns what to add to the line of the log on a loss.
        """

    def offer(self, state: Callable[[], dict[str, Any]]) -> None:
        """Let replacements of others take over this learner's state, from now on.

        Args:
            state: returns tensors, numbers, strings, lists and dicts; it is called at
                the end of a step.
        """

    def join(self, take: Callable[[dict[str, Any]], None]) -> None:
        """Enter the members in the place of a learner that has died.

        Args:
            take: takes over what the `state` of a member has returned. If it raises
                `JoinLater`, this learner joins in the next epoch.
        """

    def announce_stop(self) -> None:
        """Tell all learners that the run is to stop."""

    def stop_announced(self) -> bool:
        """Return whether a learner has announced a stop."""

    def propose_stop(self, group: tuple[int, ...], place: Place) -> Place:
        """Return where the learners of `group` stop: the first proposal."""

    def leave(self, error: BaseException | None = None) -> None:
        """Leave the run; tell the others about the `error`, if there is one."""

"""The two sides of a virtual learner at run time, and what each waits for."""

from collections import deque
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

from espnet_distopt.core.effects import (
    LIFECYCLE,
    AwaitInvitation,
    AwaitStep,
    Exchange,
)
from espnet_distopt.simulation.virtual_learner import Stepped


@dataclass
class Side:
    """The training or the gossip side of a learner.

    Attributes:
        effect: the last one that the program has yielded.
        waiting: for the effect's result, which is not even under way.
        since: when it was yielded, in nanoseconds.
        value: what the program has returned.
    """

    rank: int
    name: str
    program: Generator[Any, Any, Any] | None
    effect: Any = None
    waiting: bool = False
    since: int = 0
    ended: bool = False
    value: Any = None

    @property
    def in_algorithm(self) -> bool:
        """Whether its next section is one of the algorithm's programs.

        Else it is one of the lifecycle, or of the simulation's own training loop.
        """
        if self.name == "gossip":
            return True
        return not isinstance(self.effect, (*LIFECYCLE, Stepped, type(None)))

    def story(self) -> str:
        """Return who waits for what."""
        what = type(self.effect).__name__
        match self.effect:
            case Exchange(peer):
                what += f" with {peer}"
            case AwaitInvitation(peers):
                what += f" from {', '.join(map(str, peers))}"
        return f"{self.name} of learner {self.rank} for {what}"


@dataclass
class Sides:
    """How far one learner has come in an epoch, and its mail.

    Attributes:
        mailbox: who invites it; None: all who might have retired.
    """

    training: Side
    gossip: Side
    gossiping: bool = False
    published: int = 0
    seen: int = 0
    ending: bool = False
    mailbox: deque[int | None] = field(default_factory=deque)

    def running(self) -> list[Side]:
        """Return the sides that have begun and not ended."""
        begun = [self.training, self.gossip] if self.gossiping else [self.training]
        return [side for side in begun if not side.ended]

    def answer(self) -> tuple[bool, Any]:
        """Return whether the gossip side's wait is over, and its result."""
        if not self.gossip.waiting:
            return False, None
        match self.gossip.effect:
            case AwaitStep():
                over = self.published > self.seen or self.ending
                self.seen = self.published
                return over, not self.ending
            case AwaitInvitation():
                if self.mailbox:
                    return True, self.mailbox.popleft()
        return False, None

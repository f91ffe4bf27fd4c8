"""The module keeps the state of a virtual learner's two sides, training and gossip."""

from collections import deque
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

from espnet_distopt.core.effects import (
    LIFECYCLE,
    AwaitInvitation,
    AwaitStep,
    Exchange,
    Invite,
)
from espnet_distopt.simulation.virtual_learner import Stepped


@dataclass
class Side:
    """The state of one side of a learner, training or gossip.

    Attributes:
        rank: the learner.
        name: `training` or `gossip`.
        program: the generator that the side runs.
        effect: the last effect that the program has yielded.
        waiting: whether the side waits for the effect's result and no event that brings
            it is scheduled yet.
        since: the time at which the effect was yielded, in nanoseconds.
        ended: whether the program has ended, or its learner was excluded.
        value: the value that the program has returned.
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
        """Whether the code that runs next belongs to the algorithm.

        Else it is one of the lifecycle, or of the simulation's own training loop.
        """
        if self.name == "gossip":
            return True
        return not isinstance(self.effect, (*LIFECYCLE, Stepped, type(None)))

    def story(self) -> str:
        """Return a phrase that says which side of which learner waits for what."""
        what = type(self.effect).__name__
        match self.effect:
            case Exchange(peer):
                what += f" with {peer}"
            case Invite(peer):
                what += f" of {peer}"
            case AwaitInvitation(peers):
                what += f" from {', '.join(map(str, peers))}"
        return f"{self.name} of learner {self.rank} for {what}"


@dataclass
class Sides:
    """The state of one learner in an epoch.

    Attributes:
        training: the training side.
        gossip: the gossip side.
        gossiping: whether the gossip side has begun.
        published: the number of steps whose result the training side has published.
        seen: the value of `published` when the gossip side last waited for a step.
        ending: whether the training side has asked the gossip to end.
        mailbox: the ranks that have invited this learner to an exchange, oldest first;
            None stands for the news that all learners that might invite it have
            retired.
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

    def end(self) -> None:
        """End both sides where they are: the learner was excluded."""
        for side in (self.training, self.gossip):
            side.ended, side.waiting = True, False

    def answer(self) -> tuple[bool, Any]:
        """Return whether the gossip side's wait is over, and the result of the wait."""
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

"""How a run has ended, from the ends of its learners."""

import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass

from espnet_distopt.errors import STOPPED
from espnet_distopt.launch.plan import Plan

REFUSED = 2
"""The exit status of a program that refuses its input; starting it again is no use."""


@dataclass(frozen=True)
class Life:
    """How one learner has fared.

    Attributes:
        status: the exit status of its last process; 128 more than the signal's number
            if a signal has ended it.
        restarts: how often it was started again.
        lost: whether it died for good while the others went on.
        ended: when it ended, in seconds of the node's clock.
        why: why it has ended, as far as it has said so itself.
    """

    rank: int
    host: str
    status: int
    restarts: int = 0
    lost: bool = False
    ended: float = 0.0
    why: str = ""

    def __str__(self) -> str:
        why = f" ({self.why})" if self.why else ""
        return f"learner {self.rank} on {self.host} {describe(self.status)}{why}"


@dataclass(frozen=True)
class Verdict:
    """The exit status of a run, and the line that explains it; "" if none is needed."""

    status: int
    text: str = ""


class Ends:
    """Which nodes have come, and how their learners have ended; node 0 gathers this."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._come = {plan.node}
        self._lost: set[int] = set()
        self._lives: dict[int, Sequence[Life]] = {}

    def note_look(self, node: int) -> bool:
        """Note that a node looks into the store; return whether it was lost before."""
        came_back = node in self._lost
        self._come.add(node)
        if came_back:
            self._lost.remove(node)
            del self._lives[node]
        return came_back

    def lose(self, node: int) -> Life:
        """Count the learners of a silent node as lost; return the first one's life."""
        host, now = f"node {node}", time.time()
        ranks = self._plan.ranks(node)
        lives = [Life(rank, host, 137, lost=True, ended=now) for rank in ranks]
        self._lost.add(node)
        self._lives[node] = lives
        return lives[0]

    def note(self, node: int, lives: Sequence[Life]) -> None:
        """Note how the learners of a node have ended."""
        self._lost.discard(node)
        self._lives[node] = lives

    def are_all(self, none_comes: bool) -> bool:
        """Return whether the learners of all nodes have ended or are lost.

        Args:
            none_comes: whether a node that has not come yet counts as absent.
        """
        nodes = self._come if none_comes else range(len(self._plan.counts))
        return self._lives.keys() >= set(nodes)

    @property
    def lives(self) -> list[Life]:
        """All learners that have ended or are lost."""
        return [life for node in sorted(self._lives) for life in self._lives[node]]


def describe(status: int) -> str:
    """Return an exit status in words.

    >>> describe(137), describe(1)
    ('was killed by SIGKILL', 'ended with status 1')
    """
    number = signal_of(status)
    if number is not None:
        return f"was killed by {number.name}"
    return f"ended with status {status}"


def signal_of(status: int) -> signal.Signals | None:
    """Return the signal that has ended a process; None if it has ended by itself."""
    return next((each for each in signal.Signals if each == status - 128), None)


def judge(
    lives: Sequence[Life], failure: Life | None = None, interrupted: bool = False
) -> Verdict:
    """Return the verdict on a run whose learners have all ended.

    Args:
        lives: all learners of the run.
        failure: the learner whose death ended the run; None if none has.
        interrupted: whether Ctrl-C was pressed.
    """
    staying = [life for life in lives if not life.lost]
    if interrupted:
        saved = bool(staying) and all(life.status == STOPPED for life in staying)
        text = "stopped by Ctrl-C" + ", and its state is saved" * saved
        return Verdict(128 + signal.SIGINT, text)
    if failure is None and not staying:
        failure = min(lives, key=lambda life: life.ended)
    if failure is not None:
        return Verdict(failure.status, f"the run failed: {failure}")
    # Learners that were told to stop may still end badly: killed before they listened,
    # or because they did not end in time.
    worst = max(
        staying, key=lambda life: (life.status not in (0, STOPPED), life.status)
    )
    if worst.status not in (0, STOPPED):
        return Verdict(worst.status, f"the run was told to stop, and {worst}")
    what = "ended well" if worst.status == 0 else "was stopped, and its state is saved"
    return Verdict(worst.status, _losses(lives, what))


def _losses(lives: Sequence[Life], what: str) -> str:
    lost = [f"learner {life.rank} ({life.host})" for life in lives if life.lost]
    again = [life for life in lives if life.restarts and not life.lost]
    replaced = [f"learner {life.rank} ({life.restarts} times)" for life in again]
    parts = [f"lost: {', '.join(lost)}"] if lost else []
    parts += [f"replaced: {', '.join(replaced)}"] if replaced else []
    if not parts:
        return ""
    return f"the run {what}, though not with all learners: {'; '.join(parts)}"

"""How the learners of all nodes have ended, as node 0 gathers it for the verdict."""

import time
from collections.abc import Sequence

from espnet_distopt.launch.plan import Plan
from espnet_distopt.launch.verdict import Life


class Ends:
    """Which nodes have come, and how their learners have ended.

    Args:
        plan: the nodes of the run.
    """

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

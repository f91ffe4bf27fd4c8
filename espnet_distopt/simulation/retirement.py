"""The end of an epoch's gossip: passive learners end when all active ones have."""

from espnet_distopt.core.membership import Members


class Retirement:
    """Who has retired in this epoch, and who has been told that all have."""

    def __init__(self) -> None:
        self._actives: tuple[int, ...] = ()
        self._retired: set[int] = set()
        self._passives: set[int] = set()
        self._told: set[int] = set()

    def retire(
        self, rank: int, actives: tuple[int, ...], passives: tuple[int, ...]
    ) -> None:
        """Note that an active learner invites nobody any more."""
        self._actives = actives
        self._retired.add(rank)
        self._passives.update(passives)

    def wait(self, rank: int, actives: tuple[int, ...]) -> None:
        """Note that a passive learner waits for invitations."""
        self._actives = actives
        self._passives.add(rank)

    def to_tell(self, members: Members) -> list[int]:
        """Return whom to tell now that all living active learners have retired."""
        living = members.ranks
        if not all(a in self._retired or a not in living for a in self._actives):
            return []
        new = sorted(self._passives.intersection(living) - self._told)
        self._told.update(new)
        return new

    def forget(self, rank: int) -> None:
        """Forget what was told to a learner, in whose place a replacement begins."""
        self._told.discard(rank)
        self._passives.discard(rank)

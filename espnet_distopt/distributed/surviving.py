"""Collectives that survive the death of a learner: all living ones have the result.

gloo says to each learner by itself whether its part of a collective was completed. So
when a learner dies in an all-reduce, some others may have the mean and others not. Here
the learners agree: each that has its result counts itself in the store, and the last
one to do so writes `commit`. Who fails, or notices that one of them is no member any
more, writes `abort`. Both are written by compare-and-set, and everybody waits for what
it says.

After an abort a collective of all learners is repeated among those who live, from a
copy of what each has contributed; so all survivors have the same result, of the same
contributions. A collective of given ranks is not repeated: its tensor is as it was, and
its result None, so that the algorithm can name other ranks.

The living learners who repeat meet first (`meetings`), and so agree on who they are.
Until the next meeting or repetition that list holds for all further collectives.

Cost: two operations of the store; and a copy of a tensor that is overwritten, unless
the algorithm keeps one (`AllReduceMean.kept`).
"""

from collections import Counter
from dataclasses import dataclass

from torch import Tensor

from espnet_distopt.core.effects import AllReduceMean, Broadcast, GroupCollective
from espnet_distopt.core.membership import Members
from espnet_distopt.distributed.collectives import Collectives, InFlight, alone
from espnet_distopt.distributed.groups import Groups
from espnet_distopt.distributed.liveness import Store
from espnet_distopt.distributed.meetings import Meetings, Waiting
from espnet_distopt.distributed.watch import Watch, of_network
from espnet_distopt.errors import PeerLostError

ATTEMPTS = 10
"""How often a collective is repeated while the members stay the same."""

_COMMIT, _ABORT = b"commit", b"abort"


@dataclass
class Attempt:
    """A collective under way.

    Attributes:
        effect: what the algorithm has yielded.
        members: those that take part in this attempt.
        name: the name of the attempt, which no other one has.
        copy: what this learner has contributed; the very tensor of the effect if the
            collective does not overwrite it.
        handle: what waits for the operation; None if it could not be begun.
    """

    effect: GroupCollective
    members: Members
    name: str
    copy: Tensor
    handle: InFlight | None = None


class SurvivingCollectives:
    """Carries out collectives among those who live.

    Args:
        groups: the process groups.
        collectives: carries out a collective in a group.
        watch: the training thread's connection to the store.
        meetings: the meetings of the living.
        waiting: what is done on a change of the members.

    Attributes:
        agreed: those on whom all of them agree to take part in the next collective.
    """

    def __init__(
        self,
        groups: Groups,
        collectives: Collectives,
        watch: Watch,
        meetings: Meetings,
        waiting: Waiting,
    ) -> None:
        self.agreed = Members.everybody(len(groups.everybody))
        self._groups = groups
        self._collectives = collectives
        self._watch = watch
        self._meetings = meetings
        self._waiting = waiting
        self._numbers: Counter[str] = Counter()

    def begin(self, effect: GroupCollective) -> Attempt:
        """Begin a collective."""
        members = self.agreed
        if effect.ranks is not None:
            members = Members(self._watch.liveness.members.version, effect.ranks)
        return self._begin(effect, members, _contribution(effect))

    def _begin(
        self, effect: GroupCollective, members: Members, copy: Tensor
    ) -> Attempt:
        # A learner that knows of a death already begins one of given ranks in another
        # version than the others, and they must still count those of all alike.
        kind = "all" if effect.ranks is None else "given"
        place = f"{kind}/{members.version}/{'-'.join(map(str, members.ranks))}"
        self._numbers[place] += 1
        attempt = Attempt(effect, members, f"{place}/{self._numbers[place]}", copy)
        live = self._watch.liveness
        if len(members.ranks) == 1:
            attempt.handle = InFlight("nothing", [], lambda: alone(effect))
        elif set(members.ranks) <= set(live.members.ranks):
            try:
                live.await_lease()
                group = self._groups.among(members, attempt.name, copy)
                attempt.handle = self._collectives.begin_in(
                    group, effect, members.ranks
                )
            except RuntimeError as error:
                self._fail(attempt, error)
        return attempt

    def wait(self, attempt: Attempt) -> Tensor | None:
        """Complete a collective, and repeat it if it is one of all learners.

        Returns None if it is one of given ranks and was aborted.

        Raises:
            PeerLostError: the run has ended, or goes on without this learner.
        """
        repeated = 0
        while (result := self._complete(attempt)) is None:
            attempt.effect.tensor.copy_(attempt.copy)
            if attempt.effect.ranks is not None:
                return None
            before = self.agreed.ranks
            name = f"again/{attempt.name}"
            self.agreed = self._meetings.meet(name, "a repeated collective")
            repeated = repeated + 1 if before == self.agreed.ranks else 0
            if repeated > ATTEMPTS:
                raise PeerLostError(
                    f"learner {self._watch.liveness.rank}: a collective has failed "
                    f"{repeated} times, although its learners live: look at the network"
                )
            attempt = self._begin(attempt.effect, self.agreed, attempt.copy)
        return result

    def _complete(self, attempt: Attempt) -> Tensor | None:
        """Return the result if all have it, and None if the collective was aborted."""
        members, key = attempt.members, f"decided/{attempt.name}"
        if attempt.handle is not None and len(members.ranks) == 1:
            return attempt.handle.finish()

        def follow(store: Store) -> None:
            if not set(members.ranks) <= set(self._watch.liveness.members.ranks):
                store.compare_set(key, "", _ABORT.decode())

        what = attempt.handle.what if attempt.handle else "a collective"
        store, result = self._watch.store, None
        with self._waiting.until(follow), self._watch.asking(what):
            follow(store)
            if attempt.handle is not None:
                try:
                    self._collectives.complete(attempt.handle)
                    result = attempt.handle.finish()
                except RuntimeError as error:
                    self._fail(attempt, error)
            if result is None:
                store.compare_set(key, "", _ABORT.decode())
            elif store.add(f"done/{attempt.name}", 1) == len(members.ranks):
                store.compare_set(key, "", _COMMIT.decode())
            decided = self._watch.wait_for(key, what)
        if decided == _COMMIT:
            return result
        self._groups.drop(members)
        self._settle(members)
        return None

    def _fail(self, attempt: Attempt, error: RuntimeError) -> None:
        """Let the others' parts of a collective fail, too, which wait for this one's.

        Raises:
            PeerLostError: the run has ended, or goes on without this learner.
        """
        live = self._watch.liveness
        self._watch.check("a collective")
        if not of_network(error):
            raise error
        self._groups.drop(attempt.members)
        live.suspect(attempt.members.ranks, f"the network said: {error}")

    def _settle(self, members: Members) -> None:
        """Wait until it is known which members have died, if any is suspected."""
        live = self._watch.liveness
        while live.suspects(members.ranks) and live.lost is None:
            live.pause()
        self._watch.check("a repeated collective")


def _contribution(effect: GroupCollective) -> Tensor:
    """Return what a learner contributes, in a tensor that keeps it."""
    if isinstance(effect, AllReduceMean) and effect.kept is not None:
        return effect.kept
    overwrites = isinstance(effect, (AllReduceMean, Broadcast))
    return effect.tensor.clone() if overwrites else effect.tensor

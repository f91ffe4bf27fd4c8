"""Collectives that survive the death of a learner: all living ones have the result.

gloo says to each learner by itself whether its part of a collective was completed. So
when a learner dies in an all-reduce, some others may have the mean and others not. Here
the learners agree: each that has its result counts itself in the store, and the last
one to do so writes `commit`. Who fails, or notices that one of them is no member any
more, writes `abort`. Both are written by compare-and-set, and everybody waits for what
it says. A learner whose part takes long looks whether another one has written it: a
network may fail for one of them, while gloo lets the other wait for ever (`gloo`).

After an abort a collective of all learners is repeated among those who live, from what
each has contributed (`contributions`); so all survivors have the same result, of the
same contributions. An average in slices goes on with the first slice that one of them
lacks: the mean of earlier slices may be one with the learner that has died. A
collective of given ranks is not repeated: its tensor is as it was, and its result None,
so that the algorithm can name other ranks.

The living learners who repeat meet first (`meetings`), and so agree on who they are.
Until the next meeting or repetition that list holds for all further collectives.

The learners do so as soon as their part of an average is complete, and not only when
their training needs it: an average beside the training is decided on beside it, too.
Otherwise all would wait for the one that is last to take it.

Cost: two operations of the store, and two each second of a wait that takes long; two
more for the first learner, which deletes the keys that nobody reads any more; and a
copy of what is overwritten, which is two slices of a large average, unless the
algorithm keeps one (`AllReduceMean.kept`).
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from espnet_distopt.core.effects import GroupCollective
from espnet_distopt.core.membership import Members
from espnet_distopt.distributed import keys
from espnet_distopt.distributed.collectives import Collectives, InFlight, alone
from espnet_distopt.distributed.contributions import Contribution, contribution
from espnet_distopt.distributed.gloo import Job, in_vain
from espnet_distopt.distributed.groups import Groups
from espnet_distopt.distributed.liveness import Store
from espnet_distopt.distributed.meetings import Meetings
from espnet_distopt.distributed.watch import Watch, of_network
from espnet_distopt.errors import PeerLostError, message

ATTEMPTS = 10
"""How often a collective is repeated while the members stay the same."""

_COMMIT, _ABORT = b"commit", b"abort"


@dataclass
class Attempt:
    """A collective under way.

    Attributes:
        own: what this learner contributes to what the algorithm has yielded.
        members: those that take part in this attempt.
        name: the name of the attempt, which no other one has.
        over: on the first of them, the names of those attempts of the same place that
            were complete when this one began.
        handle: what waits for the operation; None if it could not be begun.
        job: the wait for it, if that goes on beside the training.
        result: the result of `job`.
        counted: whether this learner has counted itself among those who have theirs.
    """

    own: Contribution
    members: Members
    name: str
    over: Sequence[str] = ()
    handle: InFlight | None = None
    job: Job | None = None
    result: Tensor | None = None
    counted: bool = False


class SurvivingCollectives:
    """Carries out collectives among those who live, on the training thread.

    Attributes:
        agreed: those on whom all of them agree to take part in the next collective.
    """

    def __init__(
        self,
        groups: Groups,
        collectives: Collectives,
        watch: Watch,
        meetings: Meetings,
    ) -> None:
        self.agreed = Members.everybody(len(groups.everybody))
        self._groups = groups
        self._collectives = collectives
        self._watch = watch
        self._meetings = meetings
        self._numbers: Counter[str] = Counter()
        self._over: defaultdict[str, list[str]] = defaultdict(list)
        with watch.liveness.connections.opening():
            self._store = watch.store.clone()

    def begin(self, effect: GroupCollective, late: bool = False) -> Attempt:
        """Begin a collective; `late` if the training goes on before it waits for it."""
        members = self.agreed
        if effect.ranks is not None:
            members = Members(self._watch.liveness.members.version, effect.ranks)
        own = contribution(effect, len(self._groups.everybody))
        attempt = self._begin(own, members)
        handle = attempt.handle
        if late and own.parts == 1 and handle and handle.works and not handle.on_gpu:
            end = partial(self._end_beside, attempt, handle)
            attempt.job = self._groups.beside.begin(handle.works, end)
        return attempt

    def _end_beside(self, attempt: Attempt, handle: InFlight) -> None:
        """Keep the result of a complete operation, and count this learner."""
        attempt.result = handle.finish()
        with suppress(RuntimeError):  # The training thread asks the store once more.
            self._count(attempt, self._store)

    def _count(self, attempt: Attempt, store: Store) -> None:
        """Say that this learner has its result; the last one decides."""
        done = store.add(keys.done(attempt.name), 1)
        attempt.counted = True
        if done == len(attempt.members.ranks):
            store.compare_set(keys.decided(attempt.name), "", _COMMIT.decode())

    def _begin(self, own: Contribution, members: Members) -> Attempt:
        # A learner that knows of a death already begins one of given ranks in another
        # version than the others, and they must still count those of all alike.
        kind = "all" if own.effect.ranks is None else "given"
        place = f"{kind}/{members.version}/{'-'.join(map(str, members.ranks))}"
        self._numbers[place] += 1
        name, over = f"{place}/{self._numbers[place]}", self._over.pop(place, ())
        attempt = Attempt(own, members, name, over)
        if own.completed < own.parts:
            self._begin_part(attempt)
        return attempt

    def _begin_part(self, attempt: Attempt) -> None:
        """Begin the next part of a collective, if its members live."""
        attempt.handle, members = None, attempt.members
        live, effect = self._watch.liveness, attempt.own.next_part()
        if len(members.ranks) == 1:
            attempt.handle = InFlight("nothing", [], lambda: alone(effect))
        elif set(members.ranks) <= set(live.members.ranks):
            try:
                live.await_lease()
                # It must not refer to the attempt, which refers to the operation: the
                # tensors of a cycle live on until Python looks for cycles.
                vain = partial(self._in_vain, attempt.name, members)
                group = self._groups.among(members, attempt.name, effect.tensor, vain)
                attempt.handle = self._collectives.begin_in(
                    group, effect, members.ranks, vain
                )
            except RuntimeError as error:
                self._fail(attempt, error)

    def wait(self, attempt: Attempt) -> Tensor | None:
        """Complete a collective, and repeat it if it is one of all learners.

        Returns None if it is one of given ranks and was aborted.

        Raises:
            PeerLostError: the run has ended, or goes on without this learner.
        """
        own, repeated = attempt.own, 0
        while (result := self._complete(attempt)) is None:
            if own.effect.ranks is not None:
                own.rewind(0)
                return None
            before = self.agreed.ranks
            self._agree(attempt)
            repeated = repeated + 1 if before == self.agreed.ranks else 0
            if repeated > ATTEMPTS:
                raise PeerLostError(
                    f"learner {self._watch.liveness.rank}: a collective has failed "
                    f"{repeated} times, although its learners live: look at the network"
                )
            attempt = self._begin(own, self.agreed)
        return result

    def _agree(self, attempt: Attempt) -> None:
        """Agree with those who live on who they are, and on the parts to repeat."""
        own, name = attempt.own, attempt.name
        rank, what = self._watch.liveness.rank, "a repeated collective"
        with self._watch.asking(what):
            self._watch.store.set(keys.completed(name, rank), str(own.completed))
        self.agreed = self._meetings.meet(f"again/{name}", what)
        with self._watch.asking(what):
            theirs = [keys.completed(name, rank) for rank in self.agreed.ranks]
            own.rewind(min(map(int, self._watch.store.multi_get(theirs))))

    def _complete(self, attempt: Attempt) -> Tensor | None:
        """Return the result if all have it, and None if the collective was aborted."""
        members, key = attempt.members, keys.decided(attempt.name)

        def follow(store: Store) -> None:
            if not set(members.ranks) <= set(self._watch.liveness.members.ranks):
                store.compare_set(key, "", _ABORT.decode())

        if len(members.ranks) == 1:
            return self._carry_out(attempt)
        what = attempt.handle.what if attempt.handle else "a collective"
        store = self._watch.store
        with self._meetings.following(follow), self._watch.asking(what):
            follow(store)
            result = self._carry_out(attempt)
            if result is None:
                store.compare_set(key, "", _ABORT.decode())
            elif not attempt.counted:
                self._count(attempt, store)
            decided = self._watch.wait_for(key, what)
        if decided == _COMMIT:
            self._sweep(attempt)
            return result
        self._groups.drop(members)
        self._settle(members)
        return None

    def _sweep(self, attempt: Attempt) -> None:
        """Delete the keys of attempts whose verdicts all have read.

        Whoever has counted itself in this attempt has begun it, and before that it had
        read the verdicts on those that were over then.
        """
        if attempt.members.ranks[0] != self._watch.liveness.rank:
            return
        for name in attempt.over:
            self._watch.store.delete_key(keys.done(name))
            self._watch.store.delete_key(keys.decided(name))
        place = attempt.name.rpartition("/")[0]
        self._over[place].append(attempt.name)

    def _carry_out(self, attempt: Attempt) -> Tensor | None:
        """Complete one part after the other; return None if one of them has failed."""
        own = attempt.own
        result = own.effect.tensor
        while own.completed < own.parts:
            if attempt.handle is None:
                return None
            try:
                result = self._result(attempt, attempt.handle)
            except RuntimeError as error:
                self._fail(attempt, error)
                return None
            own.completed += 1
            if own.completed < own.parts:
                self._begin_part(attempt)
        return result if own.parts == 1 else own.effect.tensor

    def _result(self, attempt: Attempt, handle: InFlight) -> Tensor:
        """Wait for the operation of a part, and return its result."""
        if attempt.job is None:
            self._collectives.complete(handle)
            return handle.finish()
        with self._collectives.timed():
            self._groups.beside.end(attempt.job, handle.vain)
        assert attempt.result is not None
        return attempt.result

    def _in_vain(self, name: str, members: Members) -> str | None:
        """Return why it is in vain to wait for the part of an attempt; None if not."""
        why = in_vain(self._watch.liveness, members.ranks)
        key, store = keys.decided(name), self._watch.store
        if why is None and store.check([key]) and bytes(store.get(key)) == _ABORT:
            return "the connection of another learner has failed"
        return why

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
        if set(attempt.members.ranks) <= set(live.members.ranks):
            # Otherwise it is known already who has died, and that explains it.
            live.suspect(attempt.members.ranks, f"the network said: {message(error)}")

    def _settle(self, members: Members) -> None:
        """Wait until it is known which members have died, if any is suspected."""
        live = self._watch.liveness
        while live.suspects(members.ranks) and live.lost is None:
            live.pause()
        self._watch.check("a repeated collective")

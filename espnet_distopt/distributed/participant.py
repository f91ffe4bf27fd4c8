"""One learner among the others of a run, as a process knows them.

A participant is connected to the other learners, and knows which of them live. It may
join in the place of one that has died. It agrees with the others on where a run stops,
and tells them when it leaves. What the learners compute together is the driver's, see
`process_group`.
"""

import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch.distributed as dist
from torch.distributed import HashStore  # type: ignore[attr-defined]

from espnet_distopt.core.driver import Place, SharedStore
from espnet_distopt.core.membership import Members
from espnet_distopt.distributed.earlier import keep, next_session
from espnet_distopt.distributed.gossip_side import GossipSide
from espnet_distopt.distributed.groups import Groups
from espnet_distopt.distributed.hosting import Host
from espnet_distopt.distributed.joining import enter
from espnet_distopt.distributed.launch_variables import LAZY, LAZY_GROUP
from espnet_distopt.distributed.launcher import (
    announce_hopeless,
    is_started_again,
    learners_per_node,
)
from espnet_distopt.distributed.liveness import Liveness
from espnet_distopt.distributed.meetings import Meetings, Waiting
from espnet_distopt.distributed.queue_keys import position
from espnet_distopt.distributed.watch import Watch, explain, of_network
from espnet_distopt.errors import STOPPED, InputError, PeerLostError, in_words


class Participant:
    """A learner of the default process group, or one learner alone without it.

    All processes construct it together, because it connects them.

    Args:
        silence: seconds without a heartbeat after which a learner counts as lost.
        record: the list to which the gossip side adds the sections that have run; None
            if it is not kept.

    Attributes:
        rank: the number of this learner, 0 <= rank < size.
        size: the number of learners.
        per_node: the number of learners on each machine, as the launcher says; None if
            it does not say so, or if the machines have unequal numbers.
        joins: whether this learner replaces one that has died, and has not joined yet.
        record: the list of the sections; None if it is not kept.
        spent: seconds that the training thread has spent in collectives ("comm_time")
            and in waits for gossip ("wait_time"), and bytes sent ("bytes").
    """

    def __init__(
        self, silence: float = 30, record: list[tuple[str, Any]] | None = None
    ) -> None:
        self.spent: defaultdict[str, float] = defaultdict(float)
        self.record = record
        self.rank, self.size = 0, 1
        self._gossip: GossipSide | None = None
        self._liveness: Liveness | None = None
        self._groups: Groups | None = None
        self._change: Callable[[Members], None] | None = None
        self.joins = False
        self._host: Host | None = None
        self._state: Callable[[], dict[str, Any]] = dict
        self._barriers = 0
        self._monitor = threading.Condition()
        if dist.is_initialized():
            self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self._told = Members.everybody(self.size)
        self.per_node = learners_per_node(self.size, os.environ)
        self._store: SharedStore = HashStore()
        if self.size > 1:
            try:
                self._connect(silence)
            except BaseException as error:
                self._announce_hopeless(error)
                self.leave(error)
                raise

    def _announce_hopeless(self, error: BaseException) -> None:
        """Tell the launcher that a session cannot begin, after others have ended.

        A learner that is started again could only join the sessions before.
        """
        live = self._liveness
        later = live is not None and live.follows_another and live.has_lease()
        if later and isinstance(error, PeerLostError):
            announce_hopeless(error.reason)

    def _connect(self, silence: float) -> None:
        opening = next_session(self.rank)
        store, number, bells = opening
        if os.environ.get(LAZY_GROUP) == LAZY:
            # It was for the default group alone; later ones must meet the others'.
            del os.environ[LAZY_GROUP]
        self._liveness = live = Liveness(
            store, self.rank, self.size, silence, number, bells
        )
        keep(opening, live.membership)
        self.joins = number > 0
        self._watch = Watch(live, store)
        self._store = self._watch.store
        self._gossip = GossipSide(
            live, store, self._monitor, self._follow, self.spent, self.record
        )
        # The heartbeat's thread never waits; it has no connection to be severed.
        self._waiting = Waiting(live, store.clone())
        self._meetings = Meetings(self._watch, self._waiting)
        self._groups = Groups(self.rank, self.size, self._watch, self._meetings.meet)

    @property
    def store(self) -> SharedStore:
        """The rendezvous store, for the training thread; one of its own if alone."""
        return self._store

    @contextmanager
    def asking(self, what: str) -> Generator[None, None, None]:
        """Inside, the store is asked: it takes time, and the store may be gone.

        Raises:
            PeerLostError: a learner is lost, or the store, while `what` was under way.
        """
        start = time.perf_counter()
        try:
            with self._watch.asking(what) if self._liveness else nullcontext():
                yield
        finally:
            self.spent["comm_time"] += time.perf_counter() - start

    def await_lease(self) -> None:
        """Return when the others cannot have given this learner up for silence.

        Raises:
            RuntimeError: the run ends for this learner.
        """
        if self._liveness is not None:
            self._liveness.await_lease()

    # Members

    @property
    def members(self) -> Members:
        """The learners that live, as this one knows by now."""
        if self._liveness is None:
            return Members.everybody(self.size)
        return self._liveness.members

    def incarnation(self, rank: int) -> int:
        """Return how often a learner of `rank` was started before the present one."""
        return self._liveness.membership.incarnation(rank) if self._liveness else 0

    @property
    def dead(self) -> Mapping[int, int]:
        """For each other learner that has died: how often it was started before."""
        return self._liveness.membership.dead if self._liveness else {}

    def _follow(self) -> None:
        """Tell the algorithm of the members, as the gossip side has noticed them."""
        self._tell(self.members)

    def _tell(self, members: Members) -> None:
        """Tell the algorithm of newer members."""
        if self._change is not None and members.version > self._told.version:
            self._told = members
            self._change(members)

    # Joining in the place of a learner that has died

    def offer(self, state: Callable[[], dict[str, Any]]) -> None:
        """Let replacements of others take over this learner's state, from now on.

        Args:
            state: returns tensors, numbers, strings, lists and dicts; it is called at
                the end of a step.
        """
        gossip = self._gossip
        if self._liveness is not None and gossip is not None and self._host is None:
            self._state = state
            self._host = Host(self._liveness, self._watch, lambda: gossip.over)

    def join(self, take: Callable[[dict[str, Any]], None]) -> None:
        """Enter the members in the place of a learner that has died.

        If the gossip of the epoch ends before that, it joins in the next epoch.

        Args:
            take: takes over what the `state` of a member has returned (`offer`). It is
                called again for each attempt. If it raises `JoinLater`, this learner
                joins in the next epoch.

        Raises:
            PeerLostError: the others have ended, or give this learner up.
        """
        assert self._liveness is not None and self._gossip is not None
        state = enter(self._liveness, self._watch, take)
        self.joins = False
        self._gossip.rounds, self._barriers = state["round"] - 1, state["barriers"]
        place = position(self)
        place.opened, place.joined = state["queue"], state["reading"]
        self._told = self.members

    def _end_step(self) -> None:
        """Serve a replacement that has asked for this learner's state."""
        if self._host is not None:
            self._host.end_step(self._joinable)

    def _joinable(self) -> dict[str, Any]:
        place, live = position(self), self._liveness
        return {
            "round": self._gossip.rounds if self._gossip else 0,
            "barriers": self._barriers,
            "incarnations": live.membership.incarnations if live else {},
            "queue": place.to_join(),
            "reading": place.reading,
            "learner": self._state(),
        }

    # Stopping and leaving

    def announce_stop(self) -> None:
        """Tell all learners that the run is to stop."""
        if self._liveness is not None:
            with self._watch.asking("announcing a stop"):
                self._watch.store.set("stop", b"1")

    def stop_announced(self) -> bool:
        """Return whether a learner has announced a stop. Cost: a look at the store."""
        if self._liveness is None:
            return False
        with self._watch.asking("a step"):
            return bool(self._watch.store.check(["stop"]))

    def propose_stop(self, group: tuple[int, ...], place: Place) -> Place:
        """Return where the learners of `group` stop: the first proposal."""
        if self._liveness is None:
            return place
        with self._watch.asking("agreeing on a stop"):
            key, own = f"stop/{group[0]}", f"{place.epochs}:{place.steps}"
            agreed = bytes(self._watch.store.compare_set(key, "", own)).decode()
            return Place(*map(int, agreed.split(":")))

    def leave(self, error: BaseException | None = None) -> None:
        """Stop the heartbeat; with an `error`, tell the other learners about it.

        An error of this learner's program ends the run for all, whatever the algorithm,
        unless the launcher starts this learner again. To end the process by `STOPPED`
        is no error: the learners have agreed on that, and one that is still about to do
        so must not fail.

        Raises:
            PeerLostError: `error` is of the network, because a learner is lost: this
                says so where an operation that is not the driver's has failed.
        """
        if self._liveness is None:
            return
        if self._host is not None:
            self._host.close()
        found = error
        lost = isinstance(error, PeerLostError)
        if isinstance(error, RuntimeError) and not lost and of_network(error):
            before, what = self.members, "a collective of the training loop's"
            explained = explain(self._liveness, error, what)
            # The words of an error of the program's own may be those of the network.
            died = self._liveness.lost is not None or self.members != before
            found = explained if died else error
        stopped = isinstance(error, SystemExit) and error.code == STOPPED
        if error is None or stopped:
            self._liveness.leave()
        elif isinstance(found, PeerLostError):
            self._liveness.leave(found.reason, alone=True, faulty=False)
        else:
            # What one program raises, the others may, too: it must not go unnoticed.
            mendable = isinstance(error, Exception) and not isinstance(
                error, InputError
            )
            why = f"learner {self.rank} ended with {in_words(error)}"
            self._liveness.leave(why, alone=mendable and is_started_again())
        if self._gossip is not None:
            self._gossip.close()
        if self._groups is not None:
            self._groups.close(error is None or stopped)
        # What the learner has given is in a cycle with it, and as large as its model.
        self._change, self._state = None, dict
        self._liveness.forget()
        if isinstance(found, PeerLostError) and found is not error:
            raise found from error

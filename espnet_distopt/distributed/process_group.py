"""The process-group driver: one learner a process, over `torch.distributed`.

Collectives run on the training thread. Gossip runs on a thread of its own, over TCP
connections of its own, from CPU memory (pinned for a GPU), because a group of gloo or
NCCL fails as a whole when one of its learners dies. The programs of an algorithm run
under one lock, which the driver releases while it carries out an effect. So the code
between two yields is atomic, and long work of the gossip side (`RunInBackground`) does
not hold up the training thread.

A learner is connected to the others, and knows which of them live. It may join in the
place of one that has died. It agrees with the others on where a run stops, and tells
them when it leaves.
"""

import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed import HashStore  # type: ignore[attr-defined]

from espnet_distopt.core.driver import Place, SharedStore
from espnet_distopt.core.effects import (
    LIFECYCLE,
    AwaitGossip,
    Barrier,
    Begin,
    Collective,
    Effect,
    GroupCollective,
    Published,
    StartGossip,
    StopGossip,
    Wait,
)
from espnet_distopt.core.membership import Meeting, Members
from espnet_distopt.core.open_queues import position
from espnet_distopt.core.protocols import Membership
from espnet_distopt.distributed import keys
from espnet_distopt.distributed.collectives import Collectives, InFlight
from espnet_distopt.distributed.earlier import keep, next_session
from espnet_distopt.distributed.gossip import Gossip
from espnet_distopt.distributed.groups import Groups
from espnet_distopt.distributed.joining import StateServer, enter
from espnet_distopt.distributed.launch_variables import LAZY, LAZY_GROUP
from espnet_distopt.distributed.launcher import (
    announce_hopeless,
    announce_survival,
    is_started_again,
    learners_per_node,
)
from espnet_distopt.distributed.liveness import Liveness
from espnet_distopt.distributed.meetings import Meetings
from espnet_distopt.distributed.surviving import Attempt, SurvivingCollectives
from espnet_distopt.distributed.watch import Watch, explain, of_network
from espnet_distopt.errors import STOPPED, InputError, PeerLostError, in_words


class ProcessGroupDriver:
    """Carries out effects between the processes of the default process group.

    Without a process group it serves one learner alone. All processes construct it
    together, because it connects them.

    Args:
        silence: seconds without a heartbeat after which a learner counts as lost: it
            has died, was stopped, or is cut off by the network.
        recording: whether to keep `record`.

    Attributes:
        rank: the number of this learner, 0 <= rank < size.
        size: the number of learners.
        per_node: the number of learners on each machine, as the launcher says; None if
            it does not say so, or if the machines have unequal numbers.
        joins: whether this learner replaces one that has died, and has not joined yet.
        store: the rendezvous store, for the training thread; one of its own if alone.
        record: the sections of the algorithm's programs that have run in epochs, in
            their order, for tests that repeat them; None if they are not kept.
        spent: seconds that the training thread has spent in collectives ("comm_time")
            and in waits for gossip ("wait_time"), and bytes sent ("bytes").
    """

    def __init__(self, silence: float = 30, recording: bool = False) -> None:
        self.spent: defaultdict[str, float] = defaultdict(float)
        self.record: list[tuple[str, Any]] | None = [] if recording else None
        self.rank, self.size = 0, 1
        self._gossip: Gossip | None = None
        self._liveness: Liveness | None = None
        self._groups: Groups | None = None
        self._surviving: SurvivingCollectives | None = None
        self._unit: set[int] = set()
        self._change: Callable[[Members], None] | None = None
        self.joins = False
        self._state_server: StateServer | None = None
        self._state: Callable[[], dict[str, Any]] = dict
        self._barriers = 0
        self._monitor = threading.Condition()
        if dist.is_initialized():
            self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self._told = Members.everybody(self.size)
        self.per_node = learners_per_node(self.size, os.environ)
        self.store: SharedStore = HashStore()
        self._membership = Membership(self.store, self.rank, self.size)
        if self.size > 1:
            try:
                self._connect(silence)
            except BaseException as error:
                self._announce_hopeless(error)
                self.leave(error)
                raise
        self._collectives = Collectives(self._groups, self.spent)

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
        store, number, before = opening
        if os.environ.get(LAZY_GROUP) == LAZY:
            # It was for the default group alone; later ones must meet the others'.
            del os.environ[LAZY_GROUP]
        self._liveness = live = Liveness(
            store, self.rank, self.size, silence, number, before
        )
        self._membership = live.membership
        keep(opening, self._membership)
        self.joins = number > 0
        self._watch = Watch(live, store)
        self.store = self._watch.store
        self._gossip = Gossip(
            live,
            store,
            self._monitor,
            lambda: self._tell(self.members),
            self.spent,
            self.record,
        )
        # The heartbeat's thread never waits; it has no connection to be severed.
        self._meetings = Meetings(self._watch, store.clone())
        self._groups = Groups(self.rank, self.size, self._watch, self._meetings.meet)

    # Programs

    def run(self, program: Generator[Effect, Any, Any], in_epoch: bool = False) -> Any:
        """Run a program of the training side, and return its value.

        Args:
            program: the program.
            in_epoch: whether it is part of an epoch's training, which is recorded.

        Raises:
            PeerLostError: another learner has died; the message names it.
        """
        result: Any = None
        effect: Any = None
        gossip = self._gossip
        while True:
            with self._monitor:
                if gossip is not None:
                    gossip.check()
                if self._surviving is not None:
                    self._watch.check("a step")
                recorded = in_epoch and not isinstance(effect, LIFECYCLE)
                if self.record is not None and recorded:
                    self.record.append(("training", None))
                try:
                    # On a GPU a section waits for the gossip's last.
                    with gossip.streams.training_section() if gossip else nullcontext():
                        effect = program.send(result)
                except StopIteration as stop:
                    return stop.value
                progress = gossip.progress if gossip else 0
            result = self._perform(effect, progress)

    def _perform(self, effect: Effect, progress: int) -> Any:
        match effect:
            case Collective():
                return self._wait(self._begin(effect))
            case Begin(collective):
                return self._begin(collective, late=True)
            case Wait(handle):
                return self._wait(handle)
            case Barrier(pausing):
                return self._barrier(pausing)
            case AwaitGossip() | StartGossip() | Published() | StopGossip():
                return self._turn_to_gossip(effect, progress)
            case _:
                raise TypeError(f"{effect} belongs in a gossip program")

    def _turn_to_gossip(self, effect: Effect, progress: int) -> None:
        """Carry out an effect on the gossip side; one learner alone has none."""
        gossip = self._gossip
        if gossip is None:
            return
        match effect:
            case StartGossip(program, device):
                gossip.start(program, device)
            case AwaitGossip():
                gossip.wait(progress)
            case Published() if gossip.thread is not None:
                with self._monitor:
                    gossip.publish()
                    if self._state_server is not None:
                        self._state_server.end_step(self._joinable)
            case StopGossip():
                gossip.stop()

    # Collectives

    def _begin(self, effect: Collective, late: bool = False) -> InFlight | Attempt:
        surviving = self._surviving
        if surviving is None or not isinstance(effect, GroupCollective):
            return self._collectives.begin(effect)
        if effect.ranks is not None and self._unit.issuperset(effect.ranks):
            # Those of one unit, as the learners of a node, are lost together.
            return self._collectives.begin(effect)
        with self._watch.asking("a collective"):
            return surviving.begin(effect, late)

    def _wait(self, handle: InFlight | Attempt) -> Tensor | None:
        if isinstance(handle, InFlight):
            return self._collectives.wait(handle)
        assert self._surviving is not None
        result = self._surviving.wait(handle)
        with self._monitor:
            self._tell(self.members if result is None else self._surviving.agreed)
        return result

    # Meeting

    def _barrier(self, pausing: bool) -> Meeting:
        """Wait for all living learners, however long they take.

        Comes before the collectives at the end of an epoch, which a learner may reach
        long before a slow one.
        """
        if self._liveness is None:
            return Meeting(pausing, Members.everybody(self.size))
        start = time.perf_counter()
        self._barriers += 1
        what, pause = "the end of an epoch", keys.pause(self._barriers)
        with self._watch.asking(what):
            if pausing:
                self._watch.store.set(pause, b"1")
        gossip = self._gossip
        closes = gossip.rounds if gossip and gossip.thread is None else 0
        met = self._meetings.meet(f"epoch/{self._barriers}", what, closes=closes)
        self.spent["wait_time"] += time.perf_counter() - start
        if self._surviving is not None:
            self._surviving.agreed = met
            with self._monitor:
                self._tell(met)
                self._told = met
        with self._watch.asking(what):
            return Meeting(bool(self._watch.store.check([pause])), met)

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
        return self._membership.members

    def incarnation(self, rank: int) -> int:
        """Return how often a learner of `rank` was started before the present one."""
        return self._membership.incarnation(rank)

    @property
    def dead(self) -> Mapping[int, int]:
        """For each other learner that has died: how often it was started before."""
        return self._membership.dead

    def _tell(self, members: Members) -> None:
        """Tell the algorithm of newer members."""
        if self._change is not None and members.version > self._told.version:
            self._told = members
            self._change(members)

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
        if self._liveness is None or self._groups is None:
            return
        self._change, self._unit = change, set(lost_with(self.rank))
        if self._surviving is None:
            self._surviving = SurvivingCollectives(
                self._groups, self._collectives, self._watch, self._meetings
            )
        self._liveness.survive(lost_with, remark)
        if not self.joins:  # A replacement has met nobody yet.
            announce_survival()

    # Joining in the place of a learner that has died

    def offer(self, state: Callable[[], dict[str, Any]]) -> None:
        """Let replacements of others take over this learner's state, from now on.

        Args:
            state: returns tensors, numbers, strings, lists and dicts; it is called at
                the end of a step.
        """
        live, gossip = self._liveness, self._gossip
        if live is not None and gossip is not None and self._state_server is None:
            self._state = state
            self._state_server = StateServer(live, self._watch, lambda: gossip.over)

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

    def _joinable(self) -> dict[str, Any]:
        place = position(self)
        return {
            "round": self._gossip.rounds if self._gossip else 0,
            "barriers": self._barriers,
            "incarnations": self._membership.incarnations,
            "queue": place.to_join(),
            "reading": place.reading,
            "learner": self._state(),
        }

    # Stopping and leaving

    def announce_stop(self) -> None:
        """Tell all learners that the run is to stop."""
        if self._liveness is not None:
            with self._watch.asking("announcing a stop"):
                self._watch.store.set(keys.STOP, b"1")

    def stop_announced(self) -> bool:
        """Return whether a learner has announced a stop. Cost: a look at the store."""
        if self._liveness is None:
            return False
        with self._watch.asking("a step"):
            return bool(self._watch.store.check([keys.STOP]))

    def propose_stop(self, group: tuple[int, ...], place: Place) -> Place:
        """Return where the learners of `group` stop: the first proposal."""
        if self._liveness is None:
            return place
        with self._watch.asking("agreeing on a stop"):
            key, own = keys.stop_at(group[0]), f"{place.epochs}:{place.steps}"
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
        if self._state_server is not None:
            self._state_server.close()
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

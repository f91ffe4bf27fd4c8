"""The supervisor of one node: starts its learners, and decides when one dies.

What happens when a learner dies, with learner 2 of four as an example:

    The kernel tells the supervisor that a child has ended. It kills what the child has
        left of its process group, and takes the status.
    It asks for a look into the store, where the learner may have said why it ends, and
        another one that the others survive.
    If the others survive, learner 2 is started again in the same place, as often as
        allowed, and the others notice nothing but that it was away.
    If that is not allowed, the others go on only if learner 2 was killed by a signal,
        or has said that the others have given it up. A program that ends by itself with
        a status other than 0 has failed, and the others may have met unnoticed what it
        has met.
    If they do not go on, they get SIGTERM, and SIGKILL some seconds later. Supervisors
        of other nodes read of the failure in the store, and do the same.
    When the last learner has ended, node 0 collects the lives of all learners and
        writes the verdict into the store. Every supervisor ends with that status.
"""

import math
import shlex
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import IO, Any

from espnet_distopt.distributed.launch_variables import LOST, RETURNS
from espnet_distopt.errors import STOPPED, InputError
from espnet_distopt.launch.children import Children
from espnet_distopt.launch.events import Events
from espnet_distopt.launch.learner import Learner, write_out
from espnet_distopt.launch.plan import Plan
from espnet_distopt.launch.store_link import StoreLink
from espnet_distopt.launch.verdict import (
    REFUSED,
    Ends,
    Life,
    Verdict,
    describe,
    judge,
    signal_of,
)

FORWARDED = {n: n for n in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)}
FORWARDED[signal.SIGHUP] = signal.SIGTERM  # Programs that save listen for the latter.
"""Signal to this process -> signal to its learners."""

GRACE_AFTER_FAILURE = 10.0
"""Seconds to end after another's death, when nothing can be saved any more."""


@dataclass(frozen=True)
class Policy:
    """What happens when a learner dies or is told to stop.

    Attributes:
        restarts: how often each learner is started again, at most.
        others_go_on: whether the others go on; None: if they have told the launcher
            that they do (`distributed.launcher.announce_survival`).
        join_seconds: the seconds after which a replacement is killed that has not
            joined the others.
        stop_seconds: the seconds after which a learner is killed that SIGTERM or Ctrl-C
            has told to stop; infinite if something else has a limit.
    """

    restarts: int = 0
    others_go_on: bool | None = None
    join_seconds: float = math.inf
    stop_seconds: float = math.inf


class Supervisor:
    """Runs the learners of this node.

    Args:
        plan: the nodes of the run.
        command: the program of every learner, with its arguments.
        policy: what happens when a learner dies.
        label: whether to write `RANK: ` before each line of a learner.
        environment: the variables of this process, which the learners get, too.
    """

    def __init__(
        self,
        plan: Plan,
        command: Sequence[str],
        policy: Policy,
        label: bool,
        environment: Mapping[str, str],
    ) -> None:
        self.plan, self.command, self.policy = plan, command, policy
        # Torch would warn, with 20 frames of C++, of each connection that is closed.
        quiet = {"TORCH_CPP_LOG_LEVEL": "ERROR"}
        self.environment = {"OMP_NUM_THREADS": "1", **quiet, **environment}
        self.several = len(plan.counts) > 1
        self.survive = policy.others_go_on is True
        self.interrupted = False
        self.told: int | None = None  # The first signal that asks for an end.
        self.failure: Life | None = None
        self.verdict: Verdict | None = None
        self._first_incarnation = 0
        self._kill_at = math.inf
        self._begun = self._reported = False
        self._in_sessions = False  # Whether the learners say how they fare.
        self._undecided: list[Learner] = []  # They have died.
        self._hopeless = ""
        self._ends = Ends(plan)
        self._events = Events(FORWARDED)
        self._children = Children()
        ranks = plan.ranks(plan.node)
        self.learners = [
            Learner(rank, plan.host, self._children, label) for rank in ranks
        ]

    def run(self) -> int:
        """Run all learners to their end, and return the exit status of the run.

        Raises:
            InputError: the port is taken, or other nodes were started otherwise.
        """
        try:
            self._link = StoreLink(self.plan, self._children, self.environment)
            try:
                self._events.watch(self._link.stdout, self._hear_store)
                if not self.several:
                    self._begin(0)
                while self.verdict is None:
                    self._events.wait(0.5)  # The time limit is for _kill_at.
                    self._handle_signals()
                    self._look_at_learners()
                    self._conclude()
                self._events.ignore_signals()
            finally:
                self._kill()
                self._link.close()
        finally:
            self._children.close()
        if self.verdict.text and self.plan.node == 0:
            self._say(self.verdict.text)
        return self.verdict.status

    # Signals

    def _handle_signals(self) -> None:
        for number in self._events.take_signals():
            if number == signal.SIGINT and self.interrupted:
                self._kill()
            if not self.told:
                self.told = number
                self._say(f"{signal.Signals(number).name}: the learners are told")
            self.interrupted |= number == signal.SIGINT
            for learner in self.learners:
                learner.send(FORWARDED[number])
            if number != signal.SIGUSR1:
                limit = time.monotonic() + self.policy.stop_seconds
                self._kill_at = min(self._kill_at, limit)
        if time.monotonic() > self._kill_at:
            self._kill()

    def _kill(self) -> None:
        for learner in self.learners:
            learner.kill()

    # Learners

    def _begin(self, joined: int) -> None:
        """Start all learners, after this node has joined so many times before."""
        self._first_incarnation = joined * (self.policy.restarts + 1)
        self._begun = True
        first, last = self.learners[0].rank, self.learners[-1].rank
        which = f"learners {first} to {last}" if first < last else f"learner {first}"
        # A program that imports torch may need ten seconds to its own first line.
        self._say(
            f"{which} of {self.plan.size}, on {self.plan.host}: "
            f"{shlex.join(self.command)}"
        )
        for learner in self.learners:
            self._start(learner)

    def _start(self, learner: Learner) -> None:
        number = self._first_incarnation + learner.starts
        own = self.plan.variables(learner.rank, number, self._link.port)
        own[RETURNS] = str(int(learner.starts < self.policy.restarts))
        learner.start(self.command, {**self.environment, **own}, number)
        for pipe in learner.pipes:
            self._events.watch(pipe, partial(self._relay, learner, pipe))

    def _look_at_learners(self) -> None:
        for learner in self.learners:
            if self._in_sessions and learner.is_late(self.policy.join_seconds):
                late = f"has not joined the others for {self.policy.join_seconds:g} s"
                self._say(f"learner {learner.rank} on {learner.host} {late}: killed")
                learner.kill()
            status = learner.take_end()
            if status is None:
                continue
            self._link.send(gone=learner.name)  # The others wait to hear it.
            for pipe in learner.pipes:
                while not pipe.closed:
                    self._relay(learner, pipe)
            if status not in (0, STOPPED) and self.failure is None:
                # Since the last look into the store it may have said why it ends, and
                # others that they go on. The answer decides.
                self._undecided.append(learner)
                self._link.send(asked=learner.name)

    def _relay(self, learner: Learner, pipe: IO[bytes]) -> None:
        if not learner.relay(pipe):  # It is closed, or the learner has ended.
            self._events.forget(pipe)
            pipe.close()

    def _decide(self, said: str) -> None:
        """Start the first of those that have died again, give it up, or end the others.

        Args:
            said: what it has said of its end (`keys.end`); "" for nothing.
        """
        if not self._undecided:  # The run has failed meanwhile.
            return
        learner = self._undecided.pop(0)
        kind, _, learner.why = said.partition(" ")
        status = learner.status
        assert status is not None
        # A replacement that has not joined has had no part in the training.
        if not (signal_of(status) or kind == LOST or learner.joining):
            learner.failure = learner.life
        if self.told:
            learner.lost = self.survive and learner.failure is None
        elif self.survive and self._may_start_again(learner, status):
            again = f"{learner.starts} of at most {self.policy.restarts}"
            self._say(f"{learner.life}: it is started again ({again})")
            self._start(learner)
        elif self.survive and learner.failure is None:
            learner.lost = True
            self._say(f"{learner.life}: it is lost, and the others go on")
        else:
            self._say(f"{learner.life}: the others are ended")
            self._fail(learner.failure or learner.life)

    def _may_start_again(self, learner: Learner, status: int) -> bool:
        """Return whether another process of a learner is allowed, and of use.

        One that was refused would be refused again. Once a learner has ended well or
        has stopped, the others are about to, and nobody would be there whom a new one
        could join.
        """
        at_end = any(each.status in (0, STOPPED) for each in self.learners)
        allowed = learner.starts <= self.policy.restarts
        refused = status == REFUSED or learner.why.startswith(f"{InputError.__name__}:")
        return allowed and not refused and not at_end

    def _fail(self, failure: Life) -> None:
        """End the learners of all nodes, because one has died."""
        if self.failure is not None:
            return
        self.failure = failure
        self._undecided.clear()  # Nothing is left to decide, nor a store to ask.
        if self.several:
            self._link.send(failed=asdict(failure))
        for learner in self.learners:
            learner.send(signal.SIGTERM)
        self._kill_at = min(self._kill_at, time.monotonic() + GRACE_AFTER_FAILURE)

    # The store

    def _hear_store(self) -> None:
        messages = self._link.read()
        if messages is None:
            self._events.forget(self._link.stdout)
            self._lose_store()
        for message in messages or ():
            for name, value in message.items():
                self._hear(name, value)

    def _hear(self, name: str, value: Any) -> None:
        what, _, node = name.partition("/")
        match what:
            case "error":
                raise InputError(value)
            case "joined" if self.several and not self.told:
                self._begin(value)
            case "survives":
                self._in_sessions = True
                self.survive |= self.policy.others_go_on is None
            case "answered":
                self._decide(value)
            case "replaced":
                for learner in self.learners:
                    learner.note_joined(value)
            case "hopeless":
                self._say(f"{value}: all learners are ended")
                self._give_up(value)
            case "failed":
                self._fail(Life(**value))
                self.failure = Life(**value)  # Of several, the store has the first.
            case "verdict":
                self.verdict = Verdict(**value)
            case "ended":
                self.interrupted |= value["interrupted"]
                lives = [Life(**life) for life in value["lives"]]
                self._ends.note(int(node), lives)
            case "looks" if not value:
                self._lose_node(int(node))
            case "looks" if self._ends.note_look(int(node)):
                self._say(f"node {node} is back: it is not lost any more")

    def _lose_node(self, node: int) -> None:
        """Count the learners of a node as lost that has gone silent."""
        first = self._ends.lose(node)
        others = "go on" if self.survive else "are ended"
        self._say(f"node {node} has gone silent: it is lost, and the others {others}")
        if not self.survive:
            self._fail(first)

    def _lose_store(self) -> None:
        """End all learners, since the store's process has ended before them."""
        while (status := self._link.ended) is None:
            time.sleep(0.01)
        self._say(
            f"the process of the rendezvous store {describe(status)}: "
            "no learner can go on without it"
        )
        self._give_up("its rendezvous store is gone")

    def _give_up(self, why: str) -> None:
        """End all learners, since none can go on."""
        self._hopeless = self._hopeless or why
        self._fail(Life(-1, self.plan.host, 1))

    # The end

    def _conclude(self) -> None:
        """Reach the verdict when all learners have ended, or wait for node 0's."""
        if self._undecided or any(each.status is None for each in self.learners):
            return
        lives = [learner.life for learner in self.learners]
        if not self._begun:
            if self.told:
                self.verdict = Verdict(128 + self.told)
        elif self._hopeless:
            self.verdict = Verdict(1, f"the run failed: {self._hopeless}")
        else:
            self._report(lives)
            none_comes = bool(self.told or self.failure) or all(x.lost for x in lives)
            if self.plan.node == 0 and self._ends.are_all(none_comes):
                self.verdict = judge(self._ends.lives, self.failure, self.interrupted)
                if self.several:
                    self._link.send(verdict=asdict(self.verdict))

    def _report(self, lives: list[Life]) -> None:
        """Tell node 0 how the learners of this node have ended, once."""
        if not self.several:
            self._ends.note(0, lives)
        elif not self._reported:
            # Node 0 hears its own report, too, behind the news of nodes that have come.
            how = {"lives": [*map(asdict, lives)], "interrupted": self.interrupted}
            self._link.send(**{f"ended/{self.plan.node}": how})
        self._reported = True

    def _say(self, text: str) -> None:
        write_out(sys.stderr, f"launch: {text}\n".encode())

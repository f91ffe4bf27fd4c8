"""The gossip thread of the process-group driver.

Pairing goes through the store: an active learner drops its rank into the mailbox of a
passive one and both then enter the same directed send and receive. Active
learners whose gossip ends are counted, and the last of them says so in the mailbox of
each passive one: so no receive is ever left waiting.
"""

import threading
from typing import Any

import torch
from torch import Tensor

from espnet_distopt.core.effects import (
    AwaitInvitation,
    AwaitStep,
    Effect,
    Exchange,
    Invite,
    Program,
    Retire,
    RunInBackground,
)
from espnet_distopt.distributed.groups import Group
from espnet_distopt.distributed.watch import Watch

TAG = 7
"""Of the messages of an exchange."""

RETIRED = b"retired"


class GossipThread(threading.Thread):
    """Runs one gossip program, for one epoch.

    Attributes (guarded by the monitor):
        steps: how often the training side has published.
        ending: the training side has ended its epoch.
        progress: how many times the program has run on.
        failure: the exception that ended the program, if one did.
        bytes_sent: in exchanges.

    Args:
        record: gets an entry for each section of the program that runs.
    """

    def __init__(
        self,
        program: Program,
        monitor: threading.Condition,
        mailboxes: str,
        watch: Watch,
        group: Group,
        rank: int,
        record: list[tuple[str, Any]] | None = None,
    ) -> None:
        super().__init__(name="distopt-gossip", daemon=True)
        self.steps = 0
        self.ending = False
        self.progress = 0
        self.failure: BaseException | None = None
        self.bytes_sent = 0
        self._program = program
        self._monitor = monitor
        self._mailboxes = mailboxes
        self._watch = watch
        self._group = group
        self._rank = rank
        self._record = record
        self._steps_seen = 0
        self._mails_read = 0
        self._staged: tuple[Tensor, Tensor] | None = None

    def run(self) -> None:
        """Run the program to its end; a failure is kept for the training side."""
        try:
            self._drive()
        except BaseException as error:
            with self._monitor:
                self.failure = error
                self._monitor.notify_all()

    def _drive(self) -> None:
        result: object = None
        decided = False
        while True:
            with self._monitor:
                try:
                    if self._record is not None:
                        self._record.append(("gossip", result if decided else None))
                    effect = self._program.send(result)
                except StopIteration:
                    break
                finally:
                    self.progress += 1
                    self._monitor.notify_all()
            result = self._perform(effect)
            decided = isinstance(effect, (AwaitStep, AwaitInvitation))

    def _perform(self, effect: Effect) -> object:
        match effect:
            case AwaitStep():
                return self._await_step()
            case Invite(peer):
                self._mail(peer, b"%d" % self._rank)
                return None
            case Retire(actives, passives):
                self._retire(actives, passives)
                return None
            case AwaitInvitation():
                return self._await_invitation()
            case Exchange(peer, tensor, into):
                return self._exchange(peer, tensor, into)
            case RunInBackground(work):
                work()
                return None
            case _:
                raise TypeError(f"{effect} does not belong in a gossip program")

    def _await_step(self) -> bool:
        with self._monitor:
            while self.steps == self._steps_seen and not self.ending:
                self._monitor.wait(1.0)
            self._steps_seen = self.steps
            return not self.ending

    def _mail(self, peer: int, message: bytes) -> None:
        store, box = self._watch.store, f"{self._mailboxes}/{peer}"
        with self._watch.asking(f"telling learner {peer}"):
            number = store.add(box, 1)
            store.set(f"{box}/{number}", message)

    def _retire(self, actives: int, passives: tuple[int, ...]) -> None:
        with self._watch.asking("the end of the gossip"):
            retired = self._watch.store.add(f"{self._mailboxes}/retired", 1)
        if retired == actives:
            for peer in passives:
                self._mail(peer, RETIRED)

    def _await_invitation(self) -> int | None:
        key, what = f"{self._mailboxes}/{self._rank}/{self._mails_read + 1}", "gossip"
        mail = self._watch.wait_for(key, what)
        with self._watch.asking(what):
            self._watch.store.delete_key(key)
        self._mails_read += 1
        return None if mail == RETIRED else int(mail)

    def _exchange(self, peer: int, tensor: Tensor, into: Tensor) -> Tensor:
        """Send and receive at once, so that neither end waits for the other's order."""
        outgoing, incoming = self._buffers(tensor, into)
        what = f"after {self.steps} steps of an epoch, the exchange with {peer}"
        with self._watch.asking(what):
            works = (
                self._group.send([outgoing], peer, TAG),
                self._group.recv([incoming], peer, TAG),
            )
            for work in works:
                work.wait()
        self.bytes_sent += tensor.nbytes
        return into if incoming is into else into.copy_(incoming)

    def _buffers(self, tensor: Tensor, into: Tensor) -> tuple[Tensor, Tensor]:
        """Return what to send and where to receive: CPU memory, pinned for a GPU."""
        if not tensor.is_cuda:
            return tensor, into
        if self._staged is None:
            self._staged = _pinned_like(tensor), _pinned_like(into)
        staged, received = self._staged
        return staged.copy_(tensor), received


def _pinned_like(tensor: Tensor) -> Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)

"""The gossip thread of a learner: it carries out the exchanges of one epoch.

Two learners agree on an exchange through the rendezvous store, where every passive
learner has a mailbox for each epoch. An active learner puts its rank into the mailbox
of a passive one, and then both send their tensor to the other and receive the other's.
A wait in gloo cannot be cancelled, so no learner may enter an exchange that its peer
does not enter as well.

One epoch of two learners, Anna (rank 0, active) and Ben (rank 1, passive):

    1. Ben's thread waits in the store for the key `mail/1/1/1`: epoch 1 of the driver,
       mailbox of rank 1, first mail.
    2. Anna's training side ends a step. Her thread picks Ben, adds 1 to the counter
       `mail/1/1`, gets 1 back, and so writes her rank under `mail/1/1/1`.
    3. Ben's thread reads that mail and deletes it. Both threads post their send and
       their receive before they wait for either, and the tensors cross.
    4. Ben's training side ends its epoch, because he has less data. His thread goes on
       waiting, for `mail/1/1/2`, and answers Anna's further invitations.
    5. Anna's training side ends its epoch. Her last exchange is over, and her thread
       adds 1 to the counter `mail/1/retired`. She is the last active learner to do so,
       so she mails "retired" to Ben, and his thread ends.

What could go wrong, and why it does not:

    If Ben's thread ended in step 4, an invitation of Anna's might arrive just after
    that, and she would wait for Ben without end. His thread ends only after the mail of
    step 5, and an active learner retires only when its last exchange is over: so no
    invitation can follow that mail.

    If Anna and another active learner, Cleo, mail to Ben at the same time, the store's
    atomic addition gives them different numbers, so neither overwrites the other's
    mail. Ben answers them one after the other.

    If Ben could invite too, Anna might wait for Ben, Ben for Cleo and Cleo for Anna.
    Only active learners invite, and passive ones only answer: no such cycle can form.
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
"""The tag that tells messages of an exchange from other messages of the group."""

RETIRED = b"retired"
"""The mail that tells a passive learner that nobody will invite it any more."""


class GossipThread(threading.Thread):
    """The thread that runs one gossip program, for one epoch.

    Attributes (guarded by the monitor):
        steps: number of times that the training side has published in this epoch.
        ending: whether the training side has ended its epoch.
        progress: number of times that the program has run from one yield to the next.
        failure: the exception that has ended the program; None if none has.
        bytes_sent: bytes that this learner has sent in exchanges.

    Args:
        program: the algorithm's gossip program.
        monitor: the lock under which the programs of both sides run; it is notified
            when one side has something new for the other.
        mailboxes: the prefix of this epoch's mailboxes in the store.
        watch: the gossip thread's own connection to the store.
        group: the gloo group that the exchanges use, and nothing else does.
        rank: this learner's rank.
        record: the list that gets an entry for each section of the program that runs;
            None means that none is kept.
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
        """Run the program to its end; keep a failure for the training side to raise."""
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

    def _retire(self, actives: tuple[int, ...], passives: tuple[int, ...]) -> None:
        with self._watch.asking("the end of the gossip"):
            retired = self._watch.store.add(f"{self._mailboxes}/retired", 1)
        if retired == len(actives):
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
        """Post the send and the receive before waiting for either.

        Otherwise both learners could wait in a send for the other's receive.
        """
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
        """Return the tensors to send and to receive into.

        gloo takes CPU memory. Tensors on a GPU go through pinned CPU copies.
        """
        if not tensor.is_cuda:
            return tensor, into
        if self._staged is None:
            self._staged = _pinned_like(tensor), _pinned_like(into)
        staged, received = self._staged
        return staged.copy_(tensor), received


def _pinned_like(tensor: Tensor) -> Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)

"""The snapshot of a learner's parameters: the copy that gossip sends and corrects.

A learner has a training side, which runs its steps, and a gossip side, which runs its
exchanges beside them. The live parameters belong to the training side alone, so no
layer sees its weights change during a forward or backward pass. At the end of each
step the training side adds the pending corrections to the live parameters and
publishes: it copies them to the snapshot. The gossip side sends the snapshot and hands
over corrections.

One exchange between two learners, Anna and Ben, of a single parameter:

    1. Anna ends a step at 4 and Ben ends one at 8. Both publish, so their snapshots
       are 4 and 8.
    2. Their gossip sides call `begin_exchange`: the snapshots are lent to the network.
    3. Anna's optimizer steps on, to 3. Her `publish` finds the snapshot lent and leaves
       it alone.
    4. The messages arrive. Anna's difference is 8 - 4 and Ben's is 4 - 8. In
       `end_exchange` both add half of it to their snapshots, which are 6 now, and
       leave the difference pending for the training side.
    5. Anna's optimizer steps to 2, Ben's to 7. Their `publish` adds half the pending
       difference: Anna is at 2 + 2 = 4, Ben at 7 - 2 = 5, and so are the snapshots.

What could go wrong, and why it does not:

    If step 4 wrote the mean 6 to the live parameters, Anna's update of step 3 would be
    lost. A correction is added instead (Lian et al. 2018, AD-PSGD, in delta form). The
    two corrections are exact negatives of each other in IEEE arithmetic, so the sum
    over the learners is conserved: 4 + 8, and updates of -2 and -1, make 4 + 5.

    If step 3 wrote to the lent snapshot, Ben could receive a mixture of two models,
    and Anna would subtract another value than the one that Ben has received.

    If step 4 left Anna's snapshot at 4, a second exchange before her next `publish`
    would send 4 once more, as if the first one had not taken place.

A driver never runs two methods of a snapshot at the same time. The exception is work
that the gossip side yields as `RunInBackground`: every pass over P elements on the
gossip side. So the training side waits only while the two sides swap references to
tensors, never for a pass of the gossip side.
"""

from collections import Counter
from collections.abc import Generator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from espnet_distopt.core.effects import Exchange, Program, RunInBackground
from espnet_distopt.core.gossip_state import GossipState
from espnet_distopt.core.learner import Learner
from espnet_distopt.errors import InputError
from espnet_distopt.optimizers.noise_share import PairedNoiseShare

HALF = 0.5
"""Both learners of an exchange move by this share of their difference, to the mean."""


class Snapshot:
    """The copy of `learner.params` that gossip sends, and the pending corrections.

    Invariant: the copy equals the live parameters as of the last `publish` or `take`
    that found it neither lent nor kept, plus all corrections that have come since.
    While the copy is lent nobody writes to it, so a step makes no pass over it, however
    long the exchange takes. A correction is stored as a difference; the correction is
    half of that.

    Memory: 2 tensors (P,), which are the copy and a difference that is being received
    or is pending. A third one is needed while a difference is being received and an
    earlier one is still in use. If the snapshot is not shared, it takes no memory.

    Attributes:
        staleness: counts corrections by their staleness: steps of this learner between
            the publishing of the copy that was sent and the application of the
            correction -> how often, since construction. It is never cleared.

    Where second moments are corrected, the copy has K elements of gradients behind the
    parameters, which learners compare (`optimizers.noise_share`) and do not average.

    Args:
        learner: the learner whose parameters are copied.
        shared: whether there is another learner to exchange with. If False, the copy is
            empty, and `publish` and `take` do nothing.
        noise: what compares this learner's noise with its peers'.
    """

    def __init__(
        self,
        learner: Learner,
        shared: bool = True,
        noise: PairedNoiseShare | None = None,
    ) -> None:
        self._learner = learner
        self._live = learner.params if shared else learner.params[:0]
        self._noise = noise if shared else None
        self._size = len(self._live)
        compared = self._noise.message_size if self._noise is not None else 0
        self._copy = self._live.new_zeros(self._size + compared)
        self._shown = self._copy[: self._size].copy_(self._live.detach())
        self._step = learner.steps
        self._lent = False
        self._kept_until = 0
        self._pending: Tensor | None = None
        self._pending_steps: list[int] = []
        self._incoming: Tensor | None = None
        self._merging_steps: list[int] = []
        self._spares: list[Tensor] = []
        self.staleness: Counter[int] = Counter()

    # Training side

    def publish(self) -> None:
        """Apply the corrections; renew the copy, unless it is lent or kept.

        The training side calls this at the end of each step.

        Cost: P elements are read and P written if the copy is renewed; 2P more are read
        and P more written if corrections are pending.
        """
        copy = self._copy_to_renew()
        if self._pending is not None:
            difference = self._pop_pending()
            self._live.add_(difference[: self._size], alpha=HALF)
            self._spares.append(difference)
        if copy is not None:
            copy.copy_(self._live)

    def take(self) -> Tensor | None:
        """Publish the parameters as corrected; leave their correction to the caller.

        Returns the pending difference (P,), or None if none is pending. The caller
        adds `HALF` of it to the live parameters before its step ends, and then calls
        `recycle`. Meanwhile gossip may hand over further corrections.
        Cost: that of `publish`, less the pass that writes to the live parameters.
        """
        copy = self._copy_to_renew()
        if self._pending is None:
            if copy is not None:
                copy.copy_(self._live)
            return None
        if copy is not None:
            pending = self._pending[: self._size]
            torch.add(self._live, pending, alpha=HALF, out=copy)
        self._taken = self._pop_pending()
        return self._taken[: self._size]

    def recycle(self) -> None:
        """Give back the tensor that `take` has returned; gossip will overwrite it."""
        self._spares.append(self._taken)

    def _copy_to_renew(self) -> Tensor | None:
        """Return the copy of the parameters, to be overwritten in this step.

        None while the copy stays.
        """
        if self._lent or self._learner.steps < self._kept_until:
            return None
        self._step = self._learner.steps
        if self._noise is not None and self._noise.size:
            self._copy[self._size :] = self._noise.message()
        return self._shown

    def _pop_pending(self) -> Tensor:
        """Return the pending difference and count its staleness."""
        assert self._pending is not None
        difference, self._pending = self._pending, None
        steps = self._learner.steps
        self.staleness.update(steps - step for step in self._pending_steps)
        self._pending_steps = []
        return difference

    def age(self) -> int:
        """Return the age of the oldest copy in use, in steps of this learner.

        A copy is in use while an exchange sends it, and afterwards while the correction
        that was computed from it cannot be applied yet.
        """
        steps = list(self._merging_steps)
        if self._lent:
            steps.append(self._step)
        return self._learner.steps - min(steps, default=self._learner.steps)

    def unapplied(self) -> list[Tensor]:
        """Return the differences of which the live parameters still lack one half.

        The copy already contains half of each.
        """
        both = [self._pending, self._incoming]
        return [each[: self._size] for each in both if each is not None]

    def state(self, max_age: int) -> GossipState:
        """Return what others see and what is unapplied; the tensors are not copied."""
        return GossipState(
            copy=None if self.outdated else self._shown,
            differences=self.unapplied(),
            weight=HALF,
            age=max(self.age(), *self.staleness, 0),
            max_age=max_age,
        )

    # Gossip side

    @property
    def outdated(self) -> bool:
        """Whether the training side has ended a step since the copy was renewed."""
        return self._step < self._learner.steps

    def keep(self, steps: int) -> None:
        """Spare the passes that renew the copy, for so many steps after its own.

        A learner that waits for the one that it has invited needs a copy at once when
        the exchange begins, but not a new one in every step.
        """
        self._kept_until = self._step + steps

    def begin_exchange(self) -> Tensor:
        """Lend the copy (P + K,), which stays unchanged until `end_exchange`."""
        assert not self._lent, "one exchange in flight per learner"
        self._lent, self._kept_until = True, 0
        return self._copy

    def spare(self) -> Tensor:
        """Return a tensor (P + K,) of any content, for an exchange to receive into."""
        return self._spares.pop() if self._spares else torch.empty_like(self._copy)

    def cancel_exchange(self, spare: Tensor | None = None) -> None:
        """Take back the copy of an exchange that was dropped; nothing else changes.

        Args:
            spare: the tensor from `spare` that the exchange would have received into.
        """
        assert self._lent, "begin_exchange() comes first"
        self._lent = False
        if spare is not None:
            self._spares.append(spare)

    def end_exchange(self, received: Tensor, sent: Tensor | None = None) -> Program:
        """Hand over the correction (received - sent) / 2; the copy is lent no longer.

        The copy is corrected too, so that a learner that is invited twice before its
        step ends does not send the same value twice.

        Args:
            received: the peer's tensor (P + K,). If `sent` is None, it comes from
                `spare` and is overwritten by the difference.
            sent: the tensor (P + K,) that the peer has received from this learner; None
                means that it has received the copy.
        """
        assert self._lent, "begin_exchange() comes first"
        difference = received if sent is None else self.spare()
        self._incoming = difference
        work = partial(_subtract, received, self._copy, self._shown)
        if sent is not None:
            tensors = received, sent, difference, self._shown
            work = partial(_subtract_messages, *tensors)
        yield RunInBackground(work)
        if self._noise is not None:
            own = self._copy[self._size :]
            self._noise.compare_pair(own, difference[self._size :])
        if self._pending is not None:
            earlier, self._pending = self._pending, None
            self._merging_steps, self._pending_steps = self._pending_steps, []
            yield RunInBackground(partial(difference.add_, earlier))
            self._spares.append(earlier)
        self._pending, self._incoming = difference, None
        self._pending_steps = [*self._merging_steps, self._step]
        self._merging_steps = []
        self._lent = False


def _subtract(received: Tensor, copy: Tensor, shown: Tensor) -> None:
    """Overwrite `received` by its difference from `copy`; add half to `shown` of it."""
    shown.add_(received.sub_(copy)[: len(shown)], alpha=HALF)


def _subtract_messages(
    received: Tensor, sent: Tensor, difference: Tensor, shown: Tensor
) -> None:
    """Write received - sent to `difference`; add half of it to the copy's parameters.

    One subtraction of mixed types takes several times as long.
    """
    difference.copy_(received).sub_(sent.to(difference.dtype))
    shown.add_(difference[: len(shown)], alpha=HALF)


CHECKED = 4
"""Bytes of the checksum behind each message: both learners compare their references."""


class Rounded:
    """The bfloat16 messages that one learner exchanges, and their reference.

    bfloat16 has 8 bits of precision. That is too coarse for weights, but fine enough
    for the change of the weights since a reference model. All learners hold the same
    reference, bit for bit: at first learner 0's parameters, and from the end of each
    epoch on its consensus model. Of its snapshot s a learner sends

        q = bfloat16(s - reference)                              (rounded to nearest)

    Both learners of an exchange move by (q_peer - q_own) / 2, computed from the same
    two messages q. So the two corrections are exact negatives of each other, and the
    mean over the learners is conserved as with float32. Rounding therefore causes no
    bias; it only makes the two learners differ by up to 2^-8 of the change since the
    reference. Error feedback and stochastic rounding keep rounded *gradients* free of
    bias. Here there is no bias, and they would add noise where learners agree.

    Cost: n / 2 bytes an exchange for n bytes of float32 parameters. Memory: P elements
    for the reference, two messages of half that size, and P more while a message is
    made.

    Attributes:
        reference: the model (P,) that messages are relative to; it has the same bits on
            every learner.

    Args:
        like: the parameters (P,), which are the first reference; an empty tensor if
            there is no learner to exchange with.
        compared: K, the number of elements of gradients behind them, which have no
            reference.
    """

    def __init__(self, like: Tensor, compared: int = 0) -> None:
        self.reference = like.detach().clone()
        self._size = like.numel()
        self._all = self._size + compared
        self._sent = like.new_zeros(self._all + CHECKED, dtype=torch.bfloat16)
        self._received = torch.empty_like(self._sent)
        self.refer_to(like)

    def refer_to(self, reference: Tensor) -> None:
        """Copy a new reference (P,); all learners do so before the next exchange."""
        if self._size == 0:
            return
        self.reference.copy_(reference)
        width = self.reference.element_size()
        bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[width]
        digest = int(self.reference.view(bits).sum(dtype=torch.int64)) % 2**32
        self._sent[self._all :] = self._sent.new_tensor(list(digest.to_bytes(CHECKED)))

    def swap(
        self, peer: int, copy: Tensor
    ) -> Generator[RunInBackground | Exchange, Any, tuple[Tensor, Tensor] | None]:
        """Exchange `copy` (P + K,) with `peer`; return the messages received and sent.

        Both messages (P + K,) are in bfloat16, the parameters relative to the
        reference. They are valid until the next exchange. The result is None if the
        exchange was dropped.

        Raises:
            InputError: the peer has another reference.
        """
        sent, size = self._sent[: self._all], self._size

        def make() -> None:
            sent[:size] = copy[:size] - self.reference
            sent[size:] = copy[size:]

        yield RunInBackground(make)
        received = yield Exchange(peer, self._sent, self._received)
        if received is None:
            return None
        if not torch.equal(received[self._all :], self._sent[self._all :]):
            raise InputError(
                f"learner {peer} and this one round against different models, because "
                "they were resumed from different states; resume all from the end of "
                "the same epoch, or use exchange: float32"
            )
        return received[: self._all], sent

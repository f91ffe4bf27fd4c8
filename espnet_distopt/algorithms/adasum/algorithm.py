"""Adasum (Maleki et al., MLSys 2021): updates are added where they are orthogonal.

Learners take `period` local optimizer steps from common parameters x. Their updates are
then combined, for each parameter tensor on its own, by the tree of `tree`:

    delta_i = x_i - x        x <- x + Adasum(delta_1, ..., delta_N)

Updates rather than gradients are combined, because that suits every optimizer; for
plain SGD the result is the same. The optimizer's state stays local, and so does
gradient clipping. A learner that has come to the end of its epoch takes part with a
zero update, which changes nothing.

With nodes of m learners (`per_node`), updates are averaged inside a node and combined
across the N/m nodes. Ranks of a node are consecutive.

Cost of combining, for n bytes of parameters in L tensors: 2n(N-1)/N, or 3n(m-1)/m
inside a node and 2(n/m)(K-1)/K across K = N/m nodes; and about 8 L K^2 bytes of Gram
matrices, 13 MB for 400 tensors of 64 nodes. Memory, at all times: P elements (none with
combine: gradients), and P/m for one shard of every node's vector, whose place the
result takes. While updates are combined, they overwrite the parameters (or the
gradients), and only some MB and the Gram matrices are needed beside that.

With combine: deltas and without nodes, the training survives the death of any learner:
the others combine their own updates, which an exchange leaves as they are.
"""

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim import SGD, Optimizer

from espnet_distopt.algorithms.adasum.exchange import AdasumExchange
from espnet_distopt.algorithms.base import Algorithm, UnequalStepsError
from espnet_distopt.core.effects import AllReduceMean, Effect, Program
from espnet_distopt.core.learner import Learner
from espnet_distopt.core.membership import Members
from espnet_distopt.errors import InputError


@dataclass(frozen=True, kw_only=True)
class AdasumConfig:
    """Options of `adasum`.

    Attributes:
        period: number of local steps before updates are combined.
        combine: deltas (updates, with any optimizer), or gradients (in every step, and
            only for SGD without momentum; all learners need equal numbers of steps).
        per_node: number of learners on each node, whose mean is taken before Adasum; 1
            is full Adasum.
    """

    period: int = 1
    combine: Literal["deltas", "gradients"] = "deltas"
    per_node: int = 1

    def __post_init__(self) -> None:
        if self.period < 1:
            raise InputError(f"period must be >= 1, not {self.period}")
        if self.per_node < 1:
            raise InputError(f"per_node must be >= 1, not {self.per_node}")
        if self.combine == "gradients" and self.period > 1:
            raise InputError(
                "combine: gradients exchanges in every step and needs period: 1, not "
                f"{self.period}; use combine: deltas for local steps"
            )


class Adasum(Algorithm):
    """Adasum of the learners' updates, or of their gradients.

    Attributes:
        config: the options.
        shared: the common parameters (P,) at the start of the period, x; an empty
            tensor if gradients are combined.

    Raises:
        InputError: gradients are to be combined, and the optimizer is not plain SGD.
    """

    def __init__(self, config: AdasumConfig, learner: Learner) -> None:
        self.config = config
        self.wants_gradients = config.combine == "gradients"
        self.equal_steps = self.may_freeze = self.wants_gradients
        if self.wants_gradients:
            _check_plain_sgd(learner.optimizer)
            self.shared = learner.params.new_empty(0)
        else:
            self.shared = learner.params.detach().clone()
        # With nodes, the learners of one node may not know what another has met with.
        self.survives = config.combine == "deltas" and config.per_node == 1
        self._exchange = AdasumExchange(learner, config.per_node)
        self._local_steps = 0
        self._some_ended = False
        self._updates = learner.updates

    @classmethod
    def check_size(cls, config: AdasumConfig, size: int) -> None:
        """Raise InputError if some node would have fewer learners than the others."""
        if size > 1 and size % config.per_node:
            raise InputError(
                f"{size} learners do not fill nodes of per_node: {config.per_node}; "
                "the number of learners must be a multiple of it"
            )

    def change_members(self, learner: Learner, members: Members) -> None:
        """Combine the updates of these learners from now on."""
        super().change_members(learner, members)
        self._exchange = AdasumExchange(learner, self.config.per_node)

    def start(self, learner: Learner) -> Program:
        """Take over learner 0's parameters as the common ones."""
        yield from super().start(learner)
        if not self.wants_gradients:
            self.shared.copy_(learner.params)

    def after_backward(self, learner: Learner) -> Program:
        """Combine the gradients, with the option combine: gradients.

        Raises:
            UnequalStepsError: another learner has come to the end of its epoch.
        """
        if learner.size == 1 or learner.grads is None:
            return
        used = yield from self._agree_to_step(learner)
        for part, combined in (yield from self._exchange(learner.grads)) or ():
            learner.grads[part] = combined
        learner.use_gradients(used)

    def after_step(self, learner: Learner) -> Program:
        """Count the step; at the end of a period, combine the updates."""
        if learner.size == 1 or self.wants_gradients:
            return
        self._local_steps += 1
        if self._local_steps >= self.config.period:
            yield from self._end_period(learner, ended=False)

    def finish(self, learner: Learner) -> Program:
        """End the last, shorter period; join in those of learners with more data.

        Raises:
            UnequalStepsError: gradients are combined, and other learners have more
                steps.
        """
        if learner.size == 1:
            return
        if self.wants_gradients:
            yield from self._agree_to_step(learner, ended=True)
            return
        while True:
            everybody_ended = yield from self._end_period(learner, ended=True)
            if everybody_ended:
                return

    def next_stop(self, learner: Learner) -> int:
        """Return the step that ends the period: others may wait there already."""
        if self.wants_gradients:
            return super().next_stop(learner)
        return learner.steps + self.config.period - self._local_steps

    def can_pause(self, learner: Learner) -> bool:
        """Return False while learners with less data have ended their epoch already."""
        return not self._some_ended

    def _end_period(
        self, learner: Learner, ended: bool
    ) -> Generator[Effect, Any, bool]:
        """Combine updates; return whether every learner has ended its epoch."""
        message = [float(ended), float(learner.updates - self._updates)]
        agreed: Tensor = yield AllReduceMean(
            torch.tensor(message, dtype=torch.float64, device=learner.params.device)
        )
        share_ended, updates = agreed.tolist()
        self._some_ended = 0 < share_ended < 1
        if updates > 0:
            # The updates overwrite the parameters: new memory for them would be slow.
            update = learner.params.sub_(self.shared)
            while (results := (yield from self._exchange(update))) is None:
                pass  # Those who live combine theirs anew.
            for part, combined in results:
                self.shared[part] += combined
            learner.params.copy_(self.shared)
        self._local_steps = 0
        self._updates = learner.updates
        return bool(share_ended == 1.0)

    def _agree_to_step(
        self, learner: Learner, ended: bool = False
    ) -> Generator[Effect, Any, list[bool]]:
        """Return, for each parameter, whether any learner's backward pass reached it.

        Raises:
            UnequalStepsError: some learners have ended their epoch, others have not.
        """
        message = [float(ended), *map(float, learner.used)]
        agreed: Tensor = yield AllReduceMean(learner.params.new_tensor(message))
        share_ended, *used = agreed.tolist()
        if share_ended != float(ended):
            raise UnequalStepsError(learner, ended, "combine: deltas")
        return [use > 0 for use in used]

    def consensus(self, learner: Learner) -> Generator[Effect, Any, Tensor]:
        """Return the parameters, which all learners have in common after `finish`."""
        yield from ()
        return learner.params.detach().clone()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the period, at any of its steps."""
        return {
            "combine": self.config.combine,
            "shared": self.shared.clone(),
            "local_steps": self._local_steps,
            "updates": self._updates,
        }

    def join(self, learner: Learner, state: dict[str, Any]) -> None:
        """Take over the period of the others, who have just ended one."""
        super().join(learner, state)
        self._updates = learner.updates

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` has returned.

        Raises:
            InputError: the state was saved with another value of `combine`.
        """
        if state["combine"] != self.config.combine:
            raise InputError(
                f"the training was saved with combine: {state['combine']}, not "
                f"{self.config.combine}; resume with the same"
            )
        self.shared.copy_(state["shared"])
        self._local_steps = state["local_steps"]
        self._updates = state["updates"]


def _check_plain_sgd(optimizer: Optimizer) -> None:
    plain = isinstance(optimizer, SGD) and not any(
        group["momentum"] for group in optimizer.param_groups
    )
    if not plain:
        raise InputError(
            "combine: gradients is for SGD without momentum, not "
            f"{type(optimizer).__name__}"
            f"{' with momentum' if isinstance(optimizer, SGD) else ''}; "
            "use combine: deltas"
        )

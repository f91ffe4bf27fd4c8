"""Adasum (Maleki et al., MLSys 2021): updates are added where they are orthogonal.

Learners take `period` local optimizer steps from common parameters x; their updates
are combined, per parameter tensor, by the tree of `adasum_tree`:

    delta_i = x_i - x        x <- x + Adasum(delta_1, ..., delta_N)

Combining updates, not gradients, suits every optimizer; for plain SGD it is the same.
The optimizer's state stays local, and so does clipping. Learners that have come to the
end of their epoch take part with zero updates, which change nothing.

With nodes of m learners (`per_node`), updates are averaged inside a node and combined
across the N/m nodes. Ranks of a node are consecutive.

Cost an exchange, for n bytes of parameters in L tensors: 2n(N-1)/N, or 3n(m-1)/m inside
a node and 2(n/m)(K-1)/K across K = N/m nodes; and about 8 L K^2 bytes of Gram matrices,
13 MB for 400 tensors of 64 nodes. Memory, at all times: P elements (none with combine:
gradients) and a block of P/m. An exchange overwrites the parameters by their updates,
or the gradients, and takes no more but some MB, and the Gram matrices.
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
from espnet_distopt.errors import InputError


@dataclass(frozen=True, kw_only=True)
class AdasumConfig:
    """Options of `adasum`.

    Attributes:
        period: local steps between exchanges.
        combine: deltas (updates, with any optimizer), or gradients (in every step, with
            SGD without momentum only; the learners need equal numbers of steps).
        per_node: learners whose mean is taken before Adasum; 1 is full Adasum.
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
        shared: (P,) the parameters that all learners went on from at the last exchange;
            empty where gradients are combined.

    Raises:
        InputError: combine: gradients with an optimizer that is not plain SGD.
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
        self._exchange = AdasumExchange(learner, config.per_node)
        self._local_steps = 0
        self._some_ended = False
        self._updates = learner.updates

    @classmethod
    def check_size(cls, config: AdasumConfig, size: int) -> None:
        """Raise InputError unless the learners fill their nodes; one needs no node."""
        if size > 1 and size % config.per_node:
            raise InputError(
                f"{size} learners do not fill nodes of per_node: {config.per_node}; "
                "the number of learners must be a multiple of it"
            )

    def start(self, learner: Learner) -> Program:
        """Begin at learner 0's parameters."""
        yield from super().start(learner)
        if not self.wants_gradients:
            self.shared.copy_(learner.params)

    def after_backward(self, learner: Learner) -> Program:
        """Combine the gradients, where it is them.

        Raises:
            UnequalStepsError: another learner has come to the end of its epoch.
        """
        if learner.size == 1 or learner.grads is None:
            return
        used = yield from self._agree_to_step(learner)
        yield from self._exchange(learner.grads)
        learner.use_gradients(used)

    def after_step(self, learner: Learner) -> Program:
        """Count the step; after the last of a period, combine the updates."""
        if learner.size == 1 or self.wants_gradients:
            return
        self._local_steps += 1
        if self._local_steps >= self.config.period:
            yield from self._end_period(learner, ended=False)

    def finish(self, learner: Learner) -> Program:
        """End the last, shorter period; join those of learners with more data.

        Raises:
            UnequalStepsError: gradients are combined, and others have more steps.
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
        """Stop at the end of a period: others may wait there already."""
        if self.wants_gradients:
            return super().next_stop(learner)
        return learner.steps + self.config.period - self._local_steps

    def can_pause(self, learner: Learner) -> bool:
        """Not while others, who have less data, wait for the end of the epoch."""
        return not self._some_ended

    def _end_period(
        self, learner: Learner, ended: bool
    ) -> Generator[Effect, Any, bool]:
        """Combine updates; returns whether every learner has ended its epoch."""
        message = [float(ended), float(learner.updates - self._updates)]
        agreed: Tensor = yield AllReduceMean(
            torch.tensor(message, dtype=torch.float64, device=learner.params.device)
        )
        share_ended, updates = agreed.tolist()
        self._some_ended = 0 < share_ended < 1
        if updates > 0:
            # In place: memory for the updates would be new, and so slow.
            yield from self._exchange(learner.params.sub_(self.shared))
            learner.params.copy_(self.shared.add_(learner.params))
        self._local_steps = 0
        self._updates = learner.updates
        return bool(share_ended == 1.0)

    def _agree_to_step(
        self, learner: Learner, ended: bool = False
    ) -> Generator[Effect, Any, list[bool]]:
        """Return which parameters the backward passes of all learners have reached."""
        message = [float(ended), *map(float, learner.used)]
        agreed: Tensor = yield AllReduceMean(learner.params.new_tensor(message))
        share_ended, *used = agreed.tolist()
        if share_ended != float(ended):
            raise UnequalStepsError(learner, ended, "combine: deltas")
        return [use > 0 for use in used]

    def consensus(self, learner: Learner) -> Generator[Effect, Any, Tensor]:
        """Return the parameters: after `finish` they are the same everywhere."""
        yield from ()
        return learner.params.detach().clone()

    def state_dict(self) -> dict[str, Any]:
        """Return the state, at any step of a period."""
        return {
            "combine": self.config.combine,
            "shared": self.shared.clone(),
            "local_steps": self._local_steps,
            "updates": self._updates,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Write back what `state_dict` returned.

        Raises:
            InputError: gradients were combined and now updates are, or vice versa.
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

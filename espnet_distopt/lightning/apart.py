"""Lightning's own collectives, which must not run while learners step apart."""

from typing import Any

import torch
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor

from espnet_distopt.errors import InputError
from espnet_distopt.lightning.fit import Fit


class ApartStrategy(DDPStrategy):
    """A strategy in which each learner is a world of its own within an epoch.

    Lightning itself, callbacks and modules call these methods, some of them in each
    step: since 2.6 Lightning broadcasts in each step whether learner 0 is to end. A
    learner that has no collectives within an epoch waits for nobody.

    Attributes:
        algorithm: the name of the algorithm.
    """

    algorithm: str
    _fit: Fit | None = None

    @property
    def _alone(self) -> bool:
        return self._fit is not None and self._fit.alone

    @property
    def world_size(self) -> int:
        """The number of learners; 1 within an epoch, unless all step together."""
        fit = self._fit
        apart = fit is not None and not fit.session.algorithm.wants_gradients
        return 1 if apart and self._alone else super().world_size

    def barrier(self, *args: Any, **kwargs: Any) -> None:
        """Wait for all learners, but not within an epoch."""
        if not self._alone:
            super().barrier(*args, **kwargs)

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        """Return learner `src`'s object; within an epoch, this learner's."""
        return obj if self._alone else super().broadcast(obj, src)

    def reduce(self, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        """Reduce over all learners; over this one within an epoch.

        What was logged in training is this one's, too, if some learner had no batch.
        """
        own = self._alone
        if self._fit is not None and not self._fit.all_trained:
            assert self.lightning_module is not None
            own = own or self.lightning_module.trainer.training
        return tensor if own else super().reduce(tensor, *args, **kwargs)

    def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:
        """Return whether all learners, or any, say so; within an epoch, this one."""
        if self._alone:
            return decision
        said = torch.tensor(int(decision), device=self.root_device)
        number = int(super().reduce(said, reduce_op="sum"))
        return number == self.world_size if all else number > 0

    def all_gather(self, tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Gather from all learners.

        Raises:
            InputError: within an epoch, where learners would wait for each other.
        """
        if self._alone:
            raise InputError(
                f"all_gather within an epoch would make learners of {self.algorithm} "
                "wait for each other: use it in validation or at the epoch's end"
            )
        return super().all_gather(tensor, *args, **kwargs)

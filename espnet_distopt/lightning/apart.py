"""Lightning's own collectives, which must not run while learners step apart.

Where all learners wait for each other in every step, they run as with DDP.

Where the fit survives deaths, all collectives are of the learners that live (`living`).
"""

from typing import Any

import torch
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor

from espnet_distopt.errors import InputError, PeerLostError
from espnet_distopt.lightning.fit import Fit
from espnet_distopt.lightning.living import Living


class ApartStrategy(DDPStrategy):
    """A strategy in which each learner may be a world of its own within an epoch.

    Lightning itself, callbacks and modules call these methods, some of them in each
    step: since 2.6 Lightning broadcasts in each step whether learner 0 is to end. A
    learner that has no collectives within an epoch waits for nobody.

    Where the others go on without a dead learner, collectives at the end of an epoch
    are those of the living, and the living divide the samples of validation.

    Attributes:
        algorithm: the name of the algorithm.
    """

    algorithm: str
    _fit: Fit | None = None
    _lost: tuple[int, ...] = ()

    @property
    def _living(self) -> Living | None:
        """Those that live, where the fit goes on without the dead.

        Raises:
            PeerLostError: the fit has ended, and has lost learners.
        """
        if self._fit is None and self._lost:
            raise PeerLostError(
                f"the fit has ended without learner {', '.join(map(str, self._lost))}: "
                "validate, test or predict in a new run, from its checkpoint"
            )
        return self._fit.living if self._fit is not None else None

    @property
    def _alone(self) -> bool:
        """Whether no collective of Lightning's may run now."""
        fit = self._fit
        if fit is None:
            return False
        return fit.error is not None or (fit.alone and not fit.together)

    @property
    def world_size(self) -> int:
        """The number of learners; 1 where no collective may run."""
        return 1 if self._alone else super().world_size

    def barrier(self, *args: Any, **kwargs: Any) -> None:
        """Wait for all learners, but not within an epoch of learners that step apart.

        "Within an epoch" means that also in the other methods.
        """
        if self._alone:
            return
        if living := self._living:
            living.barrier()
        else:
            super().barrier(*args, **kwargs)

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        """Return learner `src`'s object; within an epoch, this learner's."""
        if self._alone:
            return obj
        living = self._living
        return living.broadcast(obj, src) if living else super().broadcast(obj, src)

    def reduce(
        self, tensor: Any, group: Any = None, reduce_op: Any = "mean", **kwargs: Any
    ) -> Any:
        """Reduce over all learners; over this one within an epoch.

        What was logged in training is this one's, too, if some learner had no batch.
        """
        own = self._alone
        if self._fit is not None and not self._fit.all_trained:
            assert self.lightning_module is not None
            own = own or self.lightning_module.trainer.training
        if own:
            return tensor
        return self._reduce(tensor, group, reduce_op)

    def _reduce(self, tensor: Any, group: Any = None, op: Any = "mean") -> Any:
        if not (living := self._living):
            return super().reduce(tensor, group, op)
        return living.reduce(tensor, op) if isinstance(tensor, Tensor) else tensor

    def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:
        """Return whether all learners, or any, say so; within an epoch, this one."""
        if self._alone:
            return decision
        said = torch.tensor(int(decision), device=self.root_device)
        if all:
            said = 1 - said
        number = int(self._reduce(said, op="sum"))
        return number == 0 if all else number > 0

    def all_gather(self, tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Gather from all learners that live.

        Raises:
            InputError: within an epoch, where learners would wait for each other.
        """
        if self._alone:
            raise InputError(
                f"all_gather within an epoch would make learners of {self.algorithm} "
                "wait for each other: use it in validation or at the epoch's end"
            )
        if living := self._living:
            return living.gather(tensor)
        return super().all_gather(tensor, *args, **kwargs)

    @property
    def _place_in_evaluation(self) -> tuple[int, int] | None:
        """The place of this learner among the living, from 0, and their number."""
        living = self._fit.living if self._fit is not None else None
        return living.place if living else None

    @property
    def distributed_sampler_kwargs(self) -> dict[str, Any]:
        """By what Lightning divides samples; those for validation among the living.

        The share of a dead learner in training is in the work queue.
        """
        assert self.lightning_module is not None
        place = self._place_in_evaluation
        if self.lightning_module.trainer.training or place is None:
            kept: dict[str, Any] = super().distributed_sampler_kwargs
            return kept
        return {"rank": place[0], "num_replicas": place[1]}

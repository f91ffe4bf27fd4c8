"""Lightning's strategy: a learner a process, and an algorithm in the place of DDP."""

import logging
import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import lightning.pytorch as pl
import torch.distributed as dist
from lightning.fabric.plugins import CheckpointIO, ClusterEnvironment
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.pytorch.plugins.precision import Precision
from lightning.pytorch.trainer.states import TrainerFn
from lightning_utilities.core.rank_zero import rank_zero_warn
from torch.distributed.constants import default_pg_timeout
from torch.optim import Optimizer

from espnet_distopt.errors import InputError, PeerLostError
from espnet_distopt.lightning import espnet3, refusals
from espnet_distopt.lightning.checkpoints import CheckpointStrategy
from espnet_distopt.lightning.epoch_ends import EpochEnds
from espnet_distopt.lightning.fit import Fit
from espnet_distopt.lightning.loading import LearnerLoader
from espnet_distopt.lightning.queued_loading import (
    QueuedLoader,
    batches_of_all,
    shares_sampler,
)
from espnet_distopt.session import Session


class DistoptStrategy(CheckpointStrategy):
    """Trains a `LightningModule` by an algorithm of this package.

    It wraps nothing. It steps a `Session` after each step of the optimizer, and puts
    the consensus model into the parameters at the end of an epoch. Validation,
    checkpoints and callbacks see that model, and so does a user once the fit has ended.
    A checkpoint loads in plain Lightning; what each learner needs beside it to go on
    lies in `distopt/` beside the checkpoint.

    Within an epoch, learners must not wait for each other where the algorithm does not.
    There `trainer.world_size` is 1, and `self.log(..., sync_dist=True)` and barriers
    concern one learner; at the end of the epoch, all of them. Where all learners wait
    for each other in every step (`allreduce`), that is as with DDP.

    Cost: as a `Session`'s, and a look at the rendezvous store each step.

    Args:
        algorithm: the name of an algorithm.
        work_queue: whether learners that step alone (`adpsgd`, `hadpsgd`) take batches
            from each other. It is for loaders of map-style datasets whose samples
            Lightning divides. If not, an epoch ends with the slowest learner.
        accelerator: as for `DDPStrategy`, as are the next six.
        parallel_devices: see there.
        cluster_environment: see there.
        checkpoint_io: see there.
        precision_plugin: see there.
        process_group_backend: see there.
        timeout: see there.
        options: the options of the algorithm, and `heartbeat_seconds` of the session.

    Attributes:
        algorithm: the name of the algorithm.
        consensus_distance: the consensus distance at the end of the last epoch; None
            before the first.

    Raises:
        InputError: the algorithm or an option is unknown. When the trainer is made: the
            number of learners is impossible for the algorithm, or there is a plug-in of
            another strategy. When a fit begins: see `refusals`.
    """

    strategy_name = "distopt"

    def __init__(
        self,
        algorithm: str,
        *,
        work_queue: bool = True,
        accelerator: pl.accelerators.Accelerator | None = None,
        parallel_devices: list[Any] | None = None,
        cluster_environment: ClusterEnvironment | None = None,
        checkpoint_io: CheckpointIO | None = None,
        precision_plugin: Precision | None = None,
        process_group_backend: str | None = None,
        timeout: timedelta | None = default_pg_timeout,
        **options: Any,
    ) -> None:
        refusals.check_start()
        refusals.check_algorithm(algorithm, options)
        super().__init__(
            accelerator=accelerator,
            parallel_devices=parallel_devices,
            cluster_environment=cluster_environment,
            checkpoint_io=checkpoint_io,
            precision_plugin=precision_plugin,
            process_group_backend=process_group_backend,
            timeout=timeout,
        )
        self.algorithm = algorithm
        self.consensus_distance: float | None = None
        self._work_queue = work_queue
        self._options = options
        self._callback: EpochEnds | None = None

    # What Lightning asks before a fit

    def _configure_launcher(self) -> None:
        size = self.num_nodes * self.num_processes
        refusals.check_trainer_plugins(
            self.algorithm, self._options, size, self.precision_plugin
        )
        super()._configure_launcher()

    def connect(self, model: pl.LightningModule) -> None:
        """Refuse what cannot be trained; free an ESPnet3 module of its barriers."""
        refusals.check_module(model)
        espnet3.free(model)
        if self.world_size == 1:
            # One learner gets the samples in the order of a single device.
            model.trainer._accelerator_connector.use_distributed_sampler = False
        super().connect(model)

    def configure_ddp(self) -> None:
        """Leave the model as it is, but with the weights and buffers of learner 0."""
        assert self.model is not None
        for tensor in (*self.model.parameters(), *self.model.buffers()):
            values = tensor.detach().contiguous()
            dist.broadcast(values, src=0)
            tensor.detach().copy_(values)

    def setup_optimizers(self, trainer: pl.Trainer) -> None:
        """Make the optimizer, and refuse several."""
        module = trainer.lightning_module
        try:
            super().setup_optimizers(trainer)
        except RuntimeError as error:
            if "multiple optimizers" in str(error):
                refusals.check_optimizers(module, 2)
            raise
        # Lightning has a stand-in without parameters where a module gives none.
        made = [each for each in self.optimizers if each.param_groups]
        refusals.check_optimizers(module, len(made))
        # It may have asked for the length of the loader, which is another in a fit.
        trainer.fit_loop._combined_loader = None

    def setup(self, trainer: pl.Trainer) -> None:
        """Set all up; open the session where a fit begins."""
        fitting = trainer.state.fn == TrainerFn.FITTING
        if fitting:
            refusals.check_fit(trainer, self.algorithm, self._queues)
        super().setup(trainer)
        if fitting:
            module = trainer.lightning_module
            options = self._options
            session = Session(module, self.optimizers[0], self.algorithm, **options)
            self._fit = Fit(trainer, session, self._queues)
            self._fit.own, self._own = self._own, None
            self._callback = EpochEnds(self._fit)
            trainer.callbacks.insert(0, self._callback)  # type: ignore[attr-defined]
            refusals.check_decisions(trainer, session, self._fit.together)

    # The learner's batches

    @property
    def _queues(self) -> bool:
        alone = refusals.steps_alone(self.algorithm) and self.world_size > 1
        return self._work_queue and alone

    def process_dataloader(self, dataloader: Any) -> Any:
        """Let training begin where this learner was stopped, and share batches."""
        assert self.lightning_module is not None
        trainer = self.lightning_module.trainer
        place = self._place_in_evaluation if not trainer.training else None
        dataloader = espnet3.loader(dataloader, trainer, self._queues, place)
        if trainer.state.fn != TrainerFn.FITTING or not trainer.training:
            return dataloader
        if isinstance(dataloader, espnet3.Uncut):
            return QueuedLoader(
                dataloader.loader, lambda: self._fit, lambda _: dataloader.batches
            )
        sampler = shares_sampler(dataloader, self.world_size) if self._queues else None
        if sampler is not None:
            # A resumed fit reads its first batch before Lightning counts the epoch that
            # has ended, so that `trainer.current_epoch` is still that one.
            epochs: Any = trainer.fit_loop.epoch_progress
            return QueuedLoader(
                dataloader,
                lambda: self._fit,
                lambda seed: batches_of_all(
                    dataloader, sampler, epochs.current.processed, seed
                ),
            )
        if self._queues:
            rank_zero_warn(
                f"{self.algorithm}: the batches of this loader are divided once and "
                "for all: epochs end with the slowest learner"
            )
        return LearnerLoader(dataloader, lambda: self._fit)

    # The steps

    def on_train_start(self) -> None:
        """Listen for signals that ask for a stop."""
        assert self._fit is not None
        place, requeue = self.cluster_environment, None
        if isinstance(place, SLURMEnvironment) and place.auto_requeue:
            requeue = place.requeue_signal or signal.SIGUSR1
        self._fit.signals.listen(requeue)

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Tell the session that a batch begins."""
        assert self._fit is not None
        self._fit.begin_batch()

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the module's step returns.

        Raises:
            InputError: that is None, and others wait for this learner's gradients.
        """
        output = super().training_step(*args, **kwargs)
        if output is None and self._fit is not None:
            refusals.check_skipped(self._fit.session)
        return output

    @contextmanager
    def block_backward_sync(self) -> Generator[None, None, None]:
        """Inside, gradients are only accumulated."""
        assert self._fit is not None
        with self._fit.session.no_sync():
            yield

    def optimizer_step(
        self, optimizer: Optimizer, closure: Callable[[], Any], *args: Any, **kw: Any
    ) -> Any:
        """Make the optimizer's step, and let the algorithm follow it."""
        output = super().optimizer_step(optimizer, closure, *args, **kw)
        if self._fit is not None:
            self._fit.step()
        return output

    # The end

    def on_train_end(self) -> None:
        """End the epoch of a tuner's search, which has put its own callbacks in."""
        if self._fit is not None and self._fit.alone:
            self._fit.meet()
        super().on_train_end()

    def on_exception(self, exception: BaseException) -> None:
        """End the fit, and tell the other learners if it has failed."""
        if isinstance(exception, InputError):
            exception.args = (refusals.in_lightnings_words(str(exception)),)
        if isinstance(exception, PeerLostError):
            # The launcher ends this learner, perhaps before Python prints the error.
            logging.error(f"the fit ends: {exception}")
        self._end(exception)
        super().on_exception(exception)

    def teardown(self) -> None:
        """End the fit; the model keeps the consensus."""
        self._end(None)
        super().teardown()

    def _end(self, error: BaseException | None) -> None:
        fit, self._fit = self._fit, None
        if fit is None:
            return
        if self._callback is not None and self.lightning_module is not None:
            callbacks = self.lightning_module.trainer.callbacks  # type: ignore[attr-defined]
            callbacks.remove(self._callback)
        self._lost = fit.lost if fit.living is not None else ()
        self._own = None
        fit.close(error)

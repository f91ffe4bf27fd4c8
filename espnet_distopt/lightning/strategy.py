"""Lightning's strategy: a learner a process, and an algorithm in the place of DDP."""

import logging
import os
import signal
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
import torch.distributed as dist
from lightning.fabric.plugins import CheckpointIO, ClusterEnvironment
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins.precision import Precision
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.trainer.states import TrainerFn
from lightning_utilities.core.rank_zero import rank_zero_warn
from torch import Tensor
from torch.distributed.constants import default_pg_timeout
from torch.optim import Optimizer

from espnet_distopt.errors import InputError, PeerLostError, end_in_a_line
from espnet_distopt.lightning import batches, refusals
from espnet_distopt.lightning.collectives import Living
from espnet_distopt.lightning.fit import (
    KEY,
    EpochEnds,
    Fit,
    State,
    file_of_learner,
    folder_of_learners,
)
from espnet_distopt.session import Session, steps_alone


class DistoptStrategy(DDPStrategy):
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
        consensus_distance: that at the end of the last epoch; None before the first.

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
        end_in_a_line("this learner")  # Else below twenty frames of Lightning.
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
        self._fit: Fit | None = None
        self._callback: EpochEnds | None = None
        self._lost: tuple[int, ...] = ()
        # A checkpoint is loaded before the session is open: there this learner's part
        # waits for the fit that takes it over.
        self._own: State | None = None

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
        batches.free_of_barriers(model)
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
            own, self._own = self._own, None
            self._fit = Fit(trainer, session, self._queues, own)
            self._callback = EpochEnds(self._fit)
            trainer.callbacks.insert(0, self._callback)  # type: ignore[attr-defined]
            refusals.check_decisions(trainer, session, self._fit.together)

    # The learner's batches

    @property
    def _queues(self) -> bool:
        alone = steps_alone(self.algorithm) and self.world_size > 1
        return self._work_queue and alone

    def process_dataloader(self, dataloader: Any) -> Any:
        """Let training begin where this learner was stopped, and share batches."""
        assert self.lightning_module is not None
        trainer = self.lightning_module.trainer
        place = self._place_in_evaluation if not trainer.training else None
        loader = batches.of_espnet3(dataloader, trainer, self._queues, place)
        if trainer.state.fn != TrainerFn.FITTING or not trainer.training:
            return loader
        return batches.of_learner(loader, trainer, self._queues, lambda: self._fit)

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
            self._fit.session.step()
        return output

    # Checkpoints, with what each learner needs beside them

    def lightning_module_state_dict(self) -> State:
        """Return the state of the consensus model; all learners call this."""
        if self._fit is not None:
            self._fit.meet()
        return super().lightning_module_state_dict()

    def save_checkpoint(
        self, checkpoint: State, filepath: str | Path, storage_options: Any = None
    ) -> None:
        """Save the checkpoint, and what each learner needs beside it.

        When an error ends the fit, learner 0 saves its own model alone; and nothing if
        another learner is lost, because an average may have been half done.
        """
        fit = self._fit
        error = fit.error if fit is not None else None
        if isinstance(error, PeerLostError):
            rank_zero_warn(
                f"{filepath} is not saved: the model may hold half an average, because "
                "a learner is lost"
            )
            return
        # A checkpoint of the weights alone needs nothing beside it.
        if fit is None or error or "optimizer_states" not in checkpoint:
            super().save_checkpoint(checkpoint, filepath, storage_options)
            return
        stamp = {
            "save": time.time_ns(),
            "learners": self.world_size,
            "algorithm": self.algorithm,
        }
        checkpoint[KEY], filepath = self.broadcast((stamp, filepath))
        own = fit.capture(checkpoint)
        path = file_of_learner(filepath, self.global_rank)
        self.checkpoint_io.save_checkpoint(own, path, storage_options)
        # The checkpoint is written last: it never lacks the learners' files.
        self.barrier()
        super().save_checkpoint(checkpoint, filepath, storage_options)

    def load_checkpoint(
        self, checkpoint_path: str | Path, *args: Any, **kw: Any
    ) -> State:
        """Return the checkpoint, with this learner's own parts if all have theirs."""
        checkpoint: State = super().load_checkpoint(checkpoint_path, *args, **kw)
        assert self.lightning_module is not None
        fitting = self.lightning_module.trainer.state.fn == TrainerFn.FITTING
        stamp = checkpoint.get(KEY)
        if not fitting or stamp is None:
            return checkpoint
        path, own = file_of_learner(checkpoint_path, self.global_rank), {}
        if os.path.exists(path):
            own = self.checkpoint_io.load_checkpoint(path, *args, **kw)
        same = own.get(KEY) == stamp and stamp["learners"] == self.world_size
        if self.reduce_boolean_decision(same):
            checkpoint.update(own["trainer"])
            self._own = own
        else:
            rank_zero_warn(
                f"there are no states of {self.world_size} learners beside "
                f"{checkpoint_path}: they go on from the consensus model"
            )
        return checkpoint

    def remove_checkpoint(self, filepath: str | Path) -> None:
        """Remove the checkpoint with the learners' files."""
        super().remove_checkpoint(filepath)
        super().remove_checkpoint(folder_of_learners(filepath))

    def load_model_state_dict(
        self, checkpoint: Mapping[str, Any], *args: Any, **kw: Any
    ) -> None:
        """Load the model; within a fit, as after a tuner's search, begin anew there."""
        fit = self._fit
        if fit is not None:
            fit.session.leave_consensus()
        super().load_model_state_dict(checkpoint, *args, **kw)
        if fit is not None:
            fit.session.restart_from_model()

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """Load the optimizer's state, then this learner's own, if there is one."""
        super().load_optimizer_state_dict(checkpoint)
        if self._fit is not None:
            self._fit.restore()

    # Collectives. Lightning itself, callbacks and modules call them, some in each step:
    # since 2.6 Lightning broadcasts in each step whether learner 0 is to end. While
    # learners step apart, none may run, so that a learner waits for nobody.

    @property
    def _apart(self) -> bool:
        return self._fit is not None and self._fit.is_apart

    @property
    def _living(self) -> Living | None:
        """The collectives in the place of Lightning's own; None: there are none.

        Raises:
            PeerLostError: the fit has ended, and has lost learners.
        """
        fit = self._fit
        if fit is None and self._lost:
            raise PeerLostError(
                f"the fit has ended without learner {', '.join(map(str, self._lost))}: "
                "validate, test or predict in a new run, from its checkpoint"
            )
        return fit.living if fit is not None else None

    @property
    def world_size(self) -> int:
        """The number of learners; 1 where no collective may run."""
        return 1 if self._apart else super().world_size

    def barrier(self, *args: Any, **kwargs: Any) -> None:
        """Wait for all learners, but not within an epoch of learners that step apart.

        "Within an epoch" means that also in the other methods.
        """
        if self._apart:
            return
        if living := self._living:
            living.barrier()
        else:
            super().barrier(*args, **kwargs)

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        """Return learner `src`'s object; within an epoch, this learner's."""
        if self._apart:
            return obj
        living = self._living
        return living.broadcast(obj, src) if living else super().broadcast(obj, src)

    def reduce(
        self, tensor: Any, group: Any = None, reduce_op: Any = "mean", **kwargs: Any
    ) -> Any:
        """Reduce over all learners; over this one within an epoch.

        What was logged in training is this one's, too, if some learner had no batch.
        """
        if self._fit is not None and not self._fit.all_trained:
            assert self.lightning_module is not None
            if self.lightning_module.trainer.training:
                return tensor
        return self._reduce(tensor, group, reduce_op)

    def _reduce(self, tensor: Any, group: Any = None, op: Any = "mean") -> Any:
        if self._apart:
            return tensor
        if not (living := self._living):
            return super().reduce(tensor, group, op)
        return living.reduce(tensor, op) if isinstance(tensor, Tensor) else tensor

    def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:
        """Return whether all learners, or any, say so; within an epoch, this one."""
        if self._apart:
            return decision  # A number from the GPU would cost a wait in each step.
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
        if self._apart:
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

    # The end

    def on_train_end(self) -> None:
        """End the epoch of a tuner's search, and tell all which checkpoints there are.

        The search has put callbacks of its own in the place of ours.
        """
        if self._fit is not None and self._fit.alone:
            self._fit.meet()
        assert self.lightning_module is not None
        # Each learner has named the files after its own step; they have learner 0's.
        for saving in self.lightning_module.trainer.checkpoint_callbacks:
            if isinstance(saving, ModelCheckpoint):
                saving.load_state_dict(self.broadcast(saving.state_dict()))
        super().on_train_end()

    def on_exception(self, exception: BaseException) -> None:
        """End the fit, and tell the other learners if it has failed."""
        if isinstance(exception, InputError):
            exception.args = (refusals.in_lightnings_words(str(exception)),)
        if isinstance(exception, PeerLostError):
            # The launcher ends this learner, perhaps before Python prints the error.
            logging.getLogger(__name__).error(f"the fit ends: {exception}")
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

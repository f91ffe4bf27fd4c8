"""The state from which one learner resumes, within an epoch or after one.

Between epochs, learner 0 writes ESPnet's `checkpoint.pth` with the consensus model. The
state here is what every learner needs beside it. It consists of tensors, numbers,
strings, lists and dicts, so that `torch.load` reads it with `weights_only`.
"""

import logging
from dataclasses import dataclass
from typing import Any, Self

from espnet2.schedulers.abs_scheduler import (
    AbsBatchStepScheduler,
    AbsEpochStepScheduler,
)
from espnet2.train.reporter import SubReporter
from torch import nn

from espnet_distopt.espnet.training.queued_batches import QueuedBatches
from espnet_distopt.espnet.training.reported import report_again, reported
from espnet_distopt.files.random_state import random_state
from espnet_distopt.session import Session

State = dict[str, Any]


@dataclass(frozen=True)
class Position:
    """Where a learner begins an epoch: by default, at its first batch.

    Attributes:
        batches: The number of batches that this learner has trained on in earlier runs.
        step: The step that the epoch has come to; None if its training is over.
        spent: What `Progress.spent` returned in the earlier run, if there was one.
        random: The state of the random number generators at that position.
        queued: The state of the epoch's work queue, if there is one; that of the queue
            itself is None for a learner that joins others that are reading it.
    """

    batches: int = 0
    step: int | None = 0
    spent: dict[str, float] | None = None
    random: State | None = None
    queued: State | None = None

    @classmethod
    def of(cls, state: State) -> Self:
        """Return the position at which a learner's state was saved."""
        keys = ("step", "spent", "random", "queued")
        return cls(state["batches"] or 0, **{key: state[key] for key in keys})

    @property
    def is_trained(self) -> bool:
        """Whether only the epoch's validation is left."""
        return self.step is None


@dataclass(frozen=True)
class TrainingState:
    """What takes part in the training of one epoch.

    Attributes:
        session: The algorithm's session.
        model: The model that is trained, without DDP around it.
        reporter: ESPnet's reporter of this epoch's training.
        optimizer: The optimizer of the model's parameters.
        scheduler: ESPnet's learning-rate scheduler, or None.
        scaler: ESPnet's gradient scaler, or None without mixed precision.
        queued: This learner's batches, if it takes them from a work queue.
    """

    session: Session
    model: nn.Module
    reporter: SubReporter
    optimizer: Any
    scheduler: Any
    scaler: Any
    queued: QueuedBatches | None = None


def capture(training: TrainingState, batches: int | None) -> State:
    """Return the state of this learner between two steps.

    Args:
        training: What takes part in this epoch. No message may be in flight.
        batches: The number of batches of this epoch that the learner has trained on;
            None if the epoch's training is over and the consensus model is formed.
    """
    reporter, scaler, queued = training.reporter, training.scaler, training.queued
    buffers, learner = training.model.named_buffers(), training.session.learner
    return {
        "epoch": reporter.get_epoch(),
        "learners": learner.size,
        "equal": list(training.session.algorithm.equal_replicas(learner)),
        "batches": batches,
        "queued": None if queued is None or batches is None else queued.state_dict(),
        "session": training.session.state_dict(),
        "optimizer": training.optimizer.state_dict(),
        "scheduler": _batch_scheduler_state(training.scheduler),
        "scaler": scaler.state_dict() if scaler is not None else {},
        "buffers": {name: b.detach().clone() for name, b in buffers},
        "reported": reported(reporter),
        "random": random_state(),
    }


def carried(training: TrainingState) -> State:
    """Return what a replacement takes over beside the session, at the end of a step.

    Args:
        training: What takes part in this epoch; the batches come from a work queue.
    """
    queued, scaler = training.queued, training.scaler
    assert queued is not None
    return {
        "epoch": training.reporter.get_epoch(),
        "step": queued.queue.step,
        "scheduled": queued.scheduled,
        "scheduler": _batch_scheduler_state(training.scheduler),
        "scaler": scaler.state_dict() if scaler is not None else {},
    }


def restore_carried(training: TrainingState, state: State) -> Position:
    """Take over what `carried` has returned on a member.

    Returns the position at which this learner begins in the epoch.
    """
    if isinstance(training.scheduler, AbsBatchStepScheduler):
        training.scheduler.load_state_dict(state["scheduler"])
    if training.scaler is not None and state["scaler"]:
        training.scaler.load_state_dict(state["scaler"])
    queued = {"queue": None, "scheduled": state["scheduled"]}
    return Position(step=state["step"], queued=queued)


def restore_within(training: TrainingState, state: State) -> None:
    """Go on within the epoch in which `state` was captured.

    The random numbers are left to `Stepping`: data loaders draw some before the first
    batch, so it restores them after that.
    """
    training.optimizer.load_state_dict(state["optimizer"])
    if isinstance(training.scheduler, AbsBatchStepScheduler):
        training.scheduler.load_state_dict(state["scheduler"])
    if training.scaler is not None and state["scaler"]:
        training.scaler.load_state_dict(state["scaler"])
    training.session.load_state_dict(state["session"])
    buffers = dict(training.model.named_buffers())
    for name, saved in state["buffers"].items():
        buffers[name].copy_(saved)
    report_again(training.reporter, state["reported"])


def restore_after(training: TrainingState, state: State) -> None:
    """Go on from the end of the epoch in which `state` was captured.

    ESPnet has already loaded the consensus model and learner 0's optimizer. The own
    state of this learner replaces them.
    """
    optimizer, scheduler = training.optimizer, training.scheduler
    rates = [group["lr"] for group in optimizer.param_groups]
    optimizer.load_state_dict(state["optimizer"])
    steps_between = isinstance(scheduler, AbsEpochStepScheduler)
    if isinstance(scheduler, AbsBatchStepScheduler) and not steps_between:
        scheduler.load_state_dict(state["scheduler"])
    else:
        # A scheduler of epochs has stepped after the state was saved, so it and the
        # rates are right as in ESPnet's checkpoint. WarmupReduceLROnPlateau is one,
        # although it also steps with every batch.
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
    training.session.load_state_dict(state["session"])
    logging.info(
        f"Learner {training.session.learner.rank} goes on from its own state after "
        f"epoch {state['epoch']}"
    )


def _batch_scheduler_state(scheduler: Any) -> State:
    """Return the state of a scheduler that steps within an epoch."""
    if isinstance(scheduler, AbsBatchStepScheduler):
        state: State = scheduler.state_dict()
        # CyclicLR does not load its state without an entry of its own that is None.
        kept = (int, float, list, type(None))
        return {k: v for k, v in state.items() if isinstance(v, kept)}
    return {}

"""What one learner needs to go on from: its state at a position within an epoch.

ESPnet's `checkpoint.pth` is written between epochs, by learner 0, with the consensus
model. This is the rest, of every learner: tensors, numbers, strings, lists and dicts.
"""

import logging
from dataclasses import dataclass
from typing import Any

from espnet2.schedulers.abs_scheduler import AbsBatchStepScheduler
from espnet2.train.reporter import SubReporter
from torch import nn

from espnet_distopt.espnet.training.queued_batches import QueuedBatches
from espnet_distopt.espnet.training.random_state import random_state
from espnet_distopt.espnet.training.reported import report_again, reported
from espnet_distopt.session import Session

State = dict[str, Any]


@dataclass(frozen=True)
class TrainingState:
    """What takes part in the training of one epoch.

    Attributes:
        queued: this learner's batches, if it takes them from a work queue.
    """

    session: Session
    model: nn.Module
    reporter: SubReporter
    optimizer: Any
    scheduler: Any
    scaler: Any
    queued: QueuedBatches | None = None


def capture(training: TrainingState, batches: int | None) -> State:
    """Return the state of this learner.

    Args:
        training: between two steps, with nothing in flight.
        batches: of this epoch that it has trained on; None: all, and the consensus has
            been formed.
    """
    reporter, scaler, queued = training.reporter, training.scaler, training.queued
    buffers = training.model.named_buffers()
    return {
        "epoch": reporter.get_epoch(),
        "learners": training.session.learner.size,
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


def restore_within(training: TrainingState, state: State) -> None:
    """Go on within the epoch in which `state` was captured.

    All but the random numbers: who reads the data draws some before they matter.
    """
    training.optimizer.load_state_dict(state["optimizer"])
    if isinstance(training.scheduler, AbsBatchStepScheduler):
        training.scheduler.load_state_dict(state["scheduler"])
    if training.scaler is not None:
        training.scaler.load_state_dict(state["scaler"])
    training.session.load_state_dict(state["session"])
    buffers = dict(training.model.named_buffers())
    for name, saved in state["buffers"].items():
        buffers[name].copy_(saved)
    report_again(training.reporter, state["reported"])


def restore_after(training: TrainingState, state: State) -> None:
    """Go on after the epoch in which `state` was captured, from its end.

    ESPnet has loaded the consensus model and learner 0's optimizer by now.
    """
    optimizer, scheduler = training.optimizer, training.scheduler
    rates = [group["lr"] for group in optimizer.param_groups]
    optimizer.load_state_dict(state["optimizer"])
    if isinstance(scheduler, AbsBatchStepScheduler):
        scheduler.load_state_dict(state["scheduler"])
    else:
        # an epoch's scheduler has stepped after the state was saved
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
        return {k: v for k, v in state.items() if isinstance(v, (int, float, list))}
    return {}

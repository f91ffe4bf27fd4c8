"""What Lightning can be asked for and learners that differ cannot do.

Each refusal is one line, and comes as early as Lightning lets the strategy see what it
is about: when the strategy is made, when the trainer is, or when a fit begins. All
learners make the same ones.
"""

from collections.abc import Mapping
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins.precision import Precision

from espnet_distopt.algorithms import lookup, options
from espnet_distopt.distributed.launch_variables import incarnation
from espnet_distopt.errors import InputError
from espnet_distopt.session import Session, check_options

SESSION_OPTIONS = {"heartbeat_seconds", "repeat_begun"}

AVERAGING = {"StochasticWeightAveraging", "WeightAveraging", "EMAWeightAveraging"}
"""Callbacks that put an average of their own in the place of the parameters."""

SHARDING = {"FSDPPrecision", "DeepSpeedPrecision", "XLAPrecision"}
"""The precision plugins of strategies that divide a model among processes."""


def steps_alone(algorithm: str) -> bool:
    """Return whether learners, or nodes of them, step without waiting for others."""
    return bool(lookup(algorithm).algorithm.wants_gossip)


def check_algorithm(algorithm: object, conf: Mapping[str, Any]) -> None:
    """Raise InputError for an unknown algorithm or option."""
    if not isinstance(algorithm, str):
        raise InputError(
            f"DistoptStrategy: the algorithm must be a name, not {algorithm!r}"
        )
    own = {key: conf[key] for key in conf.keys() - SESSION_OPTIONS}
    options(algorithm, own)


def check_start() -> None:
    """Raise InputError in a process that the launcher started for one that has died."""
    if incarnation() > 0:
        raise InputError(
            "DistoptStrategy: with Lightning, a learner cannot be replaced: start "
            "`distopt launch` without --restarts"
        )


def check_trainer_plugins(
    algorithm: str, conf: Mapping[str, Any], size: int, precision: Precision
) -> None:
    """Raise InputError for an impossible number of learners, or plugins of others."""
    check_options(algorithm, conf, size)
    name = type(precision).__name__
    if name in SHARDING:
        raise InputError(
            f"DistoptStrategy with {name}: a learner needs the whole model; take the "
            "plugin out, and give precision='bf16-mixed' or '16-mixed' to the Trainer"
        )


def check_module(module: pl.LightningModule) -> None:
    """Raise InputError for a module that steps its optimizers itself."""
    if not module.automatic_optimization:
        raise InputError(
            f"{type(module).__name__} has automatic_optimization = False, so that "
            "DistoptStrategy cannot know what a step is: use automatic optimization, "
            "or a loop of your own with espnet_distopt.Session"
        )


def check_optimizers(module: pl.LightningModule, number: int) -> None:
    """Raise InputError if there is not one optimizer."""
    if number != 1:
        raise InputError(
            f"{type(module).__name__}.configure_optimizers gives {number} optimizers, "
            "and DistoptStrategy trains with one: put all parameters into groups of one"
        )


def check_fit(trainer: pl.Trainer, algorithm: str, queue: bool) -> None:
    """Raise InputError for what would let learners wait for each other for ever.

    Args:
        trainer: the trainer, whose fit begins.
        algorithm: the name of the algorithm.
        queue: whether learners take their batches from a work queue, so that their
            numbers of steps differ.
    """
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if AVERAGING.intersection(kind.__name__ for kind in type(callback).__mro__):
            raise InputError(
                f"{type(callback).__name__} replaces the parameters of each learner by "
                "an average of its own: leave it out (validation and checkpoints have "
                "the mean of the learners already)"
            )
        if steps_alone(algorithm) and isinstance(callback, ModelCheckpoint):
            _check_checkpoints(callback, algorithm)
    if queue:
        _check_unequal_steps(trainer, algorithm)


def _check_checkpoints(callback: ModelCheckpoint, algorithm: str) -> None:
    within = callback._every_n_train_steps >= 1
    if within or callback._train_time_interval is not None:
        option = "every_n_train_steps" if within else "train_time_interval"
        raise InputError(
            f"ModelCheckpoint({option}=...) saves within an epoch, where learners of "
            f"{algorithm} are at different steps: use every_n_epochs"
        )


def _check_unequal_steps(trainer: pl.Trainer, algorithm: str) -> None:
    found = None
    if trainer.max_steps != -1:
        found = f"max_steps={trainer.max_steps} counts"
    elif trainer.val_check_interval != 1.0:
        found = f"val_check_interval={trainer.val_check_interval} counts"
    elif trainer.check_val_every_n_epoch is None:
        found = "check_val_every_n_epoch=None counts"
    if found:
        raise InputError(
            f"Trainer: {found} a learner's own batches, and learners of {algorithm} "
            "take as many as they can: count epochs (max_epochs, "
            "check_val_every_n_epoch), or give DistoptStrategy work_queue=False"
        )


def check_skipped(session: Session) -> None:
    """Raise InputError for a skipped batch whose gradients others wait for."""
    if session.algorithm.wants_gradients and session.learner.size > 1:
        raise InputError(
            f"{session.learner.where}: training_step has returned None, and "
            f"{session.name} averages the gradients of learners: return a loss, as "
            "zero times the sum of the outputs"
        )

"""What Lightning can be asked for and learners that differ cannot do.

Each refusal is one line, and comes as early as Lightning lets the strategy see what it
is about: when the strategy is made, when the trainer is, or when a fit begins. All
learners make the same ones.
"""

from collections.abc import Mapping
from importlib.metadata import version
from operator import attrgetter
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import ModelCheckpoint, Timer
from lightning.pytorch.plugins.precision import Precision

from espnet_distopt.algorithms import check_options, options
from espnet_distopt.algorithms.options import algorithm_options
from espnet_distopt.distributed.launch_variables import incarnation
from espnet_distopt.errors import InputError
from espnet_distopt.session import Session, steps_alone

AVERAGING = {"StochasticWeightAveraging", "WeightAveraging", "EMAWeightAveraging"}
"""Callbacks that put an average of their own in the place of the parameters."""

SHARDING = {"FSDPPrecision", "DeepSpeedPrecision", "XLAPrecision"}
"""The precision plugins of strategies that divide a model among processes."""


_WORDS = (
    ("leave the session and begin a new one", "end this fit and begin another one"),
    (
        "between epochs, call session.restart_from_model() on all learners after it",
        "do so before trainer.fit, or let fit(ckpt_path=...) do it",
    ),
    ("call session.average_gradients() once .grad has it, or use", "use"),
    ("give its optimizer a session of its own", "give its parameters to that one"),
    (
        "leave it, by the end of its `with` or leave_consensus(), before training goes "
        "on",
        "train in training_step only, and not where an epoch has ended",
    ),
    (
        "leave no_sync() for the last backward pass of each update",
        "leave accumulation to Trainer(accumulate_grad_batches=...)",
    ),
    (
        "session.step() was not called in this epoch, so that the learners know "
        "nothing of each other's updates: call it after each optimizer.step()",
        "not through Lightning, so that the learners know nothing of each other's "
        "updates: an optimizer_step() of the module calls optimizer.step(closure)",
    ),
    ("have all others of an update within session.no_sync(), or use", "use"),
    ("let a WorkQueue deal it out, or use", "or use"),
    ("and a session trains real ones", "and DistoptStrategy trains real ones"),
    ("while the session is open", "within a fit"),
    ("before the session is made", "before trainer.fit"),
    ("the optimizer of this session", "the optimizer of this fit"),
    ("a session needs all learners", "a fit needs all learners"),
)
"""What a session says of itself, and what that is to a user of Lightning."""


def in_lightnings_words(text: str) -> str:
    """Return a message of a session as one to a user who knows of fits alone."""
    for of_session, of_fit in _WORDS:
        text = text.replace(of_session, of_fit)
    return text


def check_algorithm(algorithm: object, conf: Mapping[str, Any]) -> None:
    """Raise InputError for an unknown algorithm or option."""
    if not isinstance(algorithm, str):
        raise InputError(
            f"DistoptStrategy: the algorithm must be a name, not {algorithm!r}"
        )
    options(algorithm, algorithm_options(conf))


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


PARTS = (
    "_accelerator_connector.use_distributed_sampler",
    "_checkpoint_connector.hpc_save_path",
    "_signal_connector._slurm_sigusr_handler_fn",
    "fit_loop._combined_loader",
    "fit_loop.epoch_loop._num_ready_batches_reached",
    "fit_loop.epoch_loop._should_check_val_epoch",
    "fit_loop.epoch_loop.val_loop._combined_loader",
)
"""What is used of Lightning's trainer and is not promised to stay."""


def check_parts(trainer: pl.Trainer) -> None:
    """Raise InputError if this version of Lightning lacks one of `PARTS`."""
    for part in PARTS:
        try:
            attrgetter(part)(trainer)
        except AttributeError:
            raise InputError(
                f"lightning {version('lightning')}: the trainer has no {part}, which "
                "DistoptStrategy uses: install a version that docs/private_parts.md "
                "names"
            ) from None


def check_fit(trainer: pl.Trainer, algorithm: str, queue: bool) -> None:
    """Raise InputError for what would let learners wait for each other for ever.

    With a queue they take their batches from it, and so their steps differ in number.
    """
    check_parts(trainer)
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if AVERAGING.intersection(kind.__name__ for kind in type(callback).__mro__):
            raise InputError(
                f"{type(callback).__name__} replaces the parameters of each learner by "
                "an average of its own: leave it out (validation and checkpoints have "
                "the mean of the learners already)"
            )
        if steps_alone(algorithm) and isinstance(callback, ModelCheckpoint):
            _check_checkpoints(callback, algorithm)
    if queue and (found := _counts_batches(trainer)):
        raise InputError(
            f"Trainer: {found} a learner's own batches, and learners of {algorithm} "
            "take as many as they can: count epochs (max_epochs, "
            "check_val_every_n_epoch), or give DistoptStrategy work_queue=False"
        )


def _check_checkpoints(callback: ModelCheckpoint, algorithm: str) -> None:
    within = _every_n_steps(callback) >= 1
    if within or _by_time(callback):
        option = "every_n_train_steps" if within else "train_time_interval"
        raise InputError(
            f"ModelCheckpoint({option}=...) saves within an epoch, where learners of "
            f"{algorithm} are at different steps: use every_n_epochs"
        )


def _counts_batches(trainer: pl.Trainer) -> str | None:
    """Return what counts or cuts the batches of each learner; None if nothing does."""
    limit = trainer.limit_train_batches
    if trainer.fast_dev_run:  # type: ignore[attr-defined]
        return f"fast_dev_run={trainer.fast_dev_run} counts"  # type: ignore[attr-defined]
    if trainer.max_steps != -1:
        return f"max_steps={trainer.max_steps} counts"
    if trainer.min_steps:
        return f"min_steps={trainer.min_steps} counts"
    if limit != 0 and not _is_whole(limit):
        overfits = trainer.overfit_batches > 0  # type: ignore[attr-defined]
        name = "overfit_batches" if overfits else "limit_train_batches"
        return f"{name}={limit} counts"
    return _validates_within(trainer)


def _validates_within(trainer: pl.Trainer) -> str | None:
    """Return what lets learners validate within an epoch; None if nothing does."""
    if validates_by_clock(trainer):
        return "a time as val_check_interval falls between"
    if not _is_whole(trainer.val_check_interval):
        return f"val_check_interval={trainer.val_check_interval} counts"
    if trainer.check_val_every_n_epoch is None:
        return "check_val_every_n_epoch=None counts"
    return None


def _is_whole(part: float) -> bool:
    """Return whether `part` is a whole epoch; the integer 1 is one batch."""
    return isinstance(part, float) and part == 1.0


def validates_by_clock(trainer: pl.Trainer) -> bool:
    """Return whether `val_check_interval` is a time, as it can be since 2.6."""
    return getattr(trainer, "_val_check_time_interval", None) is not None


def check_decisions(trainer: pl.Trainer, session: Session, together: bool) -> None:
    """Raise InputError for decisions within an epoch that learners make differently.

    Each learner would act by its own clock, or by its own loss, and only some of them
    would come to where all must meet. If all wait for each other in every step,
    Lightning lets them decide `together`.
    """
    learner, name = session.learner, session.name
    if learner.size == 1:
        return
    if validates_by_clock(trainer):
        raise InputError(
            "Trainer: with a time as val_check_interval, each learner validates by its "
            "own clock, and waits for the others: give a number"
        )
    if together:
        return
    alone = len(session.algorithm.lockstep(learner)) == 1
    stops_count = not alone or _validates_within(trainer) is not None
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if isinstance(callback, ModelCheckpoint):
            _check_own_decisions(callback, name)
        if isinstance(callback, Timer) and _stops_within(callback) and stops_count:
            raise InputError(
                "Trainer(max_time=...) stops each learner by its own clock, and the "
                f"others of {name} would wait for it: stop at the end of an epoch, by "
                "the callback Timer(duration=..., interval='epoch')"
            )


def _stops_within(timer: Timer) -> bool:
    duration = getattr(timer, "_duration", None)
    return duration is not None and getattr(timer, "_interval", None) == "step"


def _every_n_steps(callback: ModelCheckpoint) -> int:
    """Return in how many steps it saves once; 0: it does not, or hides it."""
    return getattr(callback, "_every_n_train_steps", 0)


def _by_time(callback: ModelCheckpoint) -> bool:
    """Return whether it saves by a clock, as far as it tells."""
    return getattr(callback, "_train_time_interval", None) is not None


def _check_own_decisions(callback: ModelCheckpoint, algorithm: str) -> None:
    found = None
    if _by_time(callback):
        found = "train_time_interval=...) saves by each learner's own clock"
    elif _every_n_steps(callback) >= 1 and callback.monitor is not None:
        found = "every_n_train_steps=..., monitor=...) saves by each learner's own loss"
    if found:
        raise InputError(
            f"ModelCheckpoint({found}, and learners of {algorithm} must save together: "
            "use every_n_epochs, or every_n_train_steps without monitor"
        )


def check_skipped(session: Session) -> None:
    """Raise InputError for a skipped batch whose gradients others wait for."""
    if session.algorithm.wants_gradients and session.learner.size > 1:
        raise InputError(
            f"{session.learner.where}: training_step has returned None, and "
            f"{session.name} averages the gradients of learners: return "
            "0.0 * sum(p.sum() for p in self.parameters()) to train on nothing"
        )

"""The callback by which the strategy learns where Lightning's epochs begin and end."""

from typing import Any

import lightning.pytorch as pl

from espnet_distopt.lightning.fit import Fit


class EpochEnds(pl.Callback):
    """Comes before all other callbacks, so that they find the consensus model.

    Args:
        fit: the fit that it belongs to.
    """

    def __init__(self, fit: Fit) -> None:
        self._fit = fit
        self._dividing = fit.session.learner.size

    def on_train_epoch_start(self, *_: Any) -> None:
        """Begin the epoch."""
        self._fit.begin_epoch()

    def on_train_batch_end(self, *_: Any, **__: Any) -> None:
        """Stop, if that was asked for."""
        self._fit.stop_if_asked()

    def on_validation_start(self, trainer: pl.Trainer, *_: Any) -> None:
        """Form the consensus model for validation."""
        if trainer.sanity_checking:
            return
        self._meet(trainer)
        living = self._fit.living
        if living is not None and living.place[1] < self._dividing:
            self._dividing = living.place[1]
            divide_anew(trainer)

    def on_train_epoch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        """Form the consensus model, where there was no validation."""
        if self._fit.found_no_batch:
            self._fit.begin_epoch()
            end_without_batches(trainer)
        self._meet(trainer)

    def _meet(self, trainer: pl.Trainer) -> None:
        distance = self._fit.meet()
        if distance is not None:
            trainer.strategy.consensus_distance = distance  # type: ignore[attr-defined]


def divide_anew(trainer: pl.Trainer) -> None:
    """Divide the samples of the validation that begins among those who live."""
    loop = trainer.fit_loop.epoch_loop.val_loop
    loop._combined_loader = None
    loop.setup_data()
    loop.reset()


def end_without_batches(trainer: pl.Trainer) -> None:
    """Do at the end of an epoch what Lightning does after its last batch.

    A learner that has found no batch has had no last one. The others wait for it in
    validation.
    """
    loop = trainer.fit_loop.epoch_loop
    loop.batch_progress.is_last_batch = True
    loop.update_lr_schedulers("epoch", update_plateau_schedulers=False)
    if loop._should_check_val_epoch():
        trainer.validating = True
        loop.val_loop.run()
        trainer.training = True

"""ESPnet's own checkpoints, and their repair after a kill.

ESPnet's `checkpoint.pth` holds the consensus model and learner 0's optimizer. ESPnet
writes it in place, so that a kill may leave a part of it.
"""

import logging
import os
import pickle
import shutil
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import torch
from espnet2.train.reporter import Reporter

from espnet_distopt.files.tensors import atomic_save, is_whole
from espnet_distopt.files.writing import whole_file


def keep_checkpoint(output_dir: Path) -> None:
    """Copy the last `checkpoint.pth`, which ESPnet is about to overwrite in place.

    Without the copy, a kill during that write would leave nothing to resume from.
    """
    checkpoint = output_dir / "checkpoint.pth"
    if is_whole(checkpoint):
        kept = output_dir / "distopt" / "checkpoint.pth"
        kept.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(kept) as new:
            shutil.copyfile(checkpoint, new)


def checkpoint_epoch(output_dir: Path) -> int:
    """Return the epoch after which ESPnet's checkpoint was written; 0 if it is not."""
    reporter = _saved_reporter(output_dir)
    return 0 if reporter is None else int(reporter.get_epoch())


def _saved_reporter(output_dir: Path) -> Reporter | None:
    """Return ESPnet's reporter as in its checkpoint; None if there is none.

    ESPnet writes it in place, so it may be cut off at this moment. Its tensors are not
    read.
    """
    checkpoint = output_dir / "checkpoint.pth"
    if not is_whole(checkpoint):
        return None
    try:
        saved = torch.load(
            checkpoint, map_location="cpu", mmap=True, weights_only=False
        )
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError):
        return None
    reporter = Reporter()
    reporter.load_state_dict(saved["reporter"])
    return reporter


def ended_early(output_dir: Path, patience: int, criterion: Sequence[str]) -> int:
    """Return the epoch after which ESPnet's `patience` has ended the training, or 0.

    The criterion is ESPnet's: phase, key and mode, as `valid`, `loss` and `min`.
    """
    reporter = _saved_reporter(output_dir)
    if reporter is None or not reporter.check_early_stopping(patience, *criterion):
        return 0
    return int(reporter.get_epoch())


_FAR = 2.0  # times the best epoch's loss, or a half of its accuracy
_OF_RANGE = 0.1  # of the way from the best epoch to the worst; small losses vary more


def far_averages(
    output_dir: Path, criteria: Sequence[Sequence[str]], nbest: int | Collection[int]
) -> list[str]:
    """Return a line for each average that an epoch far worse than the best is part of.

    ESPnet averages the parameters of its best epochs, however bad they are: those of a
    short training may include the first one. Averages by training figures, which
    nobody decodes, are not looked at.

    Args:
        output_dir: The experiment's directory.
        criteria: What epochs are compared by: phase, key, and `min` or `max` each.
        nbest: How many are averaged, or several numbers: `*.ave.pth` has the largest.
    """
    reporter = _saved_reporter(output_dir)
    if reporter is None:
        return []
    lines = []
    for phase, key, mode in criteria:
        if phase != "valid" or not reporter.has(phase, key):
            continue
        epochs = reporter.sort_epochs_and_values(phase, key, mode)
        counts = [nbest] if isinstance(nbest, int) else nbest
        averaged = epochs[: max((n for n in counts if n <= len(epochs)), default=1)]
        (best, least), worst = epochs[0], epochs[-1][1]
        number = 0
        for _, value in averaged:
            near = value <= _FAR * least if mode == "min" else value >= least / _FAR
            if not near and not abs(value - least) <= _OF_RANGE * abs(worst - least):
                break
            number += 1
        else:
            continue
        epoch, value = averaged[number]
        lines.append(
            f"{output_dir}/{phase}.{key}.ave.pth averages {len(averaged)} epochs, and "
            f"{phase} {key} of epoch {epoch} is {value:.4g}, where the best epoch, "
            f"{best}, has {least:.4g}: decode {phase}.{key}.best.pth, train longer, or "
            f"average fewer (keep_nbest_models: {number})"
        )
    return lines


def recover_checkpoint(output_dir: Path) -> None:
    """Put the kept copy back if a kill has left a `checkpoint.pth` that is cut off."""
    checkpoint = output_dir / "checkpoint.pth"
    kept = output_dir / "distopt" / "checkpoint.pth"
    if checkpoint.exists() and not is_whole(checkpoint):
        if is_whole(kept):
            logging.warning(f"{checkpoint} is cut off; going back one epoch to {kept}")
            os.replace(kept, checkpoint)
        else:
            logging.warning(f"{checkpoint} is cut off; starting from the beginning")
            checkpoint.unlink()


def remove_unfinished(output_dir: Path) -> None:
    """Remove the parts of files that kills have left, as large as what they are of."""
    for folder in (output_dir, output_dir / "distopt"):
        for part in folder.glob(".*.pth.*.part"):
            part.unlink(missing_ok=True)


def set_checkpoint_aside(output_dir: Path) -> None:
    """Rename the checkpoint of an earlier training, and remove its kept copy."""
    checkpoint = output_dir / "checkpoint.pth"
    if checkpoint.exists():
        old = checkpoint.with_name("checkpoint.old.pth")
        logging.warning(f"{checkpoint} is of an earlier training; it is now {old}")
        os.replace(checkpoint, old)
    (output_dir / "distopt" / "checkpoint.pth").unlink(missing_ok=True)


def recover_epoch_model(output_dir: Path, epoch: int, model: dict[str, Any]) -> None:
    """Write `{epoch}epoch.pth` if a kill came between the checkpoint and this file."""
    path = output_dir / f"{epoch}epoch.pth"
    if epoch > 0 and not is_whole(path):
        atomic_save(model, path)

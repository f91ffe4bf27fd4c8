"""Each learner's own state beside ESPnet's checkpoints, and what a kill can leave.

ESPnet's `checkpoint.pth` holds the consensus model and learner 0's optimizer. What
differs between learners goes to `distopt/learner{rank}.{epoch}epoch.pth`: plain
tensors, numbers, strings, lists and dicts, so that it loads with weights_only. It is
written at a stop within the epoch, and before its validation, so the file of an epoch
is complete when its checkpoint is; those of the last two epochs are kept.
"""

import logging
import os
import shutil
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from espnet_distopt.errors import InputError
from espnet_distopt.files.writing import whole_file


def atomic_save(content: Any, path: Path) -> None:
    """`torch.save` to a temporary name, sync, rename: whole, or not there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path, sync=True) as new, new.open("wb") as file:
        torch.save(content, file)


def is_whole(path: Path) -> bool:
    """Return whether `path` is a complete `torch.save` file (its index comes last)."""
    return path.is_file() and zipfile.is_zipfile(path)


def _side_file(output_dir: Path, rank: int, epoch: int) -> Path:
    return output_dir / "distopt" / f"learner{rank}.{epoch}epoch.pth"


def save_learner(
    state: dict[str, Any], output_dir: Path, rank: int, epoch: int
) -> None:
    """Write a learner's state in `epoch`; drop that of two epochs before."""
    atomic_save(_plain(state), _side_file(output_dir, rank, epoch))
    _side_file(output_dir, rank, epoch - 2).unlink(missing_ok=True)


def _plain(value: Any) -> Any:
    """Return `value` with Python's numbers in place of NumPy's.

    Some schedulers compute rates by NumPy, and torch would not load those again.
    """
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        ones = map(_plain, value)
        return tuple(ones) if isinstance(value, tuple) else list(ones)
    return value


def load_learner(output_dir: Path, rank: int, epoch: int) -> dict[str, Any] | None:
    """Return a learner's state in or after `epoch`, or None if it has none.

    Raises:
        InputError: the file cannot be read.
    """
    path = _side_file(output_dir, rank, epoch)
    if not path.exists():
        return None
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        reason = str(error).partition("\n")[0]
        raise InputError(
            f"{path} cannot be read ({reason}); remove the experiment's distopt/ "
            "folder to go on from the consensus model"
        ) from error
    return state


def forget_learner(output_dir: Path, rank: int, epoch: int) -> None:
    """Remove a learner's state within `epoch`."""
    _side_file(output_dir, rank, epoch).unlink(missing_ok=True)


def keep_checkpoint(output_dir: Path) -> None:
    """Copy the last checkpoint.pth, which stock ESPnet is about to overwrite in place.

    A kill during that write would otherwise leave nothing to resume from.
    """
    checkpoint = output_dir / "checkpoint.pth"
    if is_whole(checkpoint):
        kept = output_dir / "distopt" / "checkpoint.pth"
        kept.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(kept) as new:
            shutil.copyfile(checkpoint, new)


def recover_checkpoint(output_dir: Path) -> None:
    """Put the kept copy back where a kill has left a checkpoint.pth that is cut off."""
    checkpoint = output_dir / "checkpoint.pth"
    kept = output_dir / "distopt" / "checkpoint.pth"
    if checkpoint.exists() and not is_whole(checkpoint):
        if is_whole(kept):
            logging.warning(f"{checkpoint} is cut off; going back one epoch to {kept}")
            os.replace(kept, checkpoint)
        else:
            logging.warning(f"{checkpoint} is cut off; starting from the beginning")
            checkpoint.unlink()


def recover_epoch_model(output_dir: Path, epoch: int, model: dict[str, Any]) -> None:
    """Write {epoch}epoch.pth if a kill came between it and its checkpoint."""
    path = output_dir / f"{epoch}epoch.pth"
    if epoch > 0 and not is_whole(path):
        atomic_save(model, path)

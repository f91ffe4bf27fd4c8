"""What each learner saves for itself beside Lightning's checkpoint, and takes back.

The checkpoint holds the consensus model, and loads in plain Lightning. What differs
between learners goes to `distopt/NAME/learner{rank}.ckpt` beside it. Both have a stamp,
so that files of different saves are never taken for those of one.
"""

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from espnet_distopt.files.random_state import random_state
from espnet_distopt.session import Session

KEY = "distopt"
"""Where a checkpoint holds the stamp; plain Lightning ignores it."""

_OF_TRAINER = ("loops", "optimizer_states", "lr_schedulers", "MixedPrecision")
"""The parts of Lightning's checkpoint that differ between learners."""

State = dict[str, Any]


def folder(checkpoint: str | os.PathLike[str]) -> str:
    """Return the folder of the learners' files of a checkpoint."""
    path = os.fspath(checkpoint)
    path = os.path.realpath(path) if os.path.islink(path) else path
    return os.path.join(os.path.dirname(path), "distopt", os.path.basename(path))


def file(checkpoint: str | os.PathLike[str], rank: int) -> str:
    """Return the path of a learner's file of a checkpoint."""
    return os.path.join(folder(checkpoint), f"learner{rank}.ckpt")


def is_whole(checkpoint: Mapping[str, Any]) -> bool:
    """Return whether Lightning's checkpoint has more than the weights."""
    return "optimizer_states" in checkpoint


def capture(
    session: Session,
    model: nn.Module,
    checkpoint: Mapping[str, Any],
    position: State | None,
) -> State:
    """Return what this learner needs beside the checkpoint.

    Args:
        session: the learner's session; no message is in flight.
        model: the model.
        checkpoint: what Lightning saves, with the stamp.
        position: where in the epoch the learner is; None between epochs.
    """
    return {
        KEY: checkpoint[KEY],
        "trainer": _plain({k: checkpoint[k] for k in _OF_TRAINER if k in checkpoint}),
        "session": session.state_dict(),
        "buffers": {n: b.detach().clone() for n, b in model.named_buffers()},
        "position": position,
        "random": random_state(),
    }


def fits(own: Mapping[str, Any], checkpoint: Mapping[str, Any]) -> bool:
    """Return whether a learner's file is of the same save as a checkpoint."""
    return bool(own) and own.get(KEY) == checkpoint.get(KEY)


def merge(own: Mapping[str, Any], checkpoint: State) -> None:
    """Put a learner's parts in the place of those of learner 0."""
    checkpoint.update(own["trainer"])


@torch.no_grad()
def restore(own: Mapping[str, Any], session: Session, model: nn.Module) -> None:
    """Give the learner its parameters back, after the optimizer's state."""
    session.load_state_dict(own["session"])
    buffers = dict(model.named_buffers())
    for name, saved in own["buffers"].items():
        buffers[name].copy_(saved)


def as_after_a_batch(loops: State, counts: bool) -> None:
    """Make the progress of a stop that of a stop in the hook after a batch.

    A learner may be stopped after its last batch, or learn only at the epoch's end that
    others have stopped. It must go on within the epoch, as they do: it may find
    batches, and it has not validated.

    Args:
        loops: the state of Lightning's loops, which is changed.
        counts: whether Lightning, when it resumes, counts the batch of the hook as
            completed; old versions do not.
    """
    fit = loops["fit_loop"]
    batches, epochs = fit["epoch_loop.batch_progress"], fit["epoch_progress"]
    batches["is_last_batch"] = False
    open_batches = int(counts and batches["current"]["ready"] > 0)
    for part in ("total", "current"):
        batches[part]["completed"] = batches[part]["ready"] - open_batches
        epochs[part]["processed"] = epochs[part]["started"] - 1


def _plain(value: Any) -> Any:
    """Return `value` with Python's numbers in the place of NumPy's."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list) else value

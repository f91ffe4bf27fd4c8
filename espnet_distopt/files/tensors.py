"""Files of `torch.save` that are whole or not there, and that `weights_only` reads."""

import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch

from espnet_distopt.files.writing import whole_file


def atomic_save(content: Any, path: Path) -> None:
    """Save `content` by `torch.save`, so that a kill leaves the whole file or none.

    The content goes to a temporary file first, which is renamed once it is on the disk.

    Raises:
        OSError: the file cannot be written, for example because the disk is full.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with whole_file(path, sync=True) as new, new.open("wb") as file:
            torch.save(content, file)
    except (OSError, RuntimeError) as error:
        # PyTorch says "unexpected pos" when a write has failed before.
        cause = error if isinstance(error, OSError) else error.__context__
        if not isinstance(cause, OSError):
            raise
        # `from None`: recipes show the first error of a log, and this one has the path.
        raise OSError(cause.errno, cause.strerror, str(path)) from None


def is_whole(path: Path) -> bool:
    """Return whether `path` is a complete `torch.save` file; its index comes last."""
    return path.is_file() and zipfile.is_zipfile(path)


def plain(value: Any) -> Any:
    """Return `value` with Python's numbers in the place of NumPy's.

    Some schedulers compute learning rates by NumPy, and `torch.load` refuses NumPy's
    numbers if `weights_only` is set.
    """
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, dict) and not isinstance(value, Counter):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        ones = map(plain, value)
        return tuple(ones) if isinstance(value, tuple) else list(ones)
    return value

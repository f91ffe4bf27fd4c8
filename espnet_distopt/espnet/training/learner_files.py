"""The learners' own files, and the large tensors that several learners have in common.

A learner's state goes to `distopt/learner{rank}.{epoch}epoch.pth`. It consists of
tensors, numbers, strings, lists and dicts, so that `torch.load` reads it with
`weights_only`. Large tensors are in files of their own, and the learner's file refers
to them by name: `distopt/{epoch}epoch.{digest}.pth`, where the digest is that of the
content. Where learners have the same tensors, these names are the same, and one of them
writes the file for all. With BMUF-Adam, whose learners are alike after a block, an
epoch of 64 learners takes hardly more room than that of one.

The files of the last two epochs are kept.

Bytes of an epoch, for N learners: what they have in common, once; what differs between
them, N times; and some KB for each learner.
"""

import hashlib
import logging
import re
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from espnet_distopt.errors import InputError, in_words
from espnet_distopt.espnet.training.side_files import atomic_save, is_whole, plain

State = dict[str, Any]

LARGE = 128
"""A tensor with as many elements goes to another file than the learner's."""

SHARED = ("session", "optimizer", "buffers")
"""The sections of a state whose tensors may be those of other learners, too."""

_PART, _INDEX = "in file", "number"

_OF_EPOCH = re.compile(r"(?:learner\d+\.)?(\d+)epoch\.(?:[0-9a-f]+\.)?pth")
"""The name of a learner's file, or of one with large tensors, and its epoch."""

Claim = Callable[[str], bool]
"""Returns whether this learner is the first to name a file, so that it writes it."""


class LearnerFiles:
    """Writes the states of one learner, beside the training.

    Saving has three parts, between which all learners wait for each other: `begin`,
    `finish`, and `complete`.

    Args:
        output_dir: the experiment's directory.
        rank: the number of this learner.
    """

    def __init__(self, output_dir: Path, rank: int) -> None:
        self._folder = output_dir / "distopt"
        self._output_dir, self._rank = output_dir, rank
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._writing: Future[None] | None = None
        self._parts: dict[str, list[Tensor]] = {}

    def begin(self, state: State, epoch: int, claim: Claim) -> None:
        """Begin to write a state; its tensors must not change until `finish`.

        Cost: a pass over the tensors for their digests; the rest is done by a thread.
        """
        content, self._parts = _take_apart(plain(state), epoch)
        mine = [name for name in self._parts if claim(name)]
        self._writing = self._writer.submit(self._write, content, mine, epoch)

    def _write(self, content: State, mine: list[str], epoch: int) -> None:
        for name in mine:
            self._write_part(name)
        atomic_save(content, _path(self._output_dir, self._rank, epoch))
        _path(self._output_dir, self._rank, epoch - 2).unlink(missing_ok=True)
        for old in self._folder.glob("*epoch.*.pth"):
            number, _, rest = old.name.partition("epoch.")
            if number.isdigit() and rest and int(number) <= epoch - 2:
                old.unlink(missing_ok=True)

    def _write_part(self, name: str) -> None:
        path = self._folder / name
        if not is_whole(path):
            atomic_save(self._parts[name], path)

    def finish(self) -> None:
        """Wait until this learner has written what it had to.

        Raises:
            OSError: a file cannot be written, for example because the disk is full.
        """
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def complete(self) -> None:
        """Write what is still missing, once all learners have come to `finish`.

        A learner that had claimed a file may have died before it could write it, or it
        may write to a disk that this one does not see.

        Raises:
            OSError: as in `finish`.
        """
        for name in self._parts:
            self._write_part(name)
        self._parts = {}


def _path(output_dir: Path, rank: int, epoch: int) -> Path:
    return output_dir / "distopt" / f"learner{rank}.{epoch}epoch.pth"


def load_learner(output_dir: Path, rank: int, epoch: int) -> State | None:
    """Return a learner's state within or after `epoch`, or None if it has none.

    It counts as none if a file that it refers to is missing.

    Raises:
        InputError: a file cannot be read.
    """
    path = _path(output_dir, rank, epoch)
    if not path.exists():
        return None
    parts: dict[str, list[Tensor]] = {}

    def fill(value: Any) -> Any:
        if isinstance(value, list):
            return [fill(each) for each in value]
        if not isinstance(value, dict):
            return value
        if _PART not in value:
            return {key: fill(each) for key, each in value.items()}
        name = value[_PART]
        if name not in parts:
            parts[name] = _read(path.parent / name)
        return parts[name][value[_INDEX]]

    content = _read(path)
    try:
        state: State = fill(content)
    except FileNotFoundError as error:
        logging.error(f"{path} is of no use: {error.filename} is missing")
        return None
    return state


def _read(path: Path) -> Any:
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise
    except Exception as error:
        raise InputError(
            f"{path} cannot be read ({in_words(error)}); remove the experiment's "
            "distopt/ folder to go on from the consensus model"
        ) from error


def forget_learner(output_dir: Path, rank: int, epoch: int) -> None:
    """Remove a learner's state within `epoch`."""
    _path(output_dir, rank, epoch).unlink(missing_ok=True)


def forget_later(output_dir: Path, epoch: int) -> None:
    """Remove what any learner has saved within or after the epochs behind `epoch`.

    All learners call this before any of them saves.
    """
    for path in (output_dir / "distopt").glob("*epoch.*pth"):
        name = _OF_EPOCH.fullmatch(path.name)
        if name is not None and int(name[1]) > epoch:
            path.unlink(missing_ok=True)


def _take_apart(state: State, epoch: int) -> tuple[State, dict[str, list[Tensor]]]:
    """Return `state` with references in the place of large tensors, and their files.

    Each large tensor of the session has a file of its own, because some of them may be
    equal on all learners and others not. Those of any other section share a file.
    """
    content: State = {}
    parts: dict[str, list[Tensor]] = {}
    for section, value in state.items():
        if section not in SHARED:
            content[section] = value
            continue
        tensors: list[Tensor] = []
        references: list[dict[str, Any]] = []
        content[section] = _refer(value, tensors, references)
        groups = [[i] for i in range(len(tensors))]
        if section != "session":
            groups = [list(range(len(tensors)))] if tensors else []
        for group in groups:
            together = [tensors[i] for i in group]
            name = f"{epoch}epoch.{_digest(together)}.pth"
            parts[name] = together
            for place, i in enumerate(group):
                references[i].update({_PART: name, _INDEX: place})
    return content, parts


def _refer(value: Any, tensors: list[Tensor], references: list[dict[str, Any]]) -> Any:
    """Return `value` with an empty reference for each large tensor.

    Args:
        value: a part of a state.
        tensors: receives the large tensors.
        references: receives the references, in the same order.
    """
    if isinstance(value, Tensor) and value.numel() >= LARGE:
        tensors.append(value.detach())
        references.append({})
        return references[-1]
    if isinstance(value, dict):
        return {k: _refer(v, tensors, references) for k, v in value.items()}
    if isinstance(value, list):
        return [_refer(each, tensors, references) for each in value]
    return value


def _digest(tensors: list[Tensor]) -> str:
    """Return 32 hexadecimal digits of the SHA-256 of dtypes, shapes and bits."""
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(f"{tensor.dtype} {tuple(tensor.shape)};".encode())
        flat = tensor.cpu().contiguous().view(-1)
        found.update(flat.view(torch.uint8).numpy().data)
    return found.hexdigest()[:32]

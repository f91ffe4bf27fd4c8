"""How utterances are cut into chunks of equal length, and how many these are."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from espnet_distopt.errors import InputError
from espnet_distopt.espnet.training import options
from espnet_distopt.files.tables import counted, read_table

Frames = NDArray[np.int64]
"""A number for each utterance, shape (U,)."""


@dataclass(frozen=True)
class Cutting:
    """How utterances become chunks.

    Attributes:
        length: The number of frames of a chunk.
        step: The number of frames from one chunk's beginning to the next one's.
    """

    length: int
    step: int

    def counts(self, frames: Frames) -> Frames:
        """Return the number of chunks of each utterance, for its number of frames."""
        return np.maximum(0, (frames - self.length) // self.step + 1)

    def first(self, frames: Frames, rng: np.random.Generator) -> Frames:
        """Return where the first chunk of each utterance begins.

        All chunks of an utterance move at random within the frames that are left over.
        """
        spare = frames - self.length - (self.counts(frames) - 1) * self.step
        return (rng.random(len(frames)) * (spare + 1)).astype(np.int64)


def batches_of(chunks: int, batch_size: int, learners: int) -> int:
    """Return how many batches the chunks of an epoch fill.

    The chunks are divided among the learners and then among the batches as equally as
    possible, so a batch can have some chunks more than `batch_size`, but fewer than
    there are learners. Every learner has a chunk in each batch.
    """
    return min(-(-chunks // batch_size), chunks // learners)


def batches_of_epoch(args: argparse.Namespace, learners: int) -> int:
    """Return how many batches a training has in an epoch, whatever its iterator.

    Raises:
        InputError: They cannot be counted.
    """
    if args.iterator_type != "chunk":
        return options.batches_of_epoch(args, learners)
    if args.num_iters_per_epoch is not None:
        raise InputError(
            "a schedule in epochs needs all chunks in each: leave num_iters_per_epoch "
            "out, or give the number of steps instead"
        )
    cutting = cutting_of(args.chunk_length, args.chunk_shift_ratio)
    frames = read_frames(args.train_shape_file)
    chunks = cutting.counts(np.fromiter(frames.values(), np.int64, len(frames))).sum()
    return batches_of(int(chunks), int(args.batch_size), learners)


def cutting_of(lengths: int | str | Sequence[int], shift_ratio: float) -> Cutting:
    """Return how ESPnet's options cut utterances.

    `chunk_length` is a number, its digits, or the only one of a list.

    Raises:
        InputError: There is not one length above 0.
    """
    found = [lengths] if isinstance(lengths, int | str) else list(lengths)
    if len(found) != 1 or not str(found[0]).isdecimal() or int(found[0]) < 1:
        raise InputError(f"chunk_length: expected one number above 0, not {lengths}")
    length = int(found[0])
    return Cutting(length, max(1, int(length * shift_ratio)))


def read_frames(shape_files: Sequence[str]) -> dict[str, int]:
    """Return the number of frames of each utterance, from the first shape file.

    Raises:
        InputError: There is none, or it is malformed.
    """
    if not shape_files:
        raise InputError(
            "chunks need --train_shape_file and --valid_shape_file, with the number "
            "of frames of each utterance"
        )
    return read_table(Path(shape_files[0]), counted("utterance", "frames"))

"""How utterances are cut into chunks of equal length, and how many these are."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from espnet_distopt.corpora.kaldi.tables import counted, read_table
from espnet_distopt.errors import InputError


@dataclass(frozen=True)
class Cutting:
    """How utterances become chunks.

    Attributes:
        length: The number of frames of a chunk.
        step: The number of frames from one chunk's beginning to the next one's.
    """

    length: int
    step: int

    def count(self, frames: int) -> int:
        """Return the number of chunks of an utterance."""
        return max(0, (frames - self.length) // self.step + 1)

    def starts(self, frames: int, rng: np.random.Generator | None) -> range:
        """Return where the chunks begin; `rng` moves all within what is left over."""
        count = self.count(frames)
        spare = frames - self.length - (count - 1) * self.step
        first = int(rng.integers(spare + 1)) if rng and count else 0
        return range(first, first + count * self.step, self.step)


def cutting_of(lengths: int | str | Sequence[int], shift_ratio: float) -> Cutting:
    """Return how ESPnet's options cut utterances.

    Args:
        lengths: `chunk_length`, as a number, its digits, or the only one of a list.
        shift_ratio: `chunk_shift_ratio`.

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

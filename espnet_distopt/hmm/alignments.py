"""A directory of alignments: the pdf of each frame, and what decoding needs of them.

- `ali.scp` and `ali.ark`: each utterance's pdfs, a Kaldi vector of integers;
- `utt2num_frames`: each utterance's number of frames;
- `states.txt`: the name of each pdf;
- `counts`: the number of frames of each pdf, from which the priors come;
- `stay`: the probability of staying in each state for one more frame.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from espnet_distopt.corpora.kaldi.arks import ArkWriter, ark_library
from espnet_distopt.corpora.kaldi.tables import read_table, write_table
from espnet_distopt.errors import InputError
from espnet_distopt.files.text import read_text
from espnet_distopt.files.writing import write_text

Pdfs = NDArray[np.int32]
"""The pdf of each frame, shape (frames,)."""


class IntArkWriter(ArkWriter):
    """Writes vectors of integers: `ark[key] = vector`, int32, shape (n,)."""

    def __setitem__(self, key: str, vector: Pdfs) -> None:
        self._append(key, vector.astype(np.int32))


def read_pdfs(location: str, pdfs: int) -> Pdfs:
    """Read one utterance's alignment.

    Args:
        location: `path.ark:offset`, with the offset in bytes.
        pdfs: The number of pdfs.

    Raises:
        InputError: There is no whole vector of integers, or a number is no pdf.
    """
    try:
        vector = ark_library().load_mat(location)
    except OSError as error:
        raise InputError(
            f"{location}: cannot be read: {error.strerror or error}"
        ) from None
    except Exception as error:  # the libraries raise many kinds, even AssertionError
        raise InputError(f"{location}: no whole alignment: {error}") from None
    return checked(vector, pdfs, location)


def checked(vector: object, pdfs: int, where: str) -> Pdfs:
    """Return a vector after checking that it is an alignment with pdfs below `pdfs`.

    Raises:
        InputError: It is not; the message has `where`.
    """
    if not isinstance(vector, np.ndarray) or vector.dtype.kind not in "iu":
        raise InputError(f"{where}: expected a vector of integers")
    if vector.ndim != 1 or len(vector) == 0:
        raise InputError(f"{where}: expected a vector of integers that is not empty")
    if vector.min() < 0 or vector.max() >= pdfs:
        worst = vector.min() if vector.min() < 0 else vector.max()
        raise InputError(f"{where}: {worst} is no pdf: there are {pdfs}, from 0")
    return vector.astype(np.int32)


@dataclass(frozen=True)
class PdfCounts:
    """What alignments say about the pdfs.

    Attributes:
        frames: The number of frames of each pdf, shape (P,).
        visits: How often each pdf was entered, shape (P,).
    """

    frames: NDArray[np.int64]
    visits: NDArray[np.int64]

    @classmethod
    def of(cls, alignments: Iterable[Pdfs], pdfs: int) -> "PdfCounts":
        """Count the pdfs of alignments."""
        frames, visits = np.zeros(pdfs, np.int64), np.zeros(pdfs, np.int64)
        for alignment in alignments:
            frames += np.bincount(alignment, minlength=pdfs)
            entered = np.diff(alignment, prepend=-1) != 0
            visits += np.bincount(alignment[entered], minlength=pdfs)
        return cls(frames, visits)

    def stay(self) -> NDArray[np.float64]:
        """Return the probability of staying in each state, shape (P,).

        One more frame and half of one more stay are added to the counts, so that no
        probability is 0 or 1.
        """
        stays = (self.frames - self.visits).astype(np.float64)
        stay: NDArray[np.float64] = np.divide(stays + 0.5, self.frames + 1.0)
        return stay


def require_states(directory: Path, names: Sequence[str], where: str) -> None:
    """Check that the pdfs of alignments are the states with these names.

    Args:
        directory: The directory of the alignments, which has `states.txt`.
        names: The expected name of each pdf.
        where: What has these names, for the message.

    Raises:
        InputError: They have other names, or another order.
    """
    path = directory / "states.txt"
    if read_text(path).splitlines() != list(names):
        raise InputError(
            f"{where}: its states are not those of {path}: label the data, and train "
            "the network, again (in a recipe: from --stage 10)"
        )


def log_priors(frames: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return the log prior of each pdf, shape (P,), for its numbers of frames.

    A pdf counts as seen once at least, so that an unseen one is not preferred without
    limit.
    """
    counts = np.maximum(frames, 1)
    priors: NDArray[np.float32] = np.log(counts / counts.sum()).astype(np.float32)
    return priors


def write_numbers(path: Path, numbers: Iterable[float]) -> None:
    """Write a vector as Kaldi writes text, `[ 1 2 3 ]`, whole or not at all."""
    write_text(path, f" [ {' '.join(f'{number:.9g}' for number in numbers)} ]\n")


def read_numbers(path: Path, size: int) -> NDArray[np.float64]:
    """Read a vector that Kaldi or `write_numbers` has written as text.

    Raises:
        InputError: The file cannot be read, is not `[ numbers ]`, or has another number
            of them than `size`, or one that is negative or not finite.
    """
    fields = read_text(path).split()
    try:
        if fields[:1] != ["["] or fields[-1] != "]":
            raise ValueError
        numbers = np.array([float(field) for field in fields[1:-1]])
    except ValueError:
        raise InputError(f"{path}: expected numbers between [ and ]") from None
    if len(numbers) != size:
        raise InputError(f"{path}: {len(numbers)} numbers for {size} pdfs")
    if not np.isfinite(numbers).all() or (numbers < 0).any():
        raise InputError(f"{path}: expected finite numbers that are not negative")
    return numbers


def write_alignments(
    directory: Path, named: Path, alignments: Mapping[str, Pdfs], pdfs: int
) -> None:
    """Write all of an alignment directory but `states.txt`.

    Args:
        directory: The directory to write into.
        named: The name that the directory will have, for `ali.scp`.
        alignments: Utterance -> its pdfs.
        pdfs: The number of pdfs.
    """
    with IntArkWriter(directory / "ali.ark", named=named / "ali.ark") as ark:
        for name in sorted(alignments):
            ark[name] = alignments[name]
    write_table(directory / "ali.scp", ark.locations)
    frames = {name: len(vector) for name, vector in alignments.items()}
    write_table(directory / "utt2num_frames", frames)
    counts = PdfCounts.of(alignments.values(), pdfs)
    write_numbers(directory / "counts", counts.frames)
    write_numbers(directory / "stay", counts.stay())


def read_alignments(scp: Path, pdfs: int) -> Iterator[tuple[str, Pdfs]]:
    """Yield each utterance of an `ali.scp` with its pdfs.

    Raises:
        InputError: The table or one of the alignments is malformed.
    """
    for name, location in read_table(scp, str).items():
        yield name, read_pdfs(location, pdfs)

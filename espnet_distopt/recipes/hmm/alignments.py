"""A directory of alignments: the pdf of each frame, and what decoding needs of them.

- `ali.scp` and `ali.ark`: each utterance's pdfs, a Kaldi vector of integers;
- `utt2num_frames`: each utterance's number of frames;
- `states.txt`: the name of each pdf;
- `counts`: the number of frames of each pdf, from which the priors come;
- `stay`: the probability of staying in each state for one more frame.
"""

import gzip
import io
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from espnet_distopt.errors import InputError
from espnet_distopt.files.tables import write_table
from espnet_distopt.files.text import read_bytes, read_text
from espnet_distopt.files.writing import write_text
from espnet_distopt.recipes.corpora.kaldi.arks import ArkWriter, ark_library

Pdfs = NDArray[np.int32]
"""The pdf of each frame, shape (frames,)."""


class IntArkWriter(ArkWriter):
    """Writes vectors of integers: `ark[key] = vector`, int32, shape (n,)."""

    def __setitem__(self, key: str, vector: Pdfs) -> None:
        self._append(key, vector.astype(np.int32))


def checked(vector: object, pdfs: int, where: str) -> Pdfs:
    """Return a vector after checking that it is an alignment with pdfs below `pdfs`.

    Raises:
        InputError: It is not; the message has `where`.
    """
    if (
        not isinstance(vector, np.ndarray)
        or vector.dtype.kind not in "iu"
        or vector.ndim != 1
        or len(vector) == 0
    ):
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

    `named` is the name that the directory will have, for `ali.scp`.
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


# Reads the alignments of a Kaldi system: `final.mdl` and `ali.*.gz`.
#
# Kaldi aligns with transition-ids, each of which is an arc of a phone's HMM. The
# transition model at the beginning of `final.mdl` says which pdf an arc belongs to. The
# format is that of Kaldi's transition-model.cc and hmm-topology.cc, in binary form.

_MOST = 1 << 28
"""A greater count than this is taken for damage, not for a size."""


class _Reader:
    """Reads Kaldi's binary values.

    Every method raises ValueError if something else stands there.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def _bytes(self, count: int) -> bytes:
        found = self._file.read(count)
        if len(found) < count:
            raise ValueError("it ends too early")
        return found

    def expect(self, *tokens: str) -> str:
        found = b""
        while len(found) < 40 and not found.endswith(b" "):
            found += self._bytes(1)
        name = found.decode("latin-1").rstrip()
        if name not in tokens:
            raise ValueError(f"expected {' or '.join(tokens)}, got {name[:20]!r}")
        return name

    def number(self) -> int:
        if self._bytes(1) != b"\4":
            raise ValueError("expected a number of four bytes")
        return int(struct.unpack("<i", self._bytes(4))[0])

    def count(self) -> int:
        number = self.number()
        if not 0 <= number < _MOST:
            raise ValueError(f"{number} is no count")
        return number

    def numbers(self) -> NDArray[np.int32]:
        size = self.count()
        return np.frombuffer(self._bytes(4 * size), "<i4")


def read_transition_pdfs(path: Path) -> NDArray[np.int32]:
    """Return the pdf of each transition-id, which are counted from 1.

    Element 0, which is no transition-id, is -1.

    Args:
        path: A Kaldi model in binary form, as `final.mdl`; what follows the transition
            model in it is not read.

    Raises:
        InputError: The file does not begin with a binary transition model.
    """
    content = read_bytes(path)
    if not content.startswith(b"\0B"):
        raise InputError(
            f"{path}: not a model in Kaldi's binary form (gmm-copy --binary=true)"
        )
    reader = _Reader(io.BytesIO(content[2:]))
    try:
        reader.expect("<TransitionModel>")
        arcs, entry_of = _topology(reader)
        kind = reader.expect("<Triples>", "<Tuples>")
        pdfs = [-1]
        for _ in range(reader.count()):
            phone, state, pdf = reader.number(), reader.number(), reader.number()
            loop = reader.number() if kind == "<Tuples>" else pdf
            if not 0 < phone < len(entry_of) or min(pdf, loop) < 0:
                raise ValueError(f"no state of phone {phone} with pdf {pdf}")
            targets = arcs[entry_of[phone]][state]
            pdfs += [loop if target == state else pdf for target in targets]
        reader.expect(kind.replace("<", "</"))
    except (ValueError, IndexError) as error:
        raise InputError(f"{path}: no whole transition model: {error}") from None
    return np.array(pdfs, np.int32)


def _topology(reader: _Reader) -> tuple[list[list[list[int]]], list[int]]:
    """Return the targets of arcs by entry and state, and the entry of each phone."""
    reader.expect("<Topology>")
    reader.numbers()  # the phones, which the next vector implies
    entry_of = reader.numbers().tolist()
    entries = reader.number()
    separate_loops = entries == -1
    if separate_loops:
        entries = reader.count()
    arcs: list[list[list[int]]] = []
    for _ in range(entries):
        arcs.append([])
        for _ in range(reader.count()):
            for _ in range(2 if separate_loops else 1):
                reader.number()  # the class of the pdf
            targets = []
            for _ in range(reader.count()):
                targets.append(reader.number())
                reader.number()  # the probability, a float of the same size
            arcs[-1].append(targets)
    reader.expect("</Topology>")
    return arcs, entry_of


def read_kaldi_alignments(directory: Path) -> tuple[int, Iterator[tuple[str, Pdfs]]]:
    """Read a directory that Kaldi's align scripts have written, as `exp/tri4_ali`.

    Args:
        directory: Has `final.mdl` and `ali.1.gz` or `ali.1`, and so on.

    Returns:
        The number of pdfs, and each utterance with the pdf of each frame.

    Raises:
        InputError: The directory has no alignments, or a file is damaged.
    """
    pdf_of = read_transition_pdfs(directory / "final.mdl")
    files = sorted({*directory.glob("ali.*.gz"), *directory.glob("ali.[0-9]*")})
    if not files:
        raise InputError(f"{directory}: no alignments (ali.1.gz and so on)")
    return int(pdf_of.max()) + 1, _read_files(files, pdf_of)


def _read_files(
    files: list[Path], pdf_of: NDArray[np.int32]
) -> Iterator[tuple[str, Pdfs]]:
    for path in files:
        content = read_bytes(path)
        try:
            # A compressed file is read as a whole, because the library moves back.
            content = gzip.decompress(content) if path.suffix == ".gz" else content
            for name, vector in ark_library().load_ark(io.BytesIO(content)):
                where = f"{path}: {name}"
                found = checked(vector, len(pdf_of), where)
                if found.min() < 1:
                    raise InputError(f"{where}: 0 is no transition-id")
                yield name, pdf_of[found]
        except InputError:
            raise
        except (OSError, EOFError, zlib.error) as error:
            raise InputError(f"{path}: not a whole gzip file: {error}") from None
        except Exception as error:  # the libraries raise many kinds
            raise InputError(f"{path}: no whole alignments: {error}") from None


def fit(pdfs: Pdfs, frames: int) -> Pdfs | None:
    """Return an alignment for so many frames, or None if the lengths are too different.

    Kaldi leaves out the frames whose window reaches beyond the audio (`snip_edges`):
    there are up to three fewer, and the first one is the second one here. The first and
    the last pdf take their places.
    """
    missing = frames - len(pdfs)
    if not 0 <= missing <= 3:
        return None
    first = min(missing, 1)
    return np.pad(pdfs, (first, missing - first), mode="edge")

"""Reads the alignments of a Kaldi system: `final.mdl` and `ali.*.gz`.

Kaldi aligns with transition-ids, each of which is an arc of a phone's HMM. The
transition model at the beginning of `final.mdl` says which pdf an arc belongs to. The
format is that of Kaldi's transition-model.cc and hmm-topology.cc, in binary form.
"""

import gzip
import io
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from espnet_distopt.corpora.kaldi.arks import ark_library
from espnet_distopt.errors import InputError
from espnet_distopt.files.text import read_bytes
from espnet_distopt.hmm.alignments import Pdfs, checked

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

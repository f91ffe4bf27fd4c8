"""Kaldi arks of 16-bit mono wavs and of matrices, by kaldiio or omniio.

ESPnet 202511 comes with kaldiio, later versions with omniio; both write the same bytes.
This module writes wavs as "soundfile" entries (`AUDIO`, a length, a wav file). Both
libraries read such an entry as floats in [-1, 1], which ESPnet expects of `kaldi_ark`
speech. They read a bare wav as integers, and ESPnet's feature extraction then fails.
"""

import importlib
import io
import re
import struct
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO, Self

import numpy as np
import soundfile
from numpy.typing import NDArray

from espnet_distopt.errors import InputError

Samples = NDArray[np.int16]

_LOCATION = re.compile(r"(.+):(\d+)")
_AUDIO = b"AUDIO"  # is followed by a byte n, and by the wav's length in n bytes
_16_BITS = "PCM_16"
_HEAD_BYTES = 1 << 16  # enough of a wav to tell what samples it has
_RIFF_HEADER = struct.Struct("<4sI")
UNKNOWN_LENGTH = 0x7FFF0000
"""A program that writes a wav to a pipe cannot go back to note its length; it notes a
number from here on instead."""


def is_in_ark(location: str) -> bool:
    """Tell whether a location of a `wav.scp` is `path.ark:offset` and not a file."""
    return _LOCATION.fullmatch(location) is not None


def read_wav(location: str) -> tuple[int, Samples]:
    """Read one wav.

    Args:
        location: `path.ark:offset`, with the offset in bytes.

    Returns:
        The sample rate in Hz, and the samples, shape (time,).

    Raises:
        InputError: The ark does not exist, has no whole wav at this place, or has one
            that is not 16-bit mono.
    """
    found = _LOCATION.fullmatch(location)
    if found is None:
        raise InputError(
            f"{location}: expected path.ark:offset: `distopt format_data DATA DUMP` "
            "writes such a directory from one of recordings"
        )
    try:
        with open(found[1], "rb") as file:
            offset = _wav_offset(file, int(found[2]))
            check_whole(file, offset, location)
            rate, samples = ark_library().load_mat(location, fd_dict={found[1]: file})
            kind = _kind(file, offset)
    except OSError as error:
        raise InputError(
            f"{location}: cannot be read: {error.strerror or error}"
        ) from None
    except InputError:
        raise
    except Exception as error:  # the libraries raise many kinds, even AssertionError
        raise InputError(f"{location}: cannot be read: {error}") from error
    if kind != _16_BITS or samples.ndim != 1:
        raise InputError(
            f"{location}: expected 16-bit mono ({_16_BITS}), got {kind} of shape "
            f"{samples.shape}"
        )
    if samples.dtype == np.float64:
        # The library has divided 16-bit samples by 2^15, which is exact.
        samples = samples * 2**15
    return rate, samples.astype(np.int16)


class ArkWriter:
    """An ark that is being written; a subclass knows the kind of its entries.

    Attributes:
        locations: The place of each entry as `path.ark:offset`, for an `scp` file.
    """

    def __init__(self, path: Path, named: Path | None = None) -> None:
        """Open the ark.

        Args:
            path: The file to write.
            named: The name that the locations give the file; None for `path`. It
                differs if the file is renamed later.
        """
        self.locations: dict[str, str] = {}
        self._named = named or path
        self._save = ark_library().save_ark
        self._file = open(path, "wb")  # noqa: SIM115 (closed by __exit__)

    def _append(self, key: str, value: Any, **how: Any) -> None:
        """Write an entry; `how` holds the library's options for its kind."""
        offset = self._file.tell() + len(f"{key} ".encode())
        self._save(self._file, {key: value}, **how)
        self.locations[key] = f"{self._named}:{offset}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


class WavArkWriter(ArkWriter):
    """Writes wavs: `ark[key] = (rate, samples)`, with samples of shape (time,)."""

    def __setitem__(self, key: str, wav: tuple[int, Samples]) -> None:
        rate, samples = wav
        if samples.dtype != np.int16 or samples.ndim != 1:
            raise TypeError(f"{key}: expected 16-bit mono, got {samples.dtype}")
        self._append(key, (rate, samples), write_function="soundfile")


def _wav_offset(file: BinaryIO, offset: int) -> int:
    """Return where the wav of an entry starts: after `AUDIO` and its length, if any."""
    file.seek(offset)
    start = file.read(len(_AUDIO) + 1)
    if not start.startswith(_AUDIO) or len(start) == len(_AUDIO):
        return offset
    return offset + len(start) + start[-1]


def _kind(file: BinaryIO, offset: int) -> str:
    """Return libsndfile's name for the kind of samples of a wav, such as `PCM_16`."""
    file.seek(offset)
    kind: str = soundfile.info(io.BytesIO(file.read(_HEAD_BYTES))).subtype
    return kind


def check_whole(file: BinaryIO, offset: int, location: str) -> None:
    """Check that a wav starts at an offset of a file and ends within it.

    The check is needed because kaldiio, omniio and libsndfile return what is left of a
    truncated wav without an error.

    Raises:
        InputError: No wav starts there, or the file ends within it.
    """
    size = file.seek(0, 2)
    file.seek(offset)
    header = file.read(_RIFF_HEADER.size)
    if len(header) < _RIFF_HEADER.size or not header.startswith(b"RIFF"):
        raise InputError(f"{location}: no wav starts at this offset")
    _, length = _RIFF_HEADER.unpack(header)
    if length < UNKNOWN_LENGTH and offset + _RIFF_HEADER.size + length > size:
        raise InputError(f"{location}: the file ends within this wav: it is truncated")


def ark_library() -> ModuleType:
    """Import kaldiio, or omniio where ESPnet comes with that.

    Raises:
        InputError: Neither is installed.
    """
    for name in ("kaldiio", "omniio.kaldi"):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name not in ("kaldiio", "omniio", "omniio.kaldi"):
                raise
    raise InputError("neither kaldiio nor omniio is installed: pip install omniio")


def ark_names(stem: str, count: int) -> list[str]:
    """Return an ark's name for each process: `wav.ark`, or `wav.1.ark` and so on."""
    if count == 1:
        return [f"{stem}.ark"]
    return [f"{stem}.{number}.ark" for number in range(1, count + 1)]


_ONE_BYTE_ZERO_TO_ONE = 7  # Kaldi's compression method for values in [0, 1]


class MatrixArkWriter(ArkWriter):
    """Writes matrices of values in [0, 1]: `ark[key] = matrix`.

    Each value takes a byte, in steps of 1/255; readers get float32.
    """

    def __setitem__(self, key: str, matrix: NDArray[np.float32]) -> None:
        if matrix.ndim != 2 or not 0 <= matrix.min() <= matrix.max() <= 1:
            raise ValueError(f"{key}: expected a matrix of values in [0, 1]")
        self._append(key, matrix, compression_method=_ONE_BYTE_ZERO_TO_ONE)


class FloatArkWriter(ArkWriter):
    """Writes matrices of 32-bit floats: `ark[key] = matrix`."""

    def __setitem__(self, key: str, matrix: NDArray[np.float32]) -> None:
        self._append(key, matrix.astype(np.float32, copy=False))


def read_matrix(location: str) -> NDArray[np.float32]:
    """Read one matrix, shape (rows, columns).

    Args:
        location: `path.ark:offset`, with the offset in bytes.

    Raises:
        InputError: The ark does not exist, or has no whole matrix at this place.
    """
    try:
        matrix = ark_library().load_mat(location)
    except OSError as error:
        raise InputError(
            f"{location}: cannot be read: {error.strerror or error}"
        ) from None
    except Exception as error:  # the libraries raise many kinds, even AssertionError
        raise InputError(f"{location}: no whole matrix: {error}") from None
    if not isinstance(matrix, np.ndarray) or matrix.ndim != 2:
        raise InputError(f"{location}: expected a matrix")
    return matrix.astype(np.float32, copy=False)

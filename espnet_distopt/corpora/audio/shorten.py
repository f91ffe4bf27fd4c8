"""Decoder of shorten, the lossless compression of the LDC's SPHERE files.

Tony Robinson, SHORTEN: simple lossless and near-lossless waveform compression,
CUED/F-INFENG/TR.156, 1994. A stream is the magic `ajkg`, a version byte, and numbers of
variable length (`shorten_blocks` says how they are written): the type of the samples,
channels, block size, highest order of prediction, number of block means that are
averaged, bytes to skip; then commands, most of which are a block of one channel's
samples.

Versions 1 and 2 are read, and 16-bit linear samples and mu-law; these are what the LDC
published (and what its own sph2pipe reads).
"""

import importlib
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from espnet_distopt.corpora.audio.g711 import encode_ulaw
from espnet_distopt.errors import InputError

MAGIC: Final = b"ajkg"

ULAW_1: Final = 0
"""Mu-law codes in the order of their values; both zeros are one."""
LINEAR_BIG: Final = 3
"""16-bit samples, from a file with the high byte first."""
LINEAR_LITTLE: Final = 5
"""16-bit samples, from a file with the low byte first."""
ULAW_LINEAR: Final = 7
"""Mu-law expanded to 13-bit linear samples."""
ULAW_2: Final = 8
"""Mu-law codes in the order of their values; negative zero comes before zero."""

_CODING = {
    LINEAR_BIG: "pcm",
    LINEAR_LITTLE: "pcm",
    ULAW_1: "ulaw",
    ULAW_2: "ulaw",
    ULAW_LINEAR: "ulaw",
}
_NUMBERS = (
    ("sample type", 0, 255),
    ("channel count", 1, 8),
    ("block size", 1, 65535),
    ("order of prediction", 0, 64),
    ("number of means", 0, 1024),
    ("number of skipped bytes", 0, 65535),
)
_SHIFTS = 13  # mu-law has 13 magnitudes of zero bits
_CHEAPEST = 5  # bits of the shortest block, which is a block of zeros


@dataclass(frozen=True)
class _Form:
    """What a stream says of itself before its first command, at `bit`."""

    version: int
    kind: int
    channels: int
    block: int
    order: int
    means: int
    bit: int


def decode(
    stream: bytes, where: str, *, coding: str, channels: int, samples: int
) -> NDArray[np.int16] | NDArray[np.uint8]:
    """Decode a whole stream.

    Args:
        stream: from its magic to its end, or beyond.
        where: what errors call it.
        coding: `pcm` or `ulaw`.
        channels: how many the stream must have.
        samples: how many each channel must have.

    Returns:
        Shape (channels, samples): 16-bit samples, or mu-law codes.

    Raises:
        InputError: not such a stream, or it is cut off or damaged.
    """
    blocks = _compiled_blocks()
    words, end = blocks.to_words(stream)
    form = _read_form(stream, words, end, where)
    if _CODING.get(form.kind) != coding:
        raise InputError(
            f"{where}: expected a shorten stream of {coding}, got sample type "
            f"{form.kind}"
        )
    if form.channels != channels:
        raise InputError(
            f"{where}: the shorten stream has {form.channels} channels, but the header "
            f"says {channels}"
        )
    if channels * samples > end // _CHEAPEST * form.block:
        raise InputError(
            f"{where}: a shorten stream of {len(stream)} bytes can't hold {samples} "
            "samples a channel, as the header says: it is cut off, or the header wrong"
        )
    out = np.empty((channels, samples), np.int16)
    problem, bit, done = blocks.decode_blocks(
        words,
        end,
        form.bit,
        form.version,
        form.block,
        form.order,
        form.means,
        _code_table(form.kind),
        out,
    )
    if problem:
        raise InputError(
            f"{where}: the shorten stream {blocks.PROBLEMS[problem]}, at its byte "
            f"{min(bit // 8, len(stream))}, after {done} of {samples} samples a channel"
        )
    if form.kind == ULAW_LINEAR:
        linear = np.clip(out.astype(np.int32) * 8, -32768, 32767)
        return encode_ulaw(linear.astype(np.int16))
    return out if coding == "pcm" else out.astype(np.uint8)


def _read_form(stream: bytes, words: NDArray[np.int64], end: int, where: str) -> _Form:
    blocks = _compiled_blocks()
    if not stream.startswith(MAGIC):
        raise InputError(
            f"{where}: expected a shorten stream, which starts with {MAGIC.decode()}, "
            f"got {stream[: len(MAGIC)]!r}"
        )
    version = stream[len(MAGIC)] if len(stream) > len(MAGIC) else -1
    if version not in (1, 2):
        raise InputError(
            f"{where}: expected version 1 or 2 of shorten, got "
            f"{version if version >= 0 else 'the end of the file'}"
        )
    bit = 8 * (len(MAGIC) + 1)
    numbers = []
    for name, least, most in _NUMBERS:
        number, bit = blocks.read_long(words, end, bit)
        if not least <= number <= most:
            raise InputError(
                f"{where}: the shorten stream's {name} must be {least} to {most}, got "
                f"{number if number >= 0 else 'its end'}"
            )
        numbers.append(number)
    kind, channels, block, order, means, skipped = numbers
    for _ in range(skipped):
        number, bit = blocks.read_number(words, end, bit, 7)
        if number < 0:
            raise InputError(
                f"{where}: the shorten stream ends within its skipped bytes"
            )
    return _Form(version, kind, channels, block, order, means, bit)


def _compiled_blocks() -> ModuleType:
    """Import what numba compiles, only when needed, as importing numba is slow."""
    try:
        return importlib.import_module("espnet_distopt.corpora.audio.shorten_blocks")
    except ModuleNotFoundError as error:
        if error.name != "numba":
            raise
        raise InputError(
            "numba, which reads shorten-compressed SPHERE files, is not installed: "
            "pip install numba"
        ) from None


@cache
def _code_table(kind: int) -> NDArray[np.int16]:
    """Mu-law codes by shift and number + 129; -1: no code; empty for linear samples.

    Shorten numbers the codes by their values. Where all samples of a block are
    multiples of 2^(3 + shift), it leaves out the codes of no such multiple: those get
    the numbers farthest from zero.
    """
    if kind not in (ULAW_1, ULAW_2):
        return np.empty((0, 0), np.int16)
    shift_of = _largest_shifts()
    positive, negative = np.arange(255, 127, -1), np.arange(126, -1, -1)
    table = np.full((_SHIFTS, 257), -1, np.int16)
    for shift in range(_SHIFTS):
        used, unused = shift_of >= shift, shift_of < shift
        upper = [positive[used[positive]], positive[unused[positive]]]
        # negative zero is no value of a sample: it stands between the two groups
        zero = np.array([0x7F])
        lower = [negative[used[negative]], zero, negative[unused[negative]]]
        table[shift, 129:] = np.concatenate(upper)
        downwards = np.concatenate(lower)
        if kind == ULAW_1:
            table[shift, 1:129] = downwards[::-1]
        else:  # negative zero is -1, and all below move down by one
            table[shift, 128] = 0x7F
            table[shift, :128] = downwards[::-1]
    return table


def _largest_shifts() -> NDArray[np.int64]:
    """Of each mu-law code: the largest shift s of a multiple of 2^(3 + s) it codes."""
    largest = np.zeros(256, np.int64)
    for shift in range(_SHIFTS):
        multiples = np.arange(-32768, 32768, 1 << (3 + shift)).astype(np.int16)
        largest[encode_ulaw(multiples)] = shift
    return largest

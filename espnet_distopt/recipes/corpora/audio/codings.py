"""The codings of the samples in SPHERE files: G.711 and shorten.

G.711, mu-law and A-law, codes a sample as a sign, a segment of 3 bits (the power of two
of the magnitude) and a step of 4 bits within the segment. A code that is decoded and
encoded again is the same, except for mu-law's negative zero (0x7f), which becomes the
positive one (0xff).

Shorten is the lossless compression of the LDC's files. Tony Robinson describes it,
SHORTEN: simple lossless and near-lossless waveform compression, CUED/F-INFENG/TR.156,
1994. A stream has the magic `ajkg`, a version byte, and then numbers of variable
length, whose form `shorten_blocks` describes. The first numbers are the type of the
samples, the number of channels, the block size, the highest order of prediction, the
number of block means that are averaged, and the number of bytes to skip. Commands
follow, most of which hold a block of one channel's samples. The decoder reads versions
1 and 2, with 16-bit linear samples or mu-law. The LDC has published nothing else, and
its own sph2pipe reads nothing else.
"""

import importlib
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from espnet_distopt.errors import InputError

Codes = NDArray[np.uint8]
Samples = NDArray[np.int16]

_BIAS = 132
"""Mu-law adds this to magnitudes, so that every segment starts at a power of two."""

_MU_CLIP = 32767 - _BIAS


def decode_ulaw(codes: Codes) -> Samples:
    """Expand mu-law codes, any shape, to 16 bits."""
    return _ulaw_table()[codes]


def decode_alaw(codes: Codes) -> Samples:
    """Expand A-law codes, any shape, to 16 bits."""
    return _alaw_table()[codes]


def encode_ulaw(samples: Samples) -> Codes:
    """Compress 16-bit samples, any shape; magnitudes above 32635 are clipped."""
    magnitude = np.abs(samples.astype(np.int32))
    biased = np.minimum(magnitude, _MU_CLIP) + _BIAS
    segment = _power_of_two(biased) - 7
    step = (biased >> (segment + 3)) & 0x0F
    sign = np.where(samples < 0, 0x80, 0)
    return np.asarray(~(sign | segment << 4 | step) & 0xFF, np.uint8)


def encode_alaw(samples: Samples) -> Codes:
    """Compress 16-bit samples, any shape; the magnitude of -32768 is clipped."""
    magnitude = np.minimum(np.abs(samples.astype(np.int32)), 32767)
    segment = np.maximum(_power_of_two(np.maximum(magnitude, 1)) - 7, 0)
    step = (magnitude >> (np.maximum(segment, 1) + 3)) & 0x0F
    sign = np.where(samples < 0, 0, 0x80)
    return np.asarray((sign | segment << 4 | step) ^ 0x55, np.uint8)


def _power_of_two(values: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return the place of the highest bit that is set: 0 for 1, 7 for 128 to 255."""
    return np.frexp(values.astype(np.float64))[1] - 1


@cache
def _ulaw_table() -> Samples:
    codes = ~np.arange(256) & 0xFF
    segment, step = codes >> 4 & 7, codes & 0x0F
    # A code stands for the middle of its step, from which the bias is taken again.
    magnitude = ((step << 3) + _BIAS << segment) - _BIAS
    return np.where(codes & 0x80, -magnitude, magnitude).astype(np.int16)


@cache
def _alaw_table() -> Samples:
    codes = np.arange(256) ^ 0x55
    segment, step = codes >> 4 & 7, codes & 0x0F
    # A code stands for the middle of its step. The two lowest segments have steps of
    # the same width.
    first = (step << 4) + 8
    magnitude = np.where(segment == 0, first, first + 256 << np.maximum(segment, 1) - 1)
    return np.where(codes & 0x80, magnitude, -magnitude).astype(np.int16)


MAGIC: Final = b"ajkg"

ULAW_1: Final = 0
"""Mu-law codes in the order of their values; both zeros have one number."""
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
_SHIFTS = 13  # from 0 to 12: of 2^(3 + 13) no sample is a multiple but 0
_CHEAPEST = 5  # bits of the shortest block, which holds zeros only


@dataclass(frozen=True)
class _Form:
    """What a stream says of itself before its first command, which starts at `bit`."""

    version: int
    kind: int
    channels: int
    block: int
    order: int
    means: int
    bit: int


def decode_shorten(
    stream: bytes, where: str, *, coding: str, channels: int, samples: int
) -> NDArray[np.int16] | NDArray[np.uint8]:
    """Decode a whole stream.

    Args:
        stream: Bytes that start with the magic; they may go on after the end.
        where: The name of the stream, for messages.
        coding: The coding it must have, `pcm` or `ulaw`.
        channels: The number of channels it must have.
        samples: The number of samples that each channel must have.

    Returns:
        16-bit samples or mu-law codes, shape (channels, samples).

    Raises:
        InputError: It is not such a stream, or it is cut off or damaged.
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
    """Import what numba compiles, only when it is needed: importing numba is slow."""
    try:
        return importlib.import_module(
            "espnet_distopt.recipes.corpora.audio.shorten_blocks"
        )
    except ModuleNotFoundError as error:
        if error.name != "numba":
            raise
        raise InputError(
            "numba, which reads shorten-compressed SPHERE files, is not installed: "
            "pip install numba"
        ) from None


@cache
def _code_table(kind: int) -> NDArray[np.int16]:
    """Return the mu-law codes by shift and number + 129, or an empty table for linear.

    Shorten numbers the codes in the order of their values. Where all samples of a block
    are multiples of 2^(3 + shift), it first numbers the codes of such multiples; the
    other codes get the numbers farthest from zero. The table has -1 where no code has
    the number.
    """
    if kind not in (ULAW_1, ULAW_2):
        return np.empty((0, 0), np.int16)
    shift_of = _largest_shifts()
    positive, negative = np.arange(255, 127, -1), np.arange(126, -1, -1)
    table = np.full((_SHIFTS, 257), -1, np.int16)
    for shift in range(_SHIFTS):
        used, unused = shift_of >= shift, shift_of < shift
        upper = [positive[used[positive]], positive[unused[positive]]]
        # Negative zero is no value of a sample, and stands between the two groups.
        zero = np.array([0x7F])
        lower = [negative[used[negative]], zero, negative[unused[negative]]]
        table[shift, 129:] = np.concatenate(upper)
        downwards = np.concatenate(lower)
        if kind == ULAW_1:
            table[shift, 1:129] = downwards[::-1]
        else:  # negative zero has the number -1, and all below move down by one
            table[shift, 128] = 0x7F
            table[shift, :128] = downwards[::-1]
    return table


def _largest_shifts() -> NDArray[np.int64]:
    """Return for each code the largest s such that it codes a multiple of 2^(3 + s)."""
    largest = np.zeros(256, np.int64)
    for shift in range(_SHIFTS):
        multiples = np.arange(-32768, 32768, 1 << (3 + shift)).astype(np.int16)
        largest[encode_ulaw(multiples)] = shift
    return largest

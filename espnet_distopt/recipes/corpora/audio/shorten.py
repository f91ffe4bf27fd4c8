"""Shorten, the lossless compression of the LDC's SPHERE files.

Tony Robinson describes it, SHORTEN: simple lossless and near-lossless waveform
compression, CUED/F-INFENG/TR.156, 1994. A stream has the magic `ajkg`, a version byte,
and then numbers of variable length. The first numbers are the type of the samples, the
number of channels, the block size, the highest order of prediction, the number of block
means that are averaged, and the number of bytes to skip. Commands follow, most of which
hold a block of one channel's samples. The decoder reads versions 1 and 2, with 16-bit
linear samples or mu-law. The LDC has published nothing else, and its own sph2pipe reads
nothing else.

A number n of width w is written as n >> w zeros, a one, and the w lowest bits of n. A
long number comes after its width, which is itself a number of width 2. A signed number
n is written as the number 2n, or as -2n - 1 if n is negative. The functions that read
these are compiled by numba.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, Final, NamedTuple, TypeVar, cast

import numba
import numpy as np
from numpy.typing import NDArray

from espnet_distopt.errors import InputError
from espnet_distopt.recipes.corpora.audio.ulaw import encode_ulaw

MAGIC: Final = b"ajkg"

ULAW_1, ULAW_LINEAR, ULAW_2 = 0, 7, 8
"""Types of mu-law: codes in the order of their values, where both zeros have one
number; samples expanded to 13 bits; codes with negative zero before zero."""
_CODING = {3: "pcm", 5: "pcm", ULAW_1: "ulaw", ULAW_2: "ulaw", ULAW_LINEAR: "ulaw"}
"""3 and 5 are 16-bit samples of files with the high and the low byte first."""
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


class _Form(NamedTuple):
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
    words, end = to_words(stream)
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
    problem, bit, done = decode_blocks(
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
            f"{where}: the shorten stream {PROBLEMS[problem]}, at its byte "
            f"{min(bit // 8, len(stream))}, after {done} of {samples} samples a channel"
        )
    if form.kind == ULAW_LINEAR:
        linear = np.clip(out.astype(np.int32) * 8, -32768, 32767)
        return encode_ulaw(linear.astype(np.int16))
    return out if coding == "pcm" else out.astype(np.uint8)


def _read_form(stream: bytes, words: NDArray[np.int64], end: int, where: str) -> _Form:
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
        number, bit = read_long(words, end, bit)
        if not least <= number <= most:
            raise InputError(
                f"{where}: the shorten stream's {name} must be {least} to {most}, got "
                f"{number if number >= 0 else 'its end'}"
            )
        numbers.append(number)
    kind, channels, block, order, means, skipped = numbers
    for _ in range(skipped):
        number, bit = read_number(words, end, bit, 7)
        if number < 0:
            raise InputError(
                f"{where}: the shorten stream ends within its skipped bytes"
            )
    return _Form(version, kind, channels, block, order, means, bit)


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


_Function = TypeVar("_Function", bound=Callable[..., Any])
Words = NDArray[np.int64]
"""A stream as 32-bit words."""

_LONGEST_RUN = 1 << 20  # zeros in a row; 16-bit samples never need so many


def compiled(function: _Function) -> _Function:
    """Compile on the first call, and keep the result on disk where that is possible."""
    try:
        return cast(_Function, numba.njit(cache=True)(function))
    except RuntimeError:  # neither the package nor the user's cache is writable
        return cast(_Function, numba.njit(function))


def to_words(stream: bytes) -> tuple[Words, int]:
    """Return a stream as 32-bit words, two of padding last, and its length in bits."""
    padded = stream + bytes(8 + -len(stream) % 4)
    return np.frombuffer(padded, ">u4").astype(np.int64), 8 * len(stream)


@compiled
def read_number(words: Words, end: int, bit: int, width: int) -> tuple[int, int]:
    """Return the number at `bit`, of a width up to 32, and the next bit.

    The number is -1 if the stream ends within it or it is absurdly large.
    """
    start = bit
    rest = words[bit >> 5] << (bit & 31) & 0xFFFFFFFF
    while rest == 0:
        bit = (bit | 31) + 1
        if bit >= end or bit - start > _LONGEST_RUN:
            return -1, bit
        rest = words[bit >> 5]
    while rest < 0x80000000:
        rest <<= 1
        bit += 1
    high = bit - start
    bit += 1
    if bit + width > end:
        return -1, bit
    pair = words[bit >> 5] << 32 | words[(bit >> 5) + 1]
    low = pair >> (63 - (bit & 31) - width) >> 1 & ((1 << width) - 1)
    return high << width | low, bit + width


@compiled
def read_long(words: Words, end: int, bit: int) -> tuple[int, int]:
    """Read the long number at `bit`; return it, -1 if it is bad, and the next bit."""
    width, bit = read_number(words, end, bit, 2)
    if not 0 <= width <= 32:
        return -1, bit
    return read_number(words, end, bit, width)


@compiled
def read_signed(
    words: Words, end: int, bit: int, width: int, target: NDArray[np.int64]
) -> int:
    """Fill the target with signed numbers; return the next bit, or -1 at the end."""
    for i in range(len(target)):
        number, bit = read_number(words, end, bit, width + 1)
        if number < 0:
            return -1
        target[i] = number >> 1 ^ -(number & 1)
    return bit


_DIFF3, _QUIT, _BLOCKSIZE, _BITSHIFT, _QLPC, _ZERO, _VERBATIM = 3, 4, 5, 6, 7, 8, 9

_WIDEST = 30  # bits of a residual
_LPC_BITS = 5  # bits of a coefficient after its binary point

PROBLEMS = (
    "",
    "is cut off",
    "has an unknown command",
    "has an impossible block size",
    "has an impossible bit shift",
    "has an impossible residual width",
    "has an impossible order of prediction",
    "has a sample out of range",
    "has more samples than the header says",
    "has fewer samples than the header says",
)
_WHOLE, _CUT_OFF, _COMMAND, _BLOCK, _SHIFT, _WIDTH, _ORDER, _RANGE, _MORE, _FEWER = (
    range(len(PROBLEMS))
)


@compiled
def decode_blocks(
    words: Words,
    end: int,
    bit: int,
    version: int,
    largest: int,
    order: int,
    means: int,
    codes: NDArray[np.int16],
    out: NDArray[np.int16],
) -> tuple[int, int, int]:
    """Carry out all commands; fill `out`, shape (channels, samples).

    No block is larger than `largest` samples. If `codes` is empty, the values are
    linear samples and are shifted.

    Returns:
        An index of `PROBLEMS`, the bit reached, and the samples done in each channel.
    """
    channels, samples = out.shape
    past = max(3, order)  # samples that prediction looks back on
    buffers = np.zeros((channels, past + largest), np.int64)
    averages = np.zeros((channels, max(1, means)), np.int64)
    size, shift, channel, done = largest, 0, 0, 0
    while True:
        command, bit = read_number(words, end, bit, 2)
        if command < 0:
            return _CUT_OFF, bit, done
        if command == _QUIT:
            whole = done == samples and channel == 0
            return _WHOLE if whole else _FEWER, bit, done
        if command == _BLOCKSIZE:
            size, bit = read_long(words, end, bit)
            if not 1 <= size <= largest or channel != 0:
                return _BLOCK, bit, done
        elif command == _BITSHIFT:
            shift, bit = read_number(words, end, bit, 2)
            if not 0 <= shift <= (len(codes) - 1 if len(codes) else 32):
                return _SHIFT, bit, done
        elif command == _VERBATIM:
            bit = _skip_bytes(words, end, bit)
        elif command <= _DIFF3 or command in (_QLPC, _ZERO):
            if done + size > samples:
                return _MORE, bit, done
            block = buffers[channel, : past + size]
            mean = _mean(averages[channel], means, version, shift)
            problem, bit = _read_block(
                words, end, bit, command, version, order, mean, past, block
            )
            if problem == _WHOLE:
                target = out[channel, done : done + size]
                problem = _write(block[past:], shift, codes, target)
            if problem != _WHOLE:
                return problem, bit, done
            if means:
                _remember_mean(averages[channel], block[past:], version, shift)
            for i in range(past):
                block[i] = block[size + i]
            channel = (channel + 1) % channels
            if channel == 0:
                done += size
        else:
            return _COMMAND, bit, done


@compiled
def _skip_bytes(words: Words, end: int, bit: int) -> int:
    """Skip bytes of another header; the next command notices if the stream ends."""
    count, bit = read_number(words, end, bit, 5)
    for _ in range(count):
        byte, bit = read_number(words, end, bit, 8)
        if byte < 0:
            break
    return min(bit, end)


@compiled
def _read_block(
    words: Words,
    end: int,
    bit: int,
    command: int,
    version: int,
    order: int,
    mean: int,
    past: int,
    block: NDArray[np.int64],
) -> tuple[int, int]:
    """Fill a block after its `past` samples; return the problem and the next bit."""
    if command == _ZERO:
        for i in range(past, len(block)):
            block[i] = 0
        return _WHOLE, bit
    width, bit = read_number(words, end, bit, 3)
    if width < 0 or width > _WIDEST:
        return _WIDTH if width > 0 else _CUT_OFF, bit
    weights = np.zeros(0, np.int64)
    if command == _QLPC:
        used, bit = read_number(words, end, bit, 2)
        if not 0 <= used <= order:
            return _ORDER if used > 0 else _CUT_OFF, bit
        weights = np.zeros(used, np.int64)
        bit = read_signed(words, end, bit, _LPC_BITS, weights)
    if bit >= 0:
        bit = read_signed(words, end, bit, width, block[past:])
    if bit < 0:
        return _CUT_OFF, end
    if command == _QLPC:
        _predict(block, past, weights, mean, 0 if version < 2 else 1 << _LPC_BITS)
    else:
        _integrate(block, past, command, mean)
    return _WHOLE, bit


@compiled
def _integrate(block: NDArray[np.int64], past: int, order: int, mean: int) -> None:
    """Turn residuals, which are differences of order 0 to 3, into samples."""
    if order == 0:
        for i in range(past, len(block)):
            block[i] += mean
    elif order == 1:
        for i in range(past, len(block)):
            block[i] += block[i - 1]
    elif order == 2:
        for i in range(past, len(block)):
            block[i] += 2 * block[i - 1] - block[i - 2]
    else:
        for i in range(past, len(block)):
            block[i] += 3 * (block[i - 1] - block[i - 2]) + block[i - 3]


@compiled
def _predict(
    block: NDArray[np.int64],
    past: int,
    weights: NDArray[np.int64],
    mean: int,
    rounding: int,
) -> None:
    """Turn residuals of linear prediction, which leaves out the mean, into samples."""
    for i in range(past):
        block[i] -= mean
    for i in range(past, len(block)):
        total = rounding
        for j in range(len(weights)):
            total += weights[j] * block[i - 1 - j]
        block[i] += total >> _LPC_BITS
    for i in range(len(block)):
        block[i] += mean


@compiled
def _write(
    values: NDArray[np.int64],
    shift: int,
    codes: NDArray[np.int16],
    target: NDArray[np.int16],
) -> int:
    """Write a block's values as samples or as codes; return the problem."""
    for i in range(len(values)):
        value = values[i]
        if len(codes):
            if not -129 <= value <= 127 or codes[shift, value + 129] < 0:
                return _RANGE
            target[i] = codes[shift, value + 129]
        else:
            if not -32768 <= value <= 32767 or not -32768 <= value << shift <= 32767:
                return _RANGE
            target[i] = value << shift
    return _WHOLE


@compiled
def _mean(averages: NDArray[np.int64], means: int, version: int, shift: int) -> int:
    """Average the means of the last blocks, on the scale of values before the shift."""
    if means == 0:
        return 0
    total = 0 if version < 2 else means // 2
    for average in averages:
        total += average
    mean = _quotient(total, means)
    return mean if version < 2 else mean >> shift


@compiled
def _remember_mean(
    averages: NDArray[np.int64], values: NDArray[np.int64], version: int, shift: int
) -> None:
    """Put this block's mean in the place of the oldest one."""
    total = 0 if version < 2 else len(values) // 2
    for value in values:
        total += value
    mean = _quotient(total, len(values))
    for i in range(len(averages) - 1):
        averages[i] = averages[i + 1]
    averages[len(averages) - 1] = mean if version < 2 else mean << shift


@compiled
def _quotient(number: int, divisor: int) -> int:
    """Divide and round towards zero, as C does."""
    return number // divisor if number >= 0 else -(-number // divisor)

"""The module encodes shorten streams, for tests of the decoder.

The encoder is slow and plain, but it can use every command of the format. The caller
chooses the predictor, as every predictor is lossless; the encoder does not look for the
best one. It shares no code with the decoder.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle

import numpy as np
from numpy.typing import NDArray

DIFF0, DIFF1, DIFF2, DIFF3, QUIT, BLOCKSIZE, BITSHIFT, QLPC, ZERO, VERBATIM = range(10)
ULAW_1, LINEAR_BIG, LINEAR_LITTLE, ULAW_LINEAR, ULAW_2 = 0, 3, 5, 7, 8


class Bits:
    """A string of bits; the first bit written is the highest bit of the first byte."""

    def __init__(self, text: str = "") -> None:
        self.parts = [text]

    @property
    def text(self) -> str:
        """All bits, as zeros and ones."""
        return "".join(self.parts)

    def number(self, value: int, width: int) -> None:
        """Write a number >= 0 by a Rice code with `width` low bits."""
        self.parts.append("0" * (value >> width) + "1")
        if width:
            self.parts.append(format(value & ((1 << width) - 1), f"0{width}b"))

    def long(self, value: int) -> None:
        """Write a number >= 0 after the width of its Rice code."""
        width = value.bit_length()
        self.number(width, 2)
        self.number(value, width)

    def signed(self, value: int, width: int) -> None:
        """Write a number of either sign, whose sign is its lowest bit."""
        self.number(2 * value if value >= 0 else 2 * ~value + 1, width + 1)

    def to_bytes(self, multiple: int = 4) -> bytes:
        """Return the bits as bytes, with zeros up to a multiple of `multiple` bytes."""
        packed = np.packbits(np.frombuffer(self.text.encode(), np.uint8) - ord("0"))
        return packed.tobytes() + bytes(-len(packed) % multiple)


@dataclass
class Channel:
    """The state of the encoder for one channel.

    Attributes:
        past: the last values, the oldest first.
        means: the means of the last blocks, the oldest first.
    """

    past: list[int]
    means: list[int]


@dataclass
class Encoder:
    """An encoder with the settings of a stream.

    Attributes:
        kind: the type of the samples, one of the numbers of the format.
        version: the version of the format, 1 or 2.
        block: the number of samples of a block.
        order: the largest order of linear prediction; each QLPC block draws its own.
        means: the number of block means that are averaged.
        commands: the commands DIFF0 to DIFF3 and QLPC, which blocks take in turn.
        skipped: the bytes in front of the samples.
        verbatim: the bytes behind the first block.
        seed: the seed of the linear predictors.
        bits: the bits that are being written.
    """

    kind: int = LINEAR_LITTLE
    version: int = 2
    block: int = 256
    order: int = 0
    means: int = 4
    commands: Sequence[int] = (DIFF1,)
    skipped: bytes = b""
    verbatim: bytes = b""
    seed: int = 0
    bits: Bits = field(default_factory=Bits)

    def encode(
        self, samples: NDArray[np.int16] | NDArray[np.uint8], multiple: int = 4
    ) -> bytes:
        """Return the stream of samples or mu-law codes, shape (channels, time)."""
        bits = self.bits = Bits()
        skipped = len(self.skipped)
        form = (self.kind, len(samples), self.block, self.order, self.means, skipped)
        for number in form:
            bits.long(number)
        for byte in self.skipped:
            bits.number(byte, 7)
        self.write_commands(samples)
        bits.number(QUIT, 2)
        return b"ajkg" + bytes([self.version]) + bits.to_bytes(multiple)

    def write_commands(self, samples: NDArray[np.int16] | NDArray[np.uint8]) -> None:
        """Write all commands but the last."""
        bits = self.bits
        self.rng = np.random.default_rng(self.seed)
        commands = cycle(self.commands)
        channels = [
            Channel([0] * max(3, self.order), [0] * self.means) for _ in samples
        ]
        shift, size = 0, self.block
        for start in range(0, samples.shape[1], self.block):
            blocks = samples[:, start : start + self.block].tolist()
            if len(blocks[0]) != size:
                size = len(blocks[0])
                bits.number(BLOCKSIZE, 2)
                bits.long(size)
            for channel, values in zip(channels, blocks, strict=True):
                shift = self.encode_block(channel, values, shift, next(commands))
            if self.verbatim and start == 0:
                bits.number(VERBATIM, 2)
                bits.number(len(self.verbatim), 5)
                for byte in self.verbatim:
                    bits.number(byte, 8)

    def encode_block(
        self, channel: Channel, samples: list[int], shift: int, command: int
    ) -> int:
        """Write one block of one channel, and return the shift behind it."""
        new_shift, values = self.reduce(samples)
        if new_shift is None:
            command = ZERO
        elif new_shift != shift:
            shift = new_shift
            self.bits.number(BITSHIFT, 2)
            self.bits.number(shift, 2)
        self.bits.number(command, 2)
        if command != ZERO:
            mean = self.mean(channel, shift)
            weights = self.weights() if command == QLPC else []
            residuals = self.residuals(command, channel.past, values, weights, mean)
            self.write_residuals(list(residuals), weights if command == QLPC else None)
        self.remember(channel, values, shift)
        return shift

    def reduce(self, samples: list[int]) -> tuple[int | None, list[int]]:
        """Return a block's shift, or None if the block is silent, and its values."""
        if self.kind in (ULAW_1, ULAW_2):
            shift = min(MAX_SHIFT[code] for code in samples)
            values = [inward(code, shift, self.kind) for code in samples]
            return None if not any(values) else shift, values
        if self.kind == ULAW_LINEAR:
            samples = [expand_ulaw(code) >> 3 for code in samples]
        if not any(samples):
            return None, samples
        shift = 0
        while all(value % (2 << shift) == 0 for value in samples):
            shift += 1
        return shift, [value >> shift for value in samples]

    def weights(self) -> list[int]:
        """Draw the weights of a linear predictor."""
        used = int(self.rng.integers(0, self.order + 1))
        return [int(weight) for weight in self.rng.integers(-40, 41, used)]

    def residuals(
        self,
        command: int,
        past: list[int],
        values: list[int],
        weights: list[int],
        mean: int,
    ) -> Iterator[int]:
        """Yield each value's difference from its prediction."""
        known = past + values
        for here in range(len(past), len(known)):
            one, two, three = (known[here - back] for back in (1, 2, 3))
            rounding = 32 if self.version == 2 else 0
            linear = sum(
                weight * (known[here - 1 - back] - mean)
                for back, weight in enumerate(weights)
            )
            predicted = {
                DIFF0: mean,
                DIFF1: one,
                DIFF2: 2 * one - two,
                DIFF3: 3 * one - 3 * two + three,
                QLPC: mean + (rounding + linear >> 5),
            }
            yield known[here] - predicted[command]

    def write_residuals(self, residuals: list[int], weights: list[int] | None) -> None:
        """Write residuals, after the weights of a linear predictor if there is one."""
        typical = sum(map(abs, residuals)) // len(residuals)
        width = typical.bit_length()
        self.bits.number(width, 3)
        if weights is not None:
            self.bits.number(len(weights), 2)
            for weight in weights:
                self.bits.signed(weight, 5)
        for residual in residuals:
            self.bits.signed(residual, width)

    def mean(self, channel: Channel, shift: int) -> int:
        """Return the mean of a channel's last blocks, after the shift."""
        if not self.means:
            return 0
        rounding = self.means // 2 if self.version == 2 else 0
        # The format rounds towards zero, as `int` does.
        mean = int((rounding + sum(channel.means)) / self.means)
        return mean >> shift if self.version == 2 else mean

    def remember(self, channel: Channel, values: list[int], shift: int) -> None:
        """Add a block to the state of its channel."""
        channel.past = (channel.past + values)[-len(channel.past) :]
        if self.means:
            rounding = len(values) // 2 if self.version == 2 else 0
            mean = int((rounding + sum(values)) / len(values))
            mean <<= shift if self.version == 2 else 0
            channel.means = [*channel.means[1:], mean]


def expand_ulaw(code: int) -> int:
    """Return the 16-bit sample of a mu-law code."""
    inverted = ~code & 0xFF
    magnitude = (((inverted & 15) * 8 + 132) << (inverted >> 4 & 7)) - 132
    return magnitude if code & 0x80 else -magnitude


def compress_ulaw(sample: int) -> int:
    """Return the mu-law code of a 16-bit sample."""
    biased = min(abs(sample), 32635) + 132
    segment = biased.bit_length() - 8
    inverted = (0x80 if sample < 0 else 0) + 16 * segment + (biased >> segment + 3) % 16
    return 255 - inverted


def largest_shifts() -> list[int]:
    """Return the largest shift of any sample that a code stands for, by code."""
    shifts = [0] * 256
    for sample in range(-32768, 32768, 8):
        code = compress_ulaw(sample)
        zeros = 12 if sample == 0 else (sample // 8 & -(sample // 8)).bit_length() - 1
        shifts[code] = max(shifts[code], zeros)
    return shifts


MAX_SHIFT = largest_shifts()


def inward(code: int, shift: int, kind: int) -> int:
    """Return the number of a mu-law code at a shift.

    Codes that occur at this shift come first, in the order of magnitude.
    """
    if kind == ULAW_2 and code == 0x7F:
        return -1
    half = range(255, 127, -1) if code >= 0x80 else range(126, -1, -1)
    order = [other for other in half if MAX_SHIFT[other] >= shift]
    if code < 0x80:
        order.append(0x7F)
    order += [other for other in half if MAX_SHIFT[other] < shift]
    rank = order.index(code)
    if code >= 0x80:
        return rank
    return -1 - rank if kind == ULAW_1 else -2 - rank

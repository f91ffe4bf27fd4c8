"""An encoder of shorten streams, for tests: slow, plain, and able to use every command.

Which predictor it uses is for the caller to say, since any is lossless; and it looks
for no better one. It shares no code with the decoder.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle

import numpy as np
from numpy.typing import NDArray

DIFF0, DIFF1, DIFF2, DIFF3, QUIT, BLOCKSIZE, BITSHIFT, QLPC, ZERO, VERBATIM = range(10)
ULAW_1, LINEAR_BIG, LINEAR_LITTLE, ULAW_LINEAR, ULAW_2 = 0, 3, 5, 7, 8


class Bits:
    """Bits, the first written being the highest of the first byte."""

    def __init__(self, text: str = "") -> None:
        self.parts = [text]

    @property
    def text(self) -> str:
        """All bits, as zeros and ones."""
        return "".join(self.parts)

    def number(self, value: int, width: int) -> None:
        self.parts.append("0" * (value >> width) + "1")
        if width:
            self.parts.append(format(value & ((1 << width) - 1), f"0{width}b"))

    def long(self, value: int) -> None:
        width = value.bit_length()
        self.number(width, 2)
        self.number(value, width)

    def signed(self, value: int, width: int) -> None:
        self.number(2 * value if value >= 0 else 2 * ~value + 1, width + 1)

    def to_bytes(self, multiple: int = 4) -> bytes:
        """Fill up with zeros to a multiple of some bytes."""
        packed = np.packbits(np.frombuffer(self.text.encode(), np.uint8) - ord("0"))
        return packed.tobytes() + bytes(-len(packed) % multiple)


@dataclass
class Channel:
    """What the encoder remembers of a channel: the last values, and block means."""

    past: list[int]
    means: list[int]


@dataclass
class Encoder:
    """Settings of a stream.

    Attributes:
        kind: type of the samples.
        version: 1 or 2.
        block: samples a block.
        order: of linear prediction; every QLPC block uses one up to it.
        means: block means that are averaged.
        commands: DIFF0 to DIFF3 and QLPC, taken in turn by the blocks.
        skipped: bytes to put in front of the samples.
        verbatim: bytes to put behind the first block.
        seed: of the linear predictors.
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

    def encode(self, samples: NDArray[np.int16] | NDArray[np.uint8]) -> bytes:
        """Encode samples or mu-law codes, shape (channels, time)."""
        head = self.head(len(samples)).text
        commands = Bits(head + self.commands_of(samples).text)
        commands.number(QUIT, 2)
        return b"ajkg" + bytes([self.version]) + commands.to_bytes()

    def head(self, channels: int) -> Bits:
        """Write what comes before the first command."""
        bits = Bits()
        skipped = len(self.skipped)
        form = (self.kind, channels, self.block, self.order, self.means, skipped)
        for number in form:
            bits.long(number)
        for byte in self.skipped:
            bits.number(byte, 7)
        return bits

    def commands_of(self, samples: NDArray[np.int16] | NDArray[np.uint8]) -> Bits:
        """Write all commands but the last."""
        bits = self.bits = Bits()
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
        return bits

    def encode_block(
        self, channel: Channel, samples: list[int], shift: int, command: int
    ) -> int:
        """Write one block of one channel; returns the shift in force behind it."""
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
            self.write_residuals(
                list(self.residuals(command, channel.past, values, weights, mean)),
                weights if command == QLPC else None,
            )
        self.remember(channel, values, shift)
        return shift

    def reduce(self, samples: list[int]) -> tuple[int | None, list[int]]:
        """Find the shift of a block, None if it is silent, and its reduced values."""
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
        if not self.means:
            return 0
        rounding = self.means // 2 if self.version == 2 else 0
        mean = int((rounding + sum(channel.means)) / self.means)  # int: towards zero
        return mean >> shift if self.version == 2 else mean

    def remember(self, channel: Channel, values: list[int], shift: int) -> None:
        channel.past = (channel.past + values)[-len(channel.past) :]
        if self.means:
            rounding = len(values) // 2 if self.version == 2 else 0
            mean = int((rounding + sum(values)) / len(values))
            mean <<= shift if self.version == 2 else 0
            channel.means = [*channel.means[1:], mean]


def expand_ulaw(code: int) -> int:
    inverted = ~code & 0xFF
    magnitude = (((inverted & 15) * 8 + 132) << (inverted >> 4 & 7)) - 132
    return magnitude if code & 0x80 else -magnitude


def compress_ulaw(sample: int) -> int:
    biased = min(abs(sample), 32635) + 132
    segment = biased.bit_length() - 8
    inverted = (0x80 if sample < 0 else 0) + 16 * segment + (biased >> segment + 3) % 16
    return 255 - inverted


def largest_shifts() -> list[int]:
    """Of each code, how far the samples it stands for can be shifted at most."""
    shifts = [0] * 256
    for sample in range(-32768, 32768, 8):
        code = compress_ulaw(sample)
        zeros = 12 if sample == 0 else (sample // 8 & -(sample // 8)).bit_length() - 1
        shifts[code] = max(shifts[code], zeros)
    return shifts


MAX_SHIFT = largest_shifts()


def inward(code: int, shift: int, kind: int) -> int:
    """Number a code: those that occur at this shift first, by magnitude."""
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

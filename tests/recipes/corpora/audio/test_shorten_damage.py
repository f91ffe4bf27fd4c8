"""Damaged shorten streams: an error in one line, and never a crash or a long wait."""

import numpy as np
import pytest

from espnet_distopt.errors import InputError
from espnet_distopt.recipes.corpora.audio.codings import decode_shorten as decode
from tests.recipes.corpora.audio.shorten_encoder import (
    BITSHIFT,
    BLOCKSIZE,
    DIFF0,
    DIFF1,
    DIFF2,
    DIFF3,
    LINEAR_LITTLE,
    QLPC,
    QUIT,
    ULAW_2,
    VERBATIM,
    ZERO,
    Bits,
    Encoder,
)

RNG = np.random.default_rng(2)
SAMPLES = (2 * RNG.integers(-300, 300, (2, 200))).astype(np.int16)
CODED = Encoder(
    order=3, commands=[DIFF0, DIFF1, DIFF2, DIFF3, QLPC], block=32, verbatim=b"ab"
).encode(SAMPLES)


def test_cut_off_anywhere() -> None:
    padding = 4
    for size in range(len(CODED) - padding):
        with pytest.raises(InputError, match=r"^x\.sph: ") as error:
            decode(CODED[:size], "x.sph", coding="pcm", channels=2, samples=200)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("length", range(1, 17))
def test_the_last_byte_is_needed(length: int) -> None:
    encoder = Encoder()
    commands = Bits(
        encoder.head(1).text + encoder.commands_of(SAMPLES[:1, :length]).text
    )
    commands.number(QUIT, 2)
    coded = b"ajkg\2" + commands.to_bytes(multiple=1)
    decoded = decode(coded, "x.sph", coding="pcm", channels=1, samples=length)
    np.testing.assert_array_equal(decoded, SAMPLES[:1, :length])
    with pytest.raises(InputError, match=r"is cut off|can't hold"):
        decode(coded[:-1], "x.sph", coding="pcm", channels=1, samples=length)


def test_damage_is_an_error_or_other_samples() -> None:
    for bit in range(8 * 4, 8 * len(CODED)):
        damaged = bytearray(CODED)
        damaged[bit // 8] ^= 0x80 >> bit % 8
        try:
            decoded = decode(
                bytes(damaged), "x.sph", coding="pcm", channels=2, samples=200
            )
        except InputError:
            continue
        assert decoded.shape == (2, 200)


def test_noise_is_an_error() -> None:
    rng = np.random.default_rng(3)
    head = Bits()
    for number in (LINEAR_LITTLE, 2, 256, 8, 4, 0):
        head.long(number)
    for _ in range(300):
        noise = Bits(head.text + "".join(rng.choice(["0", "1"], 400)))
        with pytest.raises(InputError):
            decode(
                b"ajkg\2" + noise.to_bytes(),
                "x.sph",
                coding="pcm",
                channels=2,
                samples=100_000,
            )


def head(*numbers: int) -> Bits:
    bits = Bits()
    for number in numbers:
        bits.long(number)
    return bits


def after_head(*steps: tuple[int, int]) -> bytes:
    """A stream of one channel in blocks of 4, and numbers with their widths."""
    bits = head(LINEAR_LITTLE, 1, 4, 2, 0, 0)
    for number, width in steps:
        bits.number(number, width)
    return b"ajkg\2" + bits.to_bytes()


def headed(*numbers: int) -> bytes:
    return b"ajkg\2" + head(*numbers).to_bytes() + bytes(8)


def whole() -> bytes:
    """A good stream: 12 samples in blocks of 4."""
    return Encoder(block=4).encode(SAMPLES[:1, :12])


BAD: list[tuple[str, bytes, str]] = [
    ("empty", b"", r"expected a shorten stream, which starts with ajkg, got b''"),
    ("magic", b"ajkx" + whole()[4:], r"starts with ajkg, got b'ajkx'"),
    ("cut-magic", b"ajk", r"starts with ajkg, got b'ajk'"),
    ("no-version", b"ajkg", r"version 1 or 2 of shorten, got the end of the file"),
    ("version-0", b"ajkg\0" + whole()[5:], r"version 1 or 2 of shorten, got 0"),
    ("version-3", b"ajkg\3" + whole()[5:], r"version 1 or 2 of shorten, got 3"),
    ("no-numbers", b"ajkg\2", r"sample type must be 0 to 255, got its end"),
    ("zeros", b"ajkg\2" + bytes(99), r"sample type must be 0 to 255, got its end"),
    ("type", headed(11, 1, 4, 0, 0, 0), r"stream of pcm, got sample type 11"),
    ("coding", headed(ULAW_2, 1, 4, 0, 0, 0), r"stream of pcm, got sample type 8"),
    ("no-channels", headed(5, 0, 4, 0, 0, 0), r"channel count must be 1 to 8, got 0"),
    ("channels", headed(5, 2, 4, 0, 0, 0), r"2 channels, but the header says 1"),
    ("block-0", headed(5, 1, 0, 0, 0, 0), r"block size must be 1 to 65535, got 0"),
    ("block-huge", headed(5, 1, 1 << 31, 0, 0, 0), r"block size .* got 2147483648"),
    ("order-huge", headed(5, 1, 4, 65, 0, 0), r"order of prediction .* got 65"),
    ("means-huge", headed(5, 1, 4, 0, 99999, 0), r"number of means .* got 99999"),
    ("skip-huge", headed(5, 1, 4, 0, 0, 70000), r"skipped bytes .* got 70000"),
    ("skip-cut-off", headed(5, 1, 4, 0, 0, 999), r"ends within its skipped bytes"),
    ("cut-off", whole()[:-8], r"is cut off, at its byte \d+, after \d of 12 samples"),
    ("fewer", after_head((ZERO, 2), (QUIT, 2)) + b"abcd", r"fewer .* after 4 of 12"),
    (
        "more",
        after_head(*[(ZERO, 2)] * 4, (QUIT, 2)) + b"abcd",
        r"more samples than the header says, .* after 12 of 12",
    ),
    ("command", after_head((10, 2), (0, 9)), r"has an unknown command"),
    ("blocksize-0", after_head((BLOCKSIZE, 2), (0, 2), (0, 0)), r"impossible block"),
    ("grows", after_head((BLOCKSIZE, 2), (3, 2), (5, 3)), r"impossible block size"),
    ("blocksize-cut", after_head((BLOCKSIZE, 2), (30, 2)), r"impossible block size"),
    ("shift", after_head((BITSHIFT, 2), (33, 2)), r"impossible bit shift"),
    ("width", after_head((DIFF0, 2), (31, 3), (0, 9)), r"impossible residual width"),
    ("order", after_head((QLPC, 2), (0, 3), (3, 2)), r"impossible order"),
    ("verbatim", after_head((VERBATIM, 2), (500, 5)), r"is cut off"),
    (
        "range",
        after_head((DIFF0, 2), (16, 3), (1 << 16, 17), *[(0, 17)] * 3),
        r"has a sample out of range, .* after 0 of 12",
    ),
]


@pytest.mark.parametrize(
    ("content", "message"), [bad[1:] for bad in BAD], ids=[bad[0] for bad in BAD]
)
def test_bad_stream(content: bytes, message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        decode(content, "a/x.sph", coding="pcm", channels=1, samples=12)
    assert str(error.value).startswith("a/x.sph: ")
    assert "\n" not in str(error.value)


def test_an_absurd_sample_count_takes_no_memory() -> None:
    with pytest.raises(InputError, match=r"of \d+ bytes can't hold 1000000000000 sam"):
        decode(whole(), "x.sph", coding="pcm", channels=1, samples=10**12)


def test_block_size_differs_between_channels() -> None:
    bits = head(LINEAR_LITTLE, 2, 4, 0, 0, 0)
    for number, width in ((ZERO, 2), (BLOCKSIZE, 2), (2, 2), (2, 2), (ZERO, 2)):
        bits.number(number, width)
    bits.number(QUIT, 2)
    content = b"ajkg\2" + bits.to_bytes()
    with pytest.raises(InputError, match="impossible block size"):
        decode(content, "x", coding="pcm", channels=2, samples=4)


def test_mu_law_number_out_of_range() -> None:
    bits = head(ULAW_2, 1, 1, 0, 0, 0)
    for number, width in ((DIFF0, 2), (7, 3), (2 * 128, 8), (QUIT, 2)):
        bits.number(number, width)
    with pytest.raises(InputError, match="a sample out of range"):
        decode(b"ajkg\2" + bits.to_bytes(), "x", coding="ulaw", channels=1, samples=1)


def test_mu_law_shift_out_of_range() -> None:
    bits = head(ULAW_2, 1, 1, 0, 0, 0)
    for number in (BITSHIFT, 13):
        bits.number(number, 2)
    content = b"ajkg\2" + bits.to_bytes() + bytes(4)
    with pytest.raises(InputError, match="impossible bit shift"):
        decode(content, "x", coding="ulaw", channels=1, samples=1)

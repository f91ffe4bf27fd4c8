"""Shorten: streams assembled by hand, round trips, and damage.

A damaged stream is an error in one line, and never a crash or a long wait.
"""

import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from espnet_distopt.errors import InputError
from espnet_distopt.recipes.corpora.audio.shorten import compiled as compiled_or_not
from espnet_distopt.recipes.corpora.audio.shorten import decode_shorten as decode
from tests.recipes.corpora.audio.shorten_encoder import (
    BITSHIFT,
    BLOCKSIZE,
    DIFF0,
    DIFF1,
    DIFF2,
    DIFF3,
    LINEAR_BIG,
    LINEAR_LITTLE,
    MAX_SHIFT,
    QLPC,
    QUIT,
    ULAW_1,
    ULAW_2,
    ULAW_LINEAR,
    VERBATIM,
    ZERO,
    Bits,
    Encoder,
    inward,
)
from tests.recipes.corpora.audio.sphere_files import sphere

Wave = NDArray[np.int16]


def stream(bits: str, version: int = 2) -> bytes:
    """Typed bits, one line a step, `#` and what follows being remarks."""
    lines = [line.partition("#")[0] for line in bits.splitlines()]
    whole = Bits("".join("".join(lines).split()))
    return b"ajkg" + bytes([version]) + whole.to_bytes()


# Numbers of width w: zeros for what is above w bits, a one, w bits. Of width 2: 100 is
# 0, 101 is 1, 110 is 2, 111 is 3, 0100 is 4. Long numbers: width (of width 2), number.
# Signed numbers of width 0 (residual width 0): 10 is 0, 11 is -1, 010 is 1, 011 is -2.


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    """Compile the decoder, which takes seconds, outside of any test."""
    decode(stream(DIFFERENCES), "x.sph", coding="pcm", channels=1, samples=12)


DIFFERENCES = """
    111 1101  # sample type 5: 16 bits, little-endian
    101 11    # 1 channel
    111 1100  # blocks of 4
    100 1     # no linear prediction
    100 1     # no means
    100 1     # no bytes to skip
    101 1000  # DIFF1, residual width 0
    010       # +1: 1
    010       # +1: 2
    011       # -2: 0
    00010     # +3: 3
    110 1000  # DIFF2, width 0
    11        # 2*3-0 - 1: 5
    0010      # 2*5-3 + 2: 9
    10        # 2*9-5: 13
    11        # 2*13-9 - 1: 16
    111 1000  # DIFF3, width 0
    10        # 3*16-3*13+9: 18
    010       # 3*18-3*16+13 + 1: 20
    10        # 3*20-3*18+16: 22
    011       # 3*22-3*20+18 - 2: 22
    0100      # QUIT
"""


PREDICTION = """
    111 1101   # sample type 5
    101 11     # 1 channel
    110 110    # blocks of 2
    110 110    # linear prediction of order 2
    110 110    # 2 means
    100 1      # no bytes to skip
    100 1100   # DIFF0, width 4
    1 10100    # 10
    1 10100    # 10; block mean 10
    0111 1000  # QLPC, width 0; mean (1+0+10)/2 = 5; version 1: (0+10)/2 = 5
    110        # 2 weights, in 32nds:
    01 000000  # 32
    1 001111   # -8
    0010       # (32*5 - 8*5 + 32 >> 5) + 2 = 6, and the mean: 11
    11         # (32*6 - 8*5 + 32 >> 5) - 1 = 4: 9
    0100       # QUIT
"""

MU_LAW = """
    0100 11000     # sample type 8: mu-law
    101 11         # 1 channel
    111 1100       # blocks of 4
    100 1          # no linear prediction
    100 1          # no means
    100 1          # no bytes to skip
    100 1000       # DIFF0, width 0
    10             # 0: 0xff, zero
    11             # -1: 0x7f, negative zero
    010            # 1: 0xfe
    011            # -2: 0x7e
    0110 101       # BITSHIFT 1: samples are multiples of 16
    100 01101      # DIFF0, width 13
    1 00000000000000  # 0: 0xff
    1 00000000000010  # 1: 0xfd
    1 00000000000011  # -2: 0x7d
    1 00000011111110  # 127: 0xf0, the last of the codes that are no multiple of 16
    0100           # QUIT
"""


@pytest.mark.parametrize(
    ("bits", "version", "coding", "expected"),
    [
        (DIFFERENCES, 2, "pcm", [[1, 2, 0, 3, 5, 9, 13, 16, 18, 20, 22, 22]]),
        (PREDICTION, 2, "pcm", [[10, 10, 11, 9]]),
        # no rounding: (32*5 - 8*5 >> 5) + 2 = 5: 10, then (32*5 - 8*5 >> 5) - 1 = 2: 7
        (PREDICTION, 1, "pcm", [[10, 10, 10, 7]]),
        (MU_LAW, 2, "ulaw", [[0xFF, 0x7F, 0xFE, 0x7E, 0xFF, 0xFD, 0x7D, 0xF0]]),
    ],
    ids=["differences", "prediction", "version-1", "mu-law"],
)
def test_assembled_by_hand(
    bits: str, version: int, coding: str, expected: list[list[int]]
) -> None:
    shape = {"channels": len(expected), "samples": len(expected[0])}
    decoded = decode(stream(bits, version), "x.sph", coding=coding, **shape)
    assert decoded.tolist() == expected


def wave(seed: int, channels: int, length: int, loudness: int, step: int) -> Wave:
    """Noise that wanders, in multiples of a step, with a silence."""
    rng = np.random.default_rng(seed)
    values = np.cumsum(rng.normal(0, loudness, (channels, length)), axis=1)
    values[:, length // 3 : length // 2] = 0
    clipped = np.clip(values, -32768, 32767).astype(np.int64)
    return (clipped // step * step).astype(np.int16)


def round_trip(
    encoder: Encoder, samples: NDArray[np.int16] | NDArray[np.uint8]
) -> None:
    coding = "pcm" if samples.dtype == np.int16 else "ulaw"
    channels, length = samples.shape
    coded = encoder.encode(samples)
    decoded = decode(coded, "x.sph", coding=coding, channels=channels, samples=length)
    assert decoded.dtype == samples.dtype
    np.testing.assert_array_equal(decoded, samples)


SETTINGS = st.fixed_dictionaries(
    {
        "version": st.sampled_from([1, 2]),
        "block": st.sampled_from([1, 2, 5, 16, 100, 256]),
        "order": st.sampled_from([0, 1, 3, 8]),
        "means": st.sampled_from([0, 1, 3, 4]),
        "commands": st.lists(
            st.sampled_from([DIFF0, DIFF1, DIFF2, DIFF3, QLPC]), min_size=1, max_size=5
        ),
        "skipped": st.binary(max_size=3),
        "verbatim": st.binary(max_size=3),
        "seed": st.integers(0, 1000),
    }
)


@settings(max_examples=120)
@given(
    given=SETTINGS,
    kind=st.sampled_from([LINEAR_BIG, LINEAR_LITTLE]),
    channels=st.integers(1, 3),
    length=st.integers(0, 400),
    loudness=st.sampled_from([1, 30, 2000]),
    step=st.sampled_from([1, 2, 8, 64]),
)
def test_samples_come_back(
    given: dict[str, Any],
    kind: int,
    channels: int,
    length: int,
    loudness: int,
    step: int,
) -> None:
    samples = wave(given["seed"], channels, length, loudness, step)
    round_trip(Encoder(kind=kind, **given), samples)


@settings(max_examples=120)
@given(
    given=SETTINGS,
    kind=st.sampled_from([ULAW_1, ULAW_2]),
    channels=st.integers(1, 3),
    length=st.integers(0, 300),
    spread=st.sampled_from([1, 3, 30, 128]),
    step=st.sampled_from([1, 2, 4, 16]),
)
def test_mu_law_codes_come_back(
    given: dict[str, Any], kind: int, channels: int, length: int, spread: int, step: int
) -> None:
    rng = np.random.default_rng(given["seed"])
    codes = 0xFF - rng.integers(0, spread, (channels, length)) // step * step
    codes -= 0x80 * rng.integers(0, 2, codes.shape)
    round_trip(Encoder(kind=kind, **given), codes.astype(np.uint8))


@pytest.mark.parametrize("kind", [ULAW_1, ULAW_2])
@pytest.mark.parametrize("shift", range(13))
def test_all_mu_law_codes_at_all_shifts(kind: int, shift: int) -> None:
    """Written in one block, with a shift that the encoder need not choose."""
    codes = [code for code in range(256) if MAX_SHIFT[code] >= shift]
    codes += [] if shift else [0x7F]
    numbers = [inward(code, shift, kind) for code in codes]
    signed = [(2 * n if n >= 0 else -2 * n - 1, 7) for n in numbers]
    steps = [(BITSHIFT, 2), (shift, 2), (DIFF0, 2), (6, 3), *signed, (QUIT, 2)]
    coded = begun(kind, 1, len(codes), 0, 0, 0, steps=steps)
    decoded = decode(coded, "x.sph", coding="ulaw", channels=1, samples=len(codes))
    assert decoded[0].tolist() == codes


def test_linear_mu_law() -> None:
    codes = np.arange(256, dtype=np.uint8)[None]
    coded = Encoder(kind=ULAW_LINEAR, commands=[DIFF1]).encode(codes)
    decoded = decode(coded, "x.sph", coding="ulaw", channels=1, samples=256)
    # as linear samples, the two zeros are one
    expected = np.where(codes == 0x7F, 0xFF, codes)
    np.testing.assert_array_equal(decoded, expected)


def test_what_follows_the_stream_is_ignored() -> None:
    samples = wave(0, 1, 10, 30, 1)
    coded = Encoder().encode(samples) + b"\xff" * 100
    decoded = decode(coded, "x.sph", coding="pcm", channels=1, samples=10)
    np.testing.assert_array_equal(decoded, samples)


@pytest.mark.parametrize("order", ["01", "10"])
@pytest.mark.parametrize("channels", [1, 2])
def test_ffmpeg_agrees(channels: int, order: str, tmp_path: Path) -> None:
    ffmpeg = "ffmpeg"  # which reads no mu-law streams
    if shutil.which(ffmpeg) is None and "CI" not in os.environ:
        pytest.skip("ffmpeg is not installed")
    samples = wave(1, channels, 3000, 200, 4)
    encoder = Encoder(
        kind=LINEAR_LITTLE if order == "01" else LINEAR_BIG,
        order=8,
        commands=[DIFF0, DIFF1, DIFF2, DIFF3, QLPC],
    )
    coded = encoder.encode(samples)
    fields = f"""
        channel_count -i {channels}
        sample_count -i 3000
        sample_rate -i 8000
        sample_n_bytes -i 2
        sample_byte_format -s2 {order}
        sample_sig_bits -i 16
        sample_coding -s26 pcm,embedded-shorten-v2.00
    """
    path = sphere(tmp_path / "x.sph", fields, coded)
    command = [ffmpeg, "-v", "error", "-i", str(path), "-f", "s16le", "-"]
    raw = subprocess.run(command, check=True, capture_output=True).stdout
    theirs = np.frombuffer(raw, "<i2").reshape(-1, channels).T
    np.testing.assert_array_equal(theirs, samples)
    ours = decode(coded, "x.sph", coding="pcm", channels=channels, samples=3000)
    np.testing.assert_array_equal(ours, samples)


def test_compiles_where_no_cache_can_be_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As in a package and a home that are both read-only."""

    def njit(function: Any = None, *, cache: bool = False) -> Callable[..., Any]:
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return real(function)  # type: ignore[no-any-return]

    real: Callable[..., Any] = numba.njit
    monkeypatch.setattr(numba, "njit", njit)
    assert compiled_or_not(lambda number: number + 1)(1) == 2


# Damage.

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
    coded = Encoder().encode(SAMPLES[:1, :length], multiple=1)
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


def begun(*head: int, steps: Sequence[tuple[int, int]] = ()) -> bytes:
    """A stream of the numbers of its head, and of numbers with their widths."""
    bits = Bits()
    for number in head:
        bits.long(number)
    for number, width in steps:
        bits.number(number, width)
    return b"ajkg\2" + bits.to_bytes()


def headed(*numbers: int) -> bytes:
    return begun(*numbers) + bytes(8)


def after_head(*steps: tuple[int, int]) -> bytes:
    """A stream of one channel in blocks of 4."""
    return begun(LINEAR_LITTLE, 1, 4, 2, 0, 0, steps=steps)


def whole() -> bytes:
    """A good stream: 12 samples in blocks of 4."""
    return Encoder(block=4).encode(SAMPLES[:1, :12])


BAD: list[tuple[str, bytes, str]] = [
    ("empty", b"", r"expected a shorten stream, which starts with ajkg, got b''"),
    ("no-version", b"ajkg", r"version 1 or 2 of shorten, got the end of the file"),
    ("version-0", b"ajkg\0" + whole()[5:], r"version 1 or 2 of shorten, got 0"),
    ("no-numbers", b"ajkg\2", r"sample type must be 0 to 255, got its end"),
    ("type", headed(11, 1, 4, 0, 0, 0), r"stream of pcm, got sample type 11"),
    ("coding", headed(ULAW_2, 1, 4, 0, 0, 0), r"stream of pcm, got sample type 8"),
    ("no-channels", headed(5, 0, 4, 0, 0, 0), r"channel count must be 1 to 8, got 0"),
    ("channels", headed(5, 2, 4, 0, 0, 0), r"2 channels, but the header says 1"),
    ("block-0", headed(5, 1, 0, 0, 0, 0), r"block size must be 1 to 65535, got 0"),
    ("block-huge", headed(5, 1, 1 << 31, 0, 0, 0), r"block size .* got 2147483648"),
    ("order-huge", headed(5, 1, 4, 65, 0, 0), r"order of prediction .* got 65"),
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


@pytest.mark.parametrize(
    ("kind", "channels", "steps", "message"),
    [
        # a block size that would differ between the channels
        (5, 2, [(ZERO, 2), (BLOCKSIZE, 2), (2, 2), (2, 2)], "impossible block size"),
        (ULAW_2, 1, [(DIFF0, 2), (7, 3), (256, 8), (QUIT, 2)], "a sample out of range"),
        (ULAW_2, 1, [(BITSHIFT, 2), (13, 2)], "impossible bit shift"),
    ],
)
def test_bad_steps(
    kind: int, channels: int, steps: list[tuple[int, int]], message: str
) -> None:
    content = begun(kind, channels, 1, 0, 0, 0, steps=steps) + bytes(4)
    coding = "pcm" if kind == LINEAR_LITTLE else "ulaw"
    with pytest.raises(InputError, match=message):
        decode(content, "x", coding=coding, channels=channels, samples=4)


def test_an_absurd_sample_count_takes_no_memory() -> None:
    with pytest.raises(InputError, match=r"of \d+ bytes can't hold 1000000000000 sam"):
        decode(whole(), "x.sph", coding="pcm", channels=1, samples=10**12)

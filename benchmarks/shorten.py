"""The benchmark measures how fast shorten streams are decoded.

It makes a telephone conversation of 10 minutes, with two channels of 8 kHz, from noise
in the rhythm of speech; each side is silent half of the time. The conversation is
compressed in the forms that SPHERE files use: mu-law and 16-bit samples that are
predicted by differences, and 16-bit samples with linear prediction, which is the
slowest. The benchmark also reports how long numba takes to compile the decoder.

    python benchmarks/shorten.py          # one minute
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from report import ROOT, write_report
from shorten_encoder import (
    DIFF1,
    DIFF2,
    LINEAR_LITTLE,
    QLPC,
    QUIT,
    ULAW_2,
    Bits,
    Encoder,
)

from espnet_distopt.corpora.audio.g711 import encode_ulaw
from espnet_distopt.corpora.audio.shorten import decode

RATE = 8000
REPEATS = 5
PIECE = 256 * 313
"""The number of samples, about 10 s, that are compressed once and then repeated."""

FORMS = {
    "mu-law, differences": Encoder(kind=ULAW_2, means=0, commands=[DIFF1]),
    "16 bits, differences": Encoder(kind=LINEAR_LITTLE, commands=[DIFF1, DIFF2]),
    "16 bits, linear prediction": Encoder(kind=LINEAR_LITTLE, order=8, commands=[QLPC]),
}

FIRST = """
import sys, time
began = time.perf_counter()
from espnet_distopt.corpora.audio.shorten import decode
content = open(sys.argv[1], "rb").read()
decode(content, "x", coding="pcm", channels=2, samples=int(sys.argv[2]))
print(time.perf_counter() - began)
"""


def conversation() -> NDArray[np.int16]:
    """Return two sides that take turns, shape (2, time).

    The end is silent, so that the conversation can be repeated.
    """
    rng = np.random.default_rng(0)
    noise = rng.normal(0, 300, (2, PIECE))
    smooth = np.stack([np.convolve(side, np.hanning(8), "same") for side in noise])
    turns = np.arange(PIECE) // (2 * RATE) % 2
    talking = np.stack([turns == 0, turns == 1])
    talking[:, -8 * 256 :] = False
    return np.where(talking, np.clip(smooth, -32000, 32000), 0).astype(np.int16)


def compress(encoder: Encoder, samples: NDArray[np.int16], repeats: int) -> bytes:
    """Compress samples that are repeated several times.

    The samples end in silence, so each repetition starts from the same state of the
    encoder and has the same bits.

    Args:
        encoder: the form of the stream.
        samples: the samples, shape (2, time).
        repeats: how often they are repeated.
    """
    codes = encode_ulaw(samples) if encoder.kind == ULAW_2 else samples
    body = encoder.commands_of(codes).text
    bits = Bits(encoder.head(2).text + body * repeats)
    bits.number(QUIT, 2)
    return b"ajkg\2" + bits.to_bytes()


def seconds_of_first_call(path: Path, samples: int, cache: Path) -> float:
    """Return the seconds that a new process takes to import, compile and decode.

    Args:
        path: the path of the stream.
        samples: its number of samples per channel.
        cache: the folder of numba's cache; if it has the decoder, nothing is compiled.
    """
    command = [sys.executable, "-c", FIRST, str(path), str(samples)]
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(cache)}
    run = subprocess.run(
        command, env=environment, cwd=ROOT, check=True, capture_output=True, text=True
    )
    return float(run.stdout)


def measure(
    encoder: Encoder, piece: NDArray[np.int16], repeats: int
) -> tuple[int, list[float]]:
    """Return the number of compressed bytes, and the seconds of each decoding.

    Args:
        encoder: the form of the stream.
        piece: the samples that are repeated, shape (2, PIECE).
        repeats: how often they are repeated.
    """
    coding = "ulaw" if encoder.kind == ULAW_2 else "pcm"
    content = compress(encoder, piece, repeats)
    times = []
    for _ in range(1 + REPEATS):  # The first one compiles, so it does not count.
        began = time.perf_counter()
        decoded = decode(
            content, "x", coding=coding, channels=2, samples=repeats * PIECE
        )
        times.append(time.perf_counter() - began)
    expected = encode_ulaw(piece) if coding == "ulaw" else piece
    np.testing.assert_array_equal(decoded, np.tile(expected, repeats))
    return len(content), times[1:]


def main() -> None:
    """Measure, print the table and write it to benchmarks/results/."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="decode one minute")
    parser.add_argument("--out", type=Path, help="folder of the results")
    args = parser.parse_args()
    repeats = 6 if args.quick else 60
    piece = conversation()
    duration = repeats * PIECE / RATE
    table = [
        "| form | MB | bits a sample | decoded in, s | times real time |",
        "|---|---|---|---|---|",
    ]
    rows = []
    for name, encoder in FORMS.items():
        size, times = measure(encoder, piece, repeats)
        seconds = statistics.median(times)
        rows.append({"form": name, "bytes": size, "seconds": times})
        table.append(
            f"| {name} | {size / 1e6:.1f} | {8 * size / (2 * repeats * PIECE):.1f} | "
            f"{seconds:.3f} | {duration / seconds:.0f} |"
        )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.shn"
        encoder = FORMS["16 bits, differences"]
        path.write_bytes(compress(encoder, piece[:, -256:], 1))
        cold, warm = (
            seconds_of_first_call(path, 256, Path(folder) / "cache") for _ in range(2)
        )
    caption = (
        f"The conversation takes {duration:.0f} s and has two channels of {RATE} Hz. "
        f"The seconds are medians of {REPEATS} repeats. A new process that decodes "
        f"next to nothing takes {cold:.1f} s, with its imports, if numba must compile "
        f"the decoder, and {warm:.1f} s if the compiled code is on disk (one run each)."
    )
    data = {"seconds": duration, "forms": rows, "compiling": cold, "cached": warm}
    write_report(
        "shorten",
        args.quick,
        args.out,
        table,
        caption,
        data,
        seeds=[0],
        repeats=REPEATS,
    )


if __name__ == "__main__":
    main()

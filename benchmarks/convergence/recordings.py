"""The module reads single spoken digits from FSDD, as short matrices of log-mels."""

import functools
from itertools import product
from pathlib import Path
from typing import NamedTuple

import torch
from report import ROOT
from torch import Tensor, nn

from espnet_distopt.files.writing import whole_file
from espnet_distopt.recipes.corpora.fsdd import (
    SAMPLE_RATE,
    SPEAKERS,
    Take,
    read_recordings,
)

FRAMES, MELS = 12, 40
SETS = {"train": range(10, 50), "valid": range(10)}
"""Set -> the numbers of its recordings, out of 50 of each digit and speaker."""
DATA = ROOT / "build" / "benchmarks" / f"log_mels_in_{FRAMES}_frames.pt"


class Recordings(NamedTuple):
    """Recordings of single digits.

    Attributes:
        log_mels: the features, (recordings, FRAMES, MELS); every recording is averaged
            to FRAMES frames, whatever its length.
        digits: the digit of each recording, (recordings,).
    """

    log_mels: Tensor
    digits: Tensor


def prepare(fsdd: Path) -> None:
    """Write the recordings to `DATA`, unless they are there.

    Args:
        fsdd: the folder of a copy of the Free Spoken Digit Dataset.
    """
    if DATA.exists():
        return
    content = {name: tuple(_read(fsdd, chosen)) for name, chosen in SETS.items()}
    DATA.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(DATA) as new, new.open("wb") as file:
        torch.save(content, file)


@functools.cache
def load() -> dict[str, Recordings]:
    """Return the sets that `prepare` has written."""
    content = torch.load(DATA, weights_only=True)
    return {name: Recordings(*tensors) for name, tensors in content.items()}


def _read(fsdd: Path, chosen: range) -> Recordings:
    # ESPnet takes long to import, and the worker processes only load what is written.
    from espnet2.asr.frontend.default import DefaultFrontend

    takes = [Take(d, s, i) for d, s, i in product(range(10), SPEAKERS, chosen)]
    speech = read_recordings(fsdd, takes)
    frontend = DefaultFrontend(
        fs=SAMPLE_RATE, n_fft=256, win_length=200, hop_length=80, n_mels=MELS
    )
    rows = []
    for take in takes:
        samples = torch.from_numpy(speech[take]).float()[None] / 2**15
        with torch.no_grad():
            features, _ = frontend(samples, torch.tensor([samples.shape[1]]))
        pooled = nn.functional.adaptive_avg_pool1d(features.transpose(1, 2), FRAMES)
        rows.append(pooled[0].T)
    return Recordings(torch.stack(rows), torch.tensor([take.digit for take in takes]))

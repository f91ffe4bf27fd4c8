"""Makes data/{train,dev,test}: a few strings of digits.

Of real recordings where FSDD=/path names them, else of tones, one for each digit.
"""

import os
from itertools import product
from pathlib import Path

import numpy as np
import soundfile

from espnet_distopt.recipes.corpora.fsdd import SPEAKERS, DigitSet, Take, prepare

SETS = (
    DigitSet(name="train", strings=480, indices=range(2, 4)),
    DigitSet(name="dev", strings=20, indices=range(1, 2)),
    DigitSet(name="test", strings=20, indices=range(1)),
)


def write_tones(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    time = np.arange(1600) / 8000
    for take in (Take(*of) for of in product(range(10), SPEAKERS, range(4))):
        tone = np.sin(2 * np.pi * (300 + 300 * take.digit) * time)
        soundfile.write(folder / take.name, 0.3 * tone, 8000, subtype="PCM_16")


if __name__ == "__main__":
    fsdd = Path(os.environ.get("FSDD") or "corpus")
    if not fsdd.exists():
        write_tones(fsdd / "recordings")
    prepare(fsdd, Path("data"), sets=SETS)

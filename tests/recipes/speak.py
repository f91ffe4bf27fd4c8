"""The command writes data directories of noise, as a stub for local/data.sh."""

import sys
from pathlib import Path

import numpy as np
import soundfile

from espnet_distopt.recipes.corpora.kaldi.directory import DataDir


def main(root: Path) -> None:
    rng = np.random.default_rng(0)
    for name in ("train", "dev", "test"):
        (root / name).mkdir(parents=True, exist_ok=True)
        wav = {f"a-{name}-{number}": f"{root}/{name}.{number}.wav" for number in (1, 2)}
        for path in wav.values():
            noise = rng.integers(-9999, 9999, 4000, dtype=np.int16)
            soundfile.write(path, noise, 8000, subtype="PCM_16")
        text = {name: f"one word {number}" for number, name in enumerate(wav)}
        data = DataDir(wav=wav, text=text, utt2spk=dict.fromkeys(wav, "a"))
        data.write(root / name)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

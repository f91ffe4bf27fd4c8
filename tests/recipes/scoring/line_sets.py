"""A few decoded lines in a dump directory, with images."""

from pathlib import Path

import numpy as np
from PIL import Image

from espnet_distopt.files.tables import write_table
from espnet_distopt.recipes.corpora.kaldi.arks import MatrixArkWriter

REF = {
    "ann-known-1": "the quick brown fox",
    "ann-known-2": "jumps",
    "bob-digits-1": "0042",
    "cyd-digits-1": "17",
}
HYP = {
    "ann-known-1": "the quik brown  fox!",  # one deleted, one inserted
    "ann-known-2": "",  # five deleted
    "bob-digits-1": "0842",  # one substituted
    "cyd-digits-1": "17",
}


def dump(root: Path, ref: dict[str, str] | None = None, width: int = 200) -> Path:
    """Write text, utt2spk, images.scp and, in root/ark, feats.scp; return root."""
    ref = REF if ref is None else ref
    rng = np.random.default_rng(0)
    (root / "ark").mkdir(parents=True)
    images = {}
    with MatrixArkWriter(root / "ark" / "feats.ark") as ark:
        for line in ref:
            gray = rng.integers(0, 255, (32, width), dtype=np.uint8)
            images[line] = str(root / f"{line}.png")
            Image.fromarray(gray).save(images[line])
            ark[line] = (1 - gray.T / 255).astype(np.float32)
    write_table(root / "ark" / "feats.scp", ark.locations)
    write_table(root / "images.scp", images)
    write_table(root / "text", ref)
    write_table(root / "utt2spk", {line: line.split("-")[0] for line in ref})
    return root

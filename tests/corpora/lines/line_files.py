"""Small images and directories of text lines, for the tests."""

from pathlib import Path

import numpy as np
from PIL import Image

from espnet_distopt.corpora.lines.images import Gray
from espnet_distopt.corpora.lines.sets import LineDir


def bars(width: int = 60, height: int = 20) -> Gray:
    """Paper (230) with a black bar (20), 3 pixels wide, every 10 columns."""
    image = np.full((height, width), 230, np.uint8)
    for start in range(5, width - 3, 10):
        image[4 : height - 4, start : start + 3] = 20
    return image


def save(path: Path, image: Gray | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(bars() if image is None else image).save(path)
    return path


def data_dir(path: Path, texts: dict[str, str]) -> Path:
    """Write a data directory with an image of bars for each id; the writer is `ann`."""
    images = {key: str(save(path / "png" / f"{key}.png")) for key in texts}
    LineDir(images=images, text=texts, utt2spk=dict.fromkeys(texts, "ann")).write(
        path / "data"
    )
    return path / "data"

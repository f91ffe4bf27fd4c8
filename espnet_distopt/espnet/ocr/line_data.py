"""The module makes images of text lines a data type of ESPnet, `line_image_HEIGHT`.

    --train_data_path_and_name_and_type dump/train/images.scp,speech,line_image_32

HEIGHT is the height to which lines are scaled, in pixels; it must be the model's
`input_size`. `line_image_HEIGHT_ROWS` pads images with fewer than ROWS rows with paper
before they are scaled. Only the paths stay in memory: an image is read when it is asked
for.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from espnet2.train.dataset import DATA_TYPES
from numpy.typing import NDArray

from espnet_distopt.corpora.kaldi.tables import read_table
from espnet_distopt.corpora.lines.images import line_features, read_image
from espnet_distopt.errors import InputError

_PREFIX = "line_image_"
_TYPE = re.compile(rf"{_PREFIX}([1-9]\d*)(?:_(\d+))?", re.ASCII)


def line_images(height: int, least_rows: int = 0) -> str:
    """Return the data type of images that are scaled to a height.

    >>> line_images(40), line_images(40, least_rows=128)
    ('line_image_40', 'line_image_40_128')
    """
    return f"{_PREFIX}{height}" + (f"_{least_rows}" if least_rows else "")


class LineImages(Mapping[str, NDArray[np.float32]]):
    """The lines of an `images.scp`: line -> its ink, shape (columns, height)."""

    def __init__(self, path: str, loader_type: str) -> None:
        """Read the paths of the images.

        Args:
            path: the path of the `images.scp`.
            loader_type: ESPnet's name of the data type: `line_image_` followed by the
                height in pixels, or by the height and the least number of rows.

        Raises:
            InputError: the file does not exist or is malformed, or the height is not a
                number above 0, or the number of rows is none.
        """
        found = _TYPE.fullmatch(loader_type)
        if found is None:
            raise InputError(
                f"{path}: data type {loader_type}: expected {_PREFIX}HEIGHT, e.g. "
                f"{_PREFIX}32, or {_PREFIX}HEIGHT_ROWS"
            )
        self._height, self._least_rows = int(found[1]), int(found[2] or 0)
        self._path = path
        self._images = read_table(Path(path), str)

    def __getitem__(self, key: str) -> NDArray[np.float32]:
        image = read_image(Path(self._images[key]))
        return line_features(image, self._height, self._least_rows)

    def __iter__(self) -> Iterator[str]:
        return iter(self._images)

    def __len__(self) -> int:
        return len(self._images)


# ESPnet matches the key with the beginning of a type. So a type without a height also
# comes to LineImages, which reports it.
DATA_TYPES["line_image"] = {
    "func": LineImages,
    "kwargs": ["loader_type"],
    "help": "Images of text lines, scaled to the height that the type names, e.g. "
    "line_image_32.\n\n   utterance_id_a a.png\n   utterance_id_b b.jpg\n   ...",
}

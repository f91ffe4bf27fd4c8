"""Text lines for ESPnet: the data type `line_image_HEIGHT`, and changes at random.

    --train_data_path_and_name_and_type dump/train/images.scp,speech,line_image_32

HEIGHT is the height to which lines are scaled, in pixels; it must be the model's
`input_size`. `line_image_HEIGHT_ROWS` pads images with fewer than ROWS rows with paper
before they are scaled. Only the paths stay in memory: an image is read when it is asked
for.

Training may change the lines at random, in ways that do not change their texts. One
resampling slants, stretches and bends (elastic) a line; then its contrast is changed
and noise is added. The random numbers come from NumPy's global generator, as those of
ESPnet's preprocessors do. So the same seed, or the same resumed state, gives the same
lines.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from espnet2.train.dataset import DATA_TYPES
from numpy.typing import NDArray
from scipy import ndimage

from espnet_distopt.errors import InputError
from espnet_distopt.files.tables import read_table
from espnet_distopt.recipes.corpora.lines.images import (
    least_columns,
    line_features,
    read_image,
)

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

Arrays = dict[str, Any]
"""ESPnet's arrays and texts of an utterance, by name."""


Line = NDArray[np.float32]
"""The ink of a line, shape (columns, height), from 0 for paper to 1 for ink."""

_GRID = 16  # columns between two knots of the bending
# A share of the knots' distance; from 0.5 the line could fold over itself.
_MAX_BEND = 0.4
_MIN_STRETCH = 0.5


@dataclass(frozen=True)
class LineAugmentation:
    """The changes of a line; each strength is the largest, and 0 turns a change off.

    Attributes:
        slant: Columns that a line leans to either side, per pixel of its height.
        stretch: Share of its width by which a line becomes wider or narrower, up to
            0.5.
        elastic: Pixels that a point moves to the left or right, at most 6; neighbours
            move alike. It moves up or down half as far.
        noise: Standard deviation of the noise; the contrast changes by up to four times
            as much.
        probability: The probability of each of the four changes.

    Raises:
        InputError: A strength is out of range.

    Example:
        >>> line = np.zeros((20, 8), np.float32)
        >>> LineAugmentation(slant=0, stretch=0, elastic=0, noise=0)(line).shape
        (20, 8)
    """

    slant: float = 0.3
    stretch: float = 0.15
    elastic: float = 1.0
    noise: float = 0.05
    probability: float = 0.7

    def __post_init__(self) -> None:
        largest = {"slant": 1.0, "stretch": _MIN_STRETCH, "elastic": _MAX_BEND * _GRID}
        for field in fields(self):
            value, limit = getattr(self, field.name), largest.get(field.name, 1.0)
            if not isinstance(value, int | float) or not 0 <= value <= limit:
                raise InputError(
                    f"{field.name} must be a number from 0 to {limit:g}, not {value!r}"
                )

    def __call__(self, line: Line, least: int = 1) -> Line:
        """Return a changed copy, of another width, with no column of ink cut off.

        Args:
            line: The ink, shape (columns, height).
            least: The columns that are left of a line that has so many.
        """
        slant, stretch, elastic, noise = (
            strength if np.random.random() < self.probability else 0.0
            for strength in (self.slant, self.stretch, self.elastic, self.noise)
        )
        if slant or stretch or elastic:
            line = _warped(
                line,
                np.random.uniform(-slant, slant),
                1 + np.random.uniform(-stretch, stretch),
                elastic,
                least,
            )
        if noise:
            contrast = 1 + np.random.uniform(-4, 4) * noise
            # In float32 the next steps take half the time.
            grain = np.random.standard_normal(line.shape).astype(np.float32)
            line = np.clip(
                line * np.float32(contrast) + grain * np.float32(noise), 0, 1
            )
        return line


def _warped(
    line: Line, shear: float, stretch: float, elastic: float, least: int
) -> Line:
    """Resample a line so that the new point (t, y) shows the old point (u, v)."""
    columns, height = line.shape
    lean = shear * (np.arange(height, dtype=np.float32) - (height - 1) / 2)
    # The margin shows what leans or bends out of the line on either side.
    margin = int(np.ceil(np.abs(lean).max() + elastic)) if shear or elastic else 0
    whole = columns + 2 * margin
    stretch = max(stretch, min(1.0, least / whole))
    width = max(1, round(whole * stretch))
    t = (np.arange(width, dtype=np.float32) + 0.5) / np.float32(stretch)
    u = (t - (margin + 0.5))[:, None] + lean.astype(np.float32)
    v = np.broadcast_to(np.arange(height, dtype=np.float32), u.shape)
    if elastic:
        u, v = u + _bend(width, height, elastic), v + _bend(width, height, elastic / 2)
    warped: Line = ndimage.map_coordinates(
        line, [u, v], order=1, output=np.float32, mode="grid-constant"
    )
    return warped


def _bend(width: int, height: int, strength: float) -> Line:
    """Draw a move for each knot of a grid, and interpolate linearly between the knots.

    Returns:
        The move of each point in pixels, shape (width, height).
    """
    knots = np.random.uniform(-strength, strength, (width // _GRID + 2, 3))
    place = np.arange(width) / _GRID
    left = place.astype(int)
    share = (place - left)[:, None]
    along = knots[left] * (1 - share) + knots[left + 1] * share
    # There are three knots over the height: top, middle and bottom.
    across = np.abs(np.linspace(0, 2, height) - np.arange(3)[:, None])
    bend: Line = (along @ np.maximum(0, 1 - across)).astype(np.float32)
    return bend


class LinePreprocessor:
    """A preprocessor that runs ESPnet's own and then changes the image at random.

    It wraps ESPnet's preprocessor instead of being a choice of `--preprocessor`, so
    that ESPnet's own inference can read the configuration of an experiment.
    """

    def __init__(
        self,
        stock: Callable[[str, Arrays], dict[str, NDArray[Any]]] | None,
        augmentation: LineAugmentation,
    ) -> None:
        """Wrap ESPnet's preprocessor.

        Args:
            stock: ESPnet's preprocessor, or None if there is none.
            augmentation: a random change of an image of shape (columns, height).
        """
        self._stock, self._augmentation = stock, augmentation

    def __call__(self, uid: str, data: Arrays) -> dict[str, NDArray[Any]]:
        """Return the arrays of one line, with its image augmented.

        The image stays as wide as CTC needs it for the text.
        """
        if self._stock is not None:
            data = self._stock(uid, data)
        least = least_columns(data["text"].tolist())
        return {**data, "speech": self._augmentation(data["speech"], least)}

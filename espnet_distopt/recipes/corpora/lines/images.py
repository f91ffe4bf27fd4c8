"""Reads images of text lines, and makes the features of a line.

The features are columns of ink. A line is scaled to one height, its paper is removed,
and its contrast is made the same as that of every other line.
"""

import itertools
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError
from scipy import ndimage

from espnet_distopt.errors import InputError

Gray = NDArray[np.uint8]
"""A grey image, shape (height, width), from 0 for black to 255 for white."""
Ink = NDArray[np.float32]
"""The ink of a line, shape (columns, height), from 0 for paper to 1 for ink."""

MIN_COLUMNS = 4
MAX_COLUMNS = 16_000
_COLUMNS_PER_FRAME = 4
"""The columns that a frame of the recipes' models stands for (`subsample`)."""

# Pillow reads more formats, but some of them start other programs (EPS: Ghostscript).
_FORMATS = ("PNG", "JPEG", "TIFF", "BMP", "GIF", "PPM", "WEBP", "JPEG2000")
_MAX_PIXELS = 150_000_000  # an A4 page at 1200 dpi
_MIN_CONTRAST = 24  # grey levels; a paler line is taken for empty paper
# Light pixels are the ink if they differ from the paper so many times as much as dark
# ones do.
_LIGHT_INK = 1.5

# These undo the turns by which EXIF's orientations become upright.
_TURN_BACK: dict[int, Callable[[Gray], Gray]] = {
    2: np.fliplr,
    3: lambda image: np.rot90(image, 2),
    4: np.flipud,
    5: np.transpose,
    6: np.rot90,
    7: lambda image: np.rot90(image, 2).T,
    8: lambda image: np.rot90(image, -1),
}


class UnfitLine(InputError):
    """Raised for a line that cannot be recognized, such as one with too few columns."""


def read_image(path: Path) -> Gray:
    """Read an image as grey levels.

    Up to 16 bits are reduced to 8, and colours and CMYK to grey. Transparent pixels
    become white. An image that a camera has stored turned (EXIF) is turned upright. Of
    a JPEG's several pictures (MPO), as phones store them, the first is taken.

    Returns:
        The image, shape (height, width).

    Raises:
        InputError: The file does not exist, is empty, no image or damaged, has several
            pages or 32 bits a pixel, or is so large that it must be a mistake.
    """
    try:
        if path.stat().st_size == 0:
            raise InputError(f"{path}: empty, expected an image")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about sizes, which are checked below
            # Pillow 13 maps a plain TIFF that it knows by its path into memory, and
            # mixes its pixels up if it is stored turned.
            with open(path, "rb") as file, Image.open(file, formats=_FORMATS) as image:
                _check(image, path)
                return _gray(image, path)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except UnidentifiedImageError:
        raise InputError(
            f"{path}: no image, or of none of the kinds {', '.join(_FORMATS)}"
        ) from None
    except (InputError, MemoryError):
        raise
    except Image.DecompressionBombError:
        raise InputError(f"{path}: more than {_MAX_PIXELS:,} pixels") from None
    except Exception as error:  # Pillow's decoders raise many kinds, even SyntaxError
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{path}: the image cannot be read: {reason}") from None


def stored_image(path: Path, upright: Gray) -> Gray | None:
    """Return an image as its file stores it, if that is another way than upright.

    Returns:
        The image, or None if the file names no turn (EXIF).
    """
    with Image.open(path, formats=_FORMATS) as image:
        turn = image.getexif().get(ExifTags.Base.Orientation, 1)
    turn_back = _TURN_BACK.get(turn)
    return None if turn_back is None else turn_back(upright)


def columns(image: Gray, height: int, least_rows: int = 0) -> int:
    """Return the number of columns that `line_features` makes of a line."""
    rows, count = image.shape
    return round(int(count) * height / max(int(rows), least_rows))


def check_columns(count: int) -> None:
    """Check that a line of so many columns can be recognized.

    Raises:
        UnfitLine: There are too few or too many.
    """
    if count < MIN_COLUMNS:
        raise UnfitLine(f"too narrow: {count} columns, expected at least {MIN_COLUMNS}")
    if count > MAX_COLUMNS:
        raise UnfitLine(f"too wide: {count} columns, expected at most {MAX_COLUMNS}")


def least_columns(labels: Sequence[object]) -> int:
    """Return the columns from which CTC can read labels; it learns nothing from fewer.

    CTC needs a frame for each label, and one more between two equal ones.

    >>> least_columns("to"), least_columns("too"), least_columns("")
    (8, 16, 0)
    """
    doubled = sum(one == next_ for one, next_ in itertools.pairwise(labels))
    return (len(labels) + doubled) * _COLUMNS_PER_FRAME


def line_features(image: Gray, height: int, least_rows: int = 0) -> Ink:
    """Make the columns of ink of a line.

    The line is scaled by one factor in both directions, so that its rows fill the
    height. If lines were cut out closely around their ink, a line without ascenders
    comes out with larger letters than others. With `least_rows`, lower images are
    scaled as if they had so many rows, and paper fills the height above and below them.
    So letters of one size keep one size.

    Gradients, and stains that are wider than letters, count as paper. A line that is
    light on dark is inverted. The darkest strokes of every line become 1.

    The height, to which the line is scaled, and `least_rows` are in pixels.

    Returns:
        The ink, shape (columns, height), from left to right and from top to bottom.

    Raises:
        UnfitLine: The line has fewer than 4 or more than 16,000 columns.
    """
    count = columns(image, height, least_rows)
    check_columns(count)
    rows = len(image)
    filled = max(1, round(height * rows / max(rows, least_rows)))
    ink = _ink(image, count, filled)
    above = (height - filled) // 2
    return np.pad(ink, ((0, 0), (above, height - filled - above)))


def is_blank(ink: Ink) -> bool:
    """Tell whether a line has no ink: no pixel stands out against its paper.

    >>> is_blank(line_features(np.full((32, 100), 200, np.uint8), 32))
    True
    """
    return bool(ink.max() < 1)


def _ink(image: Gray, count: int, height: int) -> Ink:
    """Return the ink of a line that is scaled to (height, count), transposed."""
    small = Image.fromarray(image).resize((count, height), Image.Resampling.BOX)
    levels = np.asarray(small)
    if _is_light_on_dark(levels):
        levels = 255 - levels
    pixels = levels.astype(np.float32)
    window = (height // 2 + 1, height + 1)  # higher and wider than any stroke is thick
    paper = ndimage.grey_closing(pixels, window, mode="nearest")
    ink = ndimage.uniform_filter(paper, window, mode="nearest") - pixels
    # The median is the level of the paper, as most pixels are paper. The level of the
    # strokes is reached by as many pixels as a column has, or by one in a hundred.
    darkest = ink.size - max(height, ink.size // 100)
    ordered = np.partition(ink, (ink.size // 2, darkest), axis=None)
    ink -= ordered[ink.size // 2]
    level = ordered[darkest] - ordered[ink.size // 2]
    ink /= max(float(level), _MIN_CONTRAST)
    return np.ascontiguousarray(ink.clip(0, 1).T, np.float32)


def _check(image: Image.Image, path: Path) -> None:
    width, height = image.size
    if width < 1 or height < 1:
        raise InputError(f"{path}: the image has no pixels: {width} x {height}")
    if width * height > _MAX_PIXELS:
        raise InputError(
            f"{path}: {width} x {height} pixels, expected at most {_MAX_PIXELS:,}"
        )
    # Phones store further views of a photo behind it, as MPO; the first is the photo.
    if image.format != "MPO" and getattr(image, "n_frames", 1) > 1:
        raise InputError(
            f"{path}: several pages or frames, expected one: split the file"
        )


def _gray(image: Image.Image, path: Path) -> Gray:
    image = ImageOps.exif_transpose(image)
    if image.mode.startswith(("I", "F")):
        return _from_deep(np.asarray(image), path)
    if image.has_transparency_data:
        image = image.convert("RGBA")
        paper = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(paper, image)
    if image.mode == "LAB":
        return np.array(image.getchannel("L"))
    if image.mode not in ("1", "L", "RGB"):
        image = image.convert("RGB")
    return np.array(image.convert("L"))


def _from_deep(levels: NDArray[np.generic], path: Path) -> Gray:
    """Return the 8 highest bits of 8 to 16, which Pillow may also give as 32.

    Scanners with 12 bits, and programs with 8, store their levels in 16 unchanged. The
    lightest pixel, which is paper, tells how many bits are used.
    """
    if levels.dtype.kind == "f" or levels.min() < 0 or levels.max() > 65535:
        raise InputError(f"{path}: 32 bits a pixel, expected 8 or 16")
    bits = max(int(levels.max()).bit_length(), 8)
    return (levels.astype(np.uint32) >> (bits - 8)).astype(np.uint8)


def _is_light_on_dark(levels: Gray) -> bool:
    """Tell whether the rare pixels, which are the ink, are lighter than the paper."""
    below = np.cumsum(np.bincount(levels.ravel(), minlength=256)) / levels.size
    dark, common, light = np.searchsorted(below, (0.01, 0.5, 0.99))
    return bool(light - common > _LIGHT_INK * (common - dark) + _MIN_CONTRAST)

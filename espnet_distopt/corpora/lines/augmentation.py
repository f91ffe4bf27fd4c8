"""Changes text lines at random for training, in ways that do not change their texts.

One resampling slants, stretches and bends (elastic) a line; then its contrast is
changed and noise is added. The random numbers come from NumPy's global generator, as
those of ESPnet's preprocessors do. So the same seed, or the same resumed state, gives
the same lines.
"""

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from espnet_distopt.errors import InputError

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

    Args:
        width: The number of columns of the line.
        height: The height of the line in pixels.
        strength: The largest move in pixels.

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

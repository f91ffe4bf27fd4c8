"""Speed perturbation: makes copies that are faster or slower, and higher or lower."""

import numpy as np
import soxr  # type: ignore[import-untyped]

from espnet_distopt.corpora.kaldi.arks import Samples
from espnet_distopt.errors import InputError

_SLOWEST, _FASTEST = 0.5, 2.0  # beyond, a factor is a mistake, as 90 for 0.9


def parse_factors(text: str) -> tuple[float, ...]:
    """Read a list such as "0.9 1.0 1.1"; 1.0 stands for the original.

    Raises:
        InputError: The list is empty, has something else than numbers from 0.5 to 2,
            or has a number twice.
    """
    try:
        factors = tuple(float(field) for field in text.split())
    except ValueError:
        factors = ()
    if not factors or not all(_SLOWEST <= each <= _FASTEST for each in factors):
        raise InputError(
            f"expected speed factors from {_SLOWEST} to {_FASTEST} separated by "
            f"blanks, as '0.9 1.0 1.1', got {text!r}"
        )
    if len({prefix(each) for each in factors}) < len(factors):
        raise InputError(f"a speed factor comes twice in {text!r}")
    return factors


def prefix(factor: float) -> str:
    """Return what ESPnet puts before the ids of a copy, such as `sp0.9-`."""
    return "" if factor == 1 else f"sp{factor:g}-"


def change_speed(samples: Samples, factor: float) -> Samples:
    """Play samples `factor` times as fast; the result is the same in every run.

    Args:
        samples: The samples, shape (time,).
        factor: Divides the duration and multiplies the pitch.

    Returns:
        The new samples, shape (time / factor,), rounded to the nearest length.
    """
    if factor == 1:
        return samples
    # The samples go through floats, because libsoxr adds noise (dither) to 16 bits.
    played = soxr.resample(samples.astype(np.float32), factor, 1.0, quality="HQ")
    length = round(len(samples) / factor)
    played = np.pad(played[:length], (0, max(0, length - len(played))))
    rounded: Samples = np.clip(np.rint(played), -32768, 32767).astype(np.int16)
    return rounded

"""Turns log-mel features into cepstra, whose dimensions diagonal Gaussians can model.

Neighbouring mel energies rise and fall together. The discrete cosine transform makes
13 cepstral coefficients of 40 energies that hardly do (MFCC). It is linear, so that the
derivatives of the energies become those of the cepstra.
"""

import numpy as np
from numpy.typing import NDArray

from espnet_distopt.errors import InputError

_CEPSTRA = 13
_STREAMS = 3
"""The energies, their deltas, and the deltas of those."""


def cepstra(features: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return cepstra with deltas, shape (frames, 39), of features (frames, 3 M).

    Raises:
        InputError: The number of dimensions is not three times that of mel energies.
    """
    mels, rest = divmod(features.shape[1], _STREAMS)
    if rest or mels < _CEPSTRA:
        raise InputError(
            f"features of {features.shape[1]} dimensions: expected log-mel energies, "
            "their deltas, and the deltas of those"
        )
    centres = np.arange(mels) + 0.5
    basis = np.cos(np.pi / mels * np.outer(centres, np.arange(_CEPSTRA)))
    basis *= np.sqrt(2 / mels)
    streams = features.reshape(len(features), _STREAMS, mels) @ basis
    return np.asarray(streams.reshape(len(features), -1), np.float32)

"""Two words of two phones, and speech that says exactly which state it is in."""

import numpy as np
from numpy.typing import NDArray

from espnet_distopt.hmm.graph import HmmSet
from espnet_distopt.hmm.states import PhoneStates

LEXICON = {"hi": [("h", "ai")], "oh": [("oh",)], "hello": [("h", "oh"), ("oh",)]}
STATES = PhoneStates(("SIL", "ai", "h", "oh"))
MODELS = HmmSet(STATES, [0.5] * len(STATES))


def spoken(*phones: str, frames: int = 4) -> list[int]:
    """Return the pdfs of phones, each of so many frames."""
    return [
        STATES.pdfs(phone)[min(frame, 2)] for phone in phones for frame in range(frames)
    ]


def scores(pdfs: list[int], wrong: float = -9.0) -> NDArray[np.float32]:
    """Return scores of 0 for the pdf of each frame, and `wrong` for all others."""
    matrix = np.full((len(pdfs), len(STATES)), wrong, np.float32)
    matrix[np.arange(len(pdfs)), pdfs] = 0
    return matrix

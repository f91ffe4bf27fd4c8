"""Two words of two phones, and speech that says exactly which state it is in."""

from collections.abc import Sequence
from pathlib import Path

import kaldiio
import numpy as np
from numpy.typing import NDArray

from espnet_distopt.recipes.hmm.graph import HmmSet
from espnet_distopt.recipes.hmm.language import PhoneStates

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


def phone_segments(
    states: PhoneStates, pdfs: Sequence[int]
) -> list[tuple[str, int, int]]:
    """Return the phones of an alignment, with their first frame and their end.

    A phone ends where the next frame's state is of another phone, or an earlier state
    of the same one.
    """
    segments: list[tuple[str, int, int]] = []
    for frame, pdf in enumerate(pdfs):
        phone = states.phones[pdf // 3]
        before = pdfs[frame - 1] if frame else -1
        if frame and states.phones[before // 3] == phone and pdf >= before:
            segments[-1] = (phone, segments[-1][1], frame + 1)
        else:
            segments.append((phone, frame, frame + 1))
    return segments


def read_alignments(scp: Path) -> dict[str, NDArray[np.int32]]:
    """Return each utterance of an `ali.scp` with its pdfs."""
    return dict(kaldiio.load_scp(str(scp)).items())

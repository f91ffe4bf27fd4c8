"""Counts words by jiwer on normalised text, as a cross-check of hub5 scoring.

It knows no GLM, only the first of alternatives, and no optional words. Its figures come
near those of hubscr, but are of another kind, and must not stand beside published ones.
"""

from collections.abc import Mapping

from espnet_distopt.scoring.counts import Counts
from espnet_distopt.scoring.jiwer_counts import Jiwer
from espnet_distopt.scoring.sides import ConversationSide
from espnet_distopt.scoring.spoken_words import plain_hypothesis, plain_reference


def label() -> str:
    """Return the name that results carry."""
    return f"{Jiwer().label}, normalised text"


def count_normalized(sides: Mapping[str, ConversationSide]) -> dict[str, Counts]:
    """Score the words of conversation sides without SCTK.

    Returns:
        The counts of each side that has a segment to score.

    Raises:
        InputError: jiwer is not installed.
    """
    counts = {}
    for name, side in sides.items():
        segments = {str(n): segment for n, segment in enumerate(side.segments())}
        ref = {n: plain_reference(text) for n, (text, _) in segments.items()}
        hyp = {n: plain_hypothesis(words) for n, (_, words) in segments.items()}
        if segments:
            counts[name] = Jiwer().count(ref, hyp)
    return counts

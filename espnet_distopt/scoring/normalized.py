"""Counts words by jiwer on normalised text, as a cross-check of hub5 scoring.

It knows no GLM, only the first of alternatives, and no optional words. Its figures come
near those of hubscr, but are of another kind, and must not stand beside published ones.
"""

from collections.abc import Iterator, Mapping

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
        segments = list(plain_segments(side))
        ref = {str(n): words for n, (_, words, _) in enumerate(segments)}
        hyp = {str(n): words for n, (_, _, words) in enumerate(segments)}
        if segments:
            counts[name] = Jiwer().count(ref, hyp)
    return counts


def plain_segments(
    side: ConversationSide,
) -> Iterator[tuple[float, list[str], list[str]]]:
    """Yield each scored segment: start in s, words of reference and of hypothesis."""
    judged = (each for each in side.references if each.judged)
    for reference, (text, words) in zip(judged, side.segments(), strict=True):
        yield reference.span.start, plain_reference(text), plain_hypothesis(words)

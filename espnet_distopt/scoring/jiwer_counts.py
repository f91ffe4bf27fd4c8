"""Counts by jiwer: words where sclite is not installed, and characters of text lines.

jiwer minimises the number of errors. sclite weighs a substitution 4 and a deletion or
insertion 3, so on long misrecognized stretches it divides the errors differently and,
rarely, reports more of them: five substitutions against three deletions and three
insertions. Elsewhere the counts are equal (tests/scoring/test_known_counts.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from typing import TYPE_CHECKING

from espnet_distopt.errors import InputError
from espnet_distopt.scoring.counts import Counts
from espnet_distopt.scoring.trn import Transcripts

if TYPE_CHECKING:
    from jiwer import CharacterOutput, WordOutput


@dataclass(frozen=True)
class Jiwer:
    """The scorer in pure Python, with the same interface as `Sclite`.

    Attributes:
        characters: Whether characters are counted instead of words; `Counts.words` are
            then characters, and the blanks between words are characters, too.
    """

    characters: bool = False

    @property
    def label(self) -> str:
        """The name that results carry."""
        return f"jiwer {version('jiwer')}"

    def count(self, ref: Transcripts, hyp: Transcripts) -> Counts:
        """Align hypothesis and reference, which hold the same utterances, and count.

        Raises:
            InputError: jiwer is not installed.
        """
        utterances = sorted(ref)
        refs, hyps = ([" ".join(side[u]) for u in utterances] for side in (ref, hyp))
        align = _align_characters if self.characters else _align_words
        aligned = align(refs, hyps)
        return Counts(
            sentences=len(utterances),
            words=aligned.hits + aligned.substitutions + aligned.deletions,
            correct=aligned.hits,
            substitutions=aligned.substitutions,
            deletions=aligned.deletions,
            insertions=aligned.insertions,
            sentence_errors=sum(ref[u] != hyp[u] for u in utterances),
        )


def is_installed() -> bool:
    """Whether jiwer is installed."""
    return find_spec("jiwer") is not None


def _align_characters(refs: Sequence[str], hyps: Sequence[str]) -> "CharacterOutput":
    try:
        import jiwer
    except ImportError:
        raise InputError("no scorer: install jiwer (pip install jiwer)") from None
    keep = jiwer.Compose([jiwer.ReduceToListOfListOfChars()])
    return jiwer.process_characters(list(refs), list(hyps), keep, keep)


def _align_words(refs: Sequence[str], hyps: Sequence[str]) -> "WordOutput":
    try:
        import jiwer
    except ImportError:
        raise InputError(
            "no scorer: install sctk (Debian: apt-get install sctk) or jiwer"
        ) from None
    keep = jiwer.Compose([jiwer.ReduceToListOfListOfWords()])
    return jiwer.process_words(list(refs), list(hyps), keep, keep)

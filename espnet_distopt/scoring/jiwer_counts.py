"""Counts by jiwer, where sclite is not installed.

jiwer minimises the number of errors. sclite weighs a substitution 4 and a deletion or
insertion 3, so on long misrecognized stretches it divides the errors differently and,
rarely, reports more of them: five substitutions against three deletions and three
insertions. Elsewhere the counts are equal (tests/scoring/test_known_counts.py).
"""

from importlib.metadata import version
from importlib.util import find_spec

from espnet_distopt.errors import InputError
from espnet_distopt.scoring.counts import Counts
from espnet_distopt.scoring.trn import Transcripts


class Jiwer:
    """The scorer in pure Python: the same interface as `Sclite`."""

    @property
    def label(self) -> str:
        """The name that results carry."""
        return f"jiwer {version('jiwer')}"

    def count(self, ref: Transcripts, hyp: Transcripts) -> Counts:
        """Align hypothesis and reference, which hold the same utterances, and count.

        Raises:
            InputError: jiwer is not installed.
        """
        try:
            import jiwer
        except ImportError:
            raise InputError(
                "no scorer: install sctk (Debian: apt-get install sctk) or jiwer"
            ) from None
        keep = jiwer.Compose([jiwer.ReduceToListOfListOfWords()])
        utterances = sorted(ref)
        result = jiwer.process_words(
            [" ".join(ref[utterance]) for utterance in utterances],
            [" ".join(hyp[utterance]) for utterance in utterances],
            reference_transform=keep,
            hypothesis_transform=keep,
        )
        return Counts(
            sentences=len(utterances),
            words=sum(map(len, ref.values())),
            correct=result.hits,
            substitutions=result.substitutions,
            deletions=result.deletions,
            insertions=result.insertions,
            sentence_errors=sum(ref[u] != hyp[u] for u in utterances),
        )


def is_installed() -> bool:
    """Whether jiwer is installed."""
    return find_spec("jiwer") is not None

"""The counts of a scored set of sentences, and their rates."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Counts:
    """The counts of a set of sentences, as sclite's raw summary has them.

    Attributes:
        sentences: Sentences (utterances) scored.
        words: Words in the reference.
        correct: Reference words recognized.
        substitutions: Reference words recognized as another word.
        deletions: Reference words without a counterpart.
        insertions: Hypothesis words without a counterpart.
        sentence_errors: Sentences with at least one error.
    """

    sentences: int
    words: int
    correct: int
    substitutions: int
    deletions: int
    insertions: int
    sentence_errors: int

    @classmethod
    def total(cls, parts: Iterable["Counts"]) -> "Counts":
        """Return the sums of parts that have no sentence in common."""
        parts = tuple(parts)
        names = cls.__dataclass_fields__
        return cls(
            **{name: sum(getattr(part, name) for part in parts) for name in names}
        )

    @property
    def errors(self) -> int:
        """Return the number of substitutions, deletions and insertions together."""
        return self.substitutions + self.deletions + self.insertions

    @property
    def error_rate(self) -> float:
        """Return the word error rate in percent of the reference words."""
        return self.percent(self.errors)

    @property
    def sentence_error_rate(self) -> float:
        """Return the sentences with an error in percent of the sentences."""
        return 100.0 * self.sentence_errors / self.sentences

    def percent(self, count: int) -> float:
        """Return a count in percent of the reference words."""
        return 100.0 * count / self.words

    @property
    def rates(self) -> tuple[float, ...]:
        """Return Corr, Sub, Del, Ins, Err and S.Err in percent, in sclite's order."""
        return (
            self.percent(self.correct),
            self.percent(self.substitutions),
            self.percent(self.deletions),
            self.percent(self.insertions),
            self.error_rate,
            self.sentence_error_rate,
        )

"""Utterances that a model cannot decode; they end no decoding of the others."""

import sys
from dataclasses import dataclass, field

from espnet_distopt.errors import InputError, in_words

_ENOUGH = 4000  # samples; of so many, every model makes frames


@dataclass
class Undecoded:
    """The utterances that get an empty result because decoding them failed.

    An encoder finds some too short: a window of the spectrum, or the convolutions that
    subsample, need more samples.

    Attributes:
        reasons: Utterance -> what went wrong.
        longest: The length of the longest of them in samples.
    """

    reasons: dict[str, str] = field(default_factory=dict)
    longest: int = 0

    def add(self, utterance: str, samples: int, error: Exception) -> None:
        """Note an utterance, and say on stderr that it has no result, and why."""
        self.reasons[utterance] = f"{samples} samples: {in_words(error)}"
        self.longest = max(self.longest, samples)
        print(
            f"{utterance} is decoded to nothing: {self.reasons[utterance]}",
            file=sys.stderr,
            flush=True,
        )

    def check(self, total: int) -> None:
        """Refuse to go on if nothing at all was decoded, although it is long enough.

        Raises:
            InputError: All failed, so that the model or an option is at fault.
        """
        if total and len(self.reasons) == total and self.longest >= _ENOUGH:
            name, reason = next(iter(self.reasons.items()))
            raise InputError(
                f"none of {total} utterances could be decoded, the first is {name}: "
                f"{reason}"
            )

    def __str__(self) -> str:
        """Return a line that counts them and names the first, or nothing."""
        if not self.reasons:
            return ""
        name, reason = next(iter(self.reasons.items()))
        return (
            f"{len(self.reasons)} utterance(s) decoded to nothing, because decoding "
            f"failed; the first is {name}: {reason}"
        )

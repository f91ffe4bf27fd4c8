"""Which words count in conversational speech, as the Hub5 evaluations have it."""

import re
from collections.abc import Iterable, Sequence

from espnet_distopt.corpora.hub5.marks import first_alternatives

_SOUNDS = "uh um eh mm hm ah huh ha er oof hee ach eee ew %hesitation"

HESITATIONS = frozenset(_SOUNDS.split())
"""Sounds without meaning, which no recognizer is charged for."""


def is_scored(word: str) -> bool:
    """Whether a recognized word goes into the CTM that is scored.

    Kaldi's and ESPnet's recipes drop hesitations, words cut off (`wor-`) and tags
    (`[noise]`, `<unk>`): the reference has all these in brackets, as optional, so that
    a recognizer which leaves them out makes no error.
    """
    return not (
        word.lower() in HESITATIONS
        or word.endswith("-")
        or re.fullmatch(r"\[.*\]|<.*>", word)
    )


def with_periods(words: Sequence[str]) -> list[str]:
    """Write spelled letters as Hub5 references do: `i b m's` becomes `i. b. m.'s`.

    Recognizers learn them without periods, which would cost an error each. `a` and `i`
    are mostly words: `a` is taken for a letter after another (`u s a`), `i` before
    another (`i b m`).
    """
    letters = [bool(re.fullmatch("[b-hj-z]('s)?", word.lower())) for word in words]
    for n in reversed(range(len(words) - 1)):
        letters[n] |= words[n].lower() == "i" and letters[n + 1]
    for n in range(1, len(words)):
        # Not `a` after `m's`: the possessive ends what was spelled.
        inside = letters[n - 1] and len(words[n - 1]) == 1
        letters[n] |= words[n].lower() in ("a", "a's") and inside
    return [
        f"{word[0]}.{word[1:]}" if letter else word
        for word, letter in zip(words, letters, strict=True)
    ]


def plain_reference(text: str) -> list[str]:
    """The words of an STM's text for a scorer that knows no alternatives.

    Of alternatives `{ a / b }` the first is taken; what is optional, `(a)`, is left
    out; the rest as for `plain_hypothesis`.
    """
    words = re.sub(r"\([^()]*\)", " ", first_alternatives(text)).split()
    return plain_hypothesis(word for word in words if word != "@")


def plain_hypothesis(words: Iterable[str]) -> list[str]:
    """The scored ones, in lower case, without periods, hyphens read as blanks."""
    kept = (word.lower() for word in words if is_scored(word))
    kept = (word.replace(".", "").replace("-", " ") for word in kept)
    return " ".join(kept).split()

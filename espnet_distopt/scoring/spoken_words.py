"""Decides which words count in conversational speech, as the Hub5 evaluations do."""

import re
from collections.abc import Iterable, Sequence

from espnet_distopt.corpora.hub5.marks import first_alternatives

_SOUNDS = "uh um eh mm hm ah huh ha er oof hee ach eee ew %hesitation"

HESITATIONS = frozenset(_SOUNDS.split())
"""Sounds without a meaning, which are no errors of a recognizer."""


def is_scored(word: str) -> bool:
    """Tell whether a recognized word goes into the CTM that is scored.

    Kaldi's and ESPnet's recipes drop hesitations, words cut off (`wor-`) and tags
    (`[noise]`, `<unk>`). The reference has all these in brackets, as optional, so that
    it is no error to leave them out.
    """
    return not (
        word.lower() in HESITATIONS
        or word.endswith("-")
        or re.fullmatch(r"\[.*\]|<.*>", word)
    )


def with_periods(words: Sequence[str]) -> list[str]:
    """Write spelled letters as Hub5 references do: `i b m's` becomes `i. b. m.'s`.

    Recognizers learn letters without periods, and each would count as an error. `a` and
    `i` are mostly words: `a` is taken for a letter after another letter (`u s a`), and
    `i` before another letter (`i b m`).
    """
    letters = [bool(re.fullmatch("[b-hj-z]('s)?", word.lower())) for word in words]
    for n in reversed(range(len(words) - 1)):
        letters[n] |= words[n].lower() == "i" and letters[n + 1]
    for n in range(1, len(words)):
        # `a` after `m's` is a word, as the possessive ends what was spelled.
        inside = letters[n - 1] and len(words[n - 1]) == 1
        letters[n] |= words[n].lower() in ("a", "a's") and inside
    return [
        f"{word[0]}.{word[1:]}" if letter else word
        for word, letter in zip(words, letters, strict=True)
    ]


def plain_reference(text: str) -> list[str]:
    """Return the words of an STM's text for a scorer that knows no alternatives.

    The first of the alternatives `{ a / b }` is taken, optional words `(a)` are left
    out, and the rest is done as by `plain_hypothesis`.
    """
    words = re.sub(r"\([^()]*\)", " ", first_alternatives(text)).split()
    return plain_hypothesis(word for word in words if word != "@")


def plain_hypothesis(words: Iterable[str]) -> list[str]:
    """Return the words that are scored, in lower case, without periods and hyphens.

    A hyphen becomes a blank, so that a word with one becomes several.
    """
    kept = (word.lower() for word in words if is_scored(word))
    kept = (word.replace(".", "").replace("-", " ") for word in kept)
    return " ".join(kept).split()

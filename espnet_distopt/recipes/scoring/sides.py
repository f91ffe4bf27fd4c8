"""The conversation sides of a reference, and the words in each that count."""

import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from espnet_distopt.errors import InputError
from espnet_distopt.recipes.corpora.hub5.ctm import Word
from espnet_distopt.recipes.corpora.hub5.stm import (
    Reference,
    first_alternatives,
    read_stm,
)

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


_MARKUP = frozenset("(){}<>/;@*\\")


@dataclass
class ConversationSide:
    """A side: its segments in the order of time, and the words recognized in it."""

    references: list[Reference] = field(default_factory=list)
    words: list[Word] = field(default_factory=list)

    def segments(self) -> list[tuple[str, list[str]]]:
        """Return the reference text and recognized words of each scored segment.

        The rule is sclite's: a word belongs to the first segment that ends after the
        word's middle, or to the last one if none does. So words between two segments
        are insertions in the later one. The words of a segment that is not scored are
        dropped with it.
        """
        return [
            (reference.text, [word.word for word in words])
            for reference, words in zip(self.references, self._divided(), strict=True)
            if reference.judged
        ]

    def spell_letters(self) -> None:
        """Write spelled letters with a period, in the words of each segment."""
        self.words = [word for words in self._divided() for word in _spelled(words)]

    def _divided(self) -> list[list[Word]]:
        """Return the words of each segment, by the rule of `segments`."""
        found: list[list[Word]] = [[] for _ in self.references]
        ends = [reference.span.end for reference in self.references]
        for word in self.words:
            place = bisect_right(ends, word.start + word.duration / 2)
            found[min(place, len(found) - 1)].append(word)
        return found


def read_sides(stm: Path) -> dict[str, ConversationSide]:
    """Read an STM, and return its sides, as `en_4156-A`, in the order of their names.

    Raises:
        InputError: The file is no STM, or has no segment to score.
    """
    references = read_stm(stm)
    if not any(each.judged for each in references):
        raise InputError(f"{stm}: no segment to score")
    sides: dict[str, ConversationSide] = {
        each.span.side: ConversationSide() for each in references
    }
    for reference in sorted(references, key=lambda each: each.span.start):
        sides[reference.span.side].references.append(reference)
    return dict(sorted(sides.items()))


def add_words(
    sides: dict[str, ConversationSide], words: Sequence[Word], stm: Path, ctm: Path
) -> None:
    """Add the recognized words that are scored to the sides on which they were said.

    Spelled letters get a period if those of the reference have one; the words of a
    segment do not tell whether those of the next one are letters.

    Raises:
        InputError: A word lies on a side that the STM lacks, or is markup to sclite.
    """
    check_known(sides, (f"{word.file}-{word.channel}" for word in words), stm, ctm)
    names = {name.lower(): side for name, side in sides.items()}
    for word in sorted(words, key=lambda each: each.start):
        side = f"{word.file}-{word.channel}"
        if not is_scored(word.word):
            continue
        if set(word.word) & _MARKUP:
            raise InputError(
                f"{ctm}: {word.word!r} at {word.start:.2f} s on {side} is markup to "
                "sclite: expected a word"
            )
        names[side.lower()].words.append(word)
    if _have_periods(each for side in sides.values() for each in side.references):
        for each in sides.values():
            each.spell_letters()


def check_known(
    sides: Iterable[str], recognized: Iterable[str], stm: Path, ctm: Path
) -> None:
    """Check that all words are on sides that the reference has; sclite fails if not.

    Sides are named as `en_4156-A`, in any case.

    Raises:
        InputError: A word is on another side.
    """
    known = {side.lower() for side in sides}
    for side in sorted(set(recognized)):
        if side.lower() not in known:
            raise InputError(
                f"{ctm}: has words on {side}, which {stm} lacks: score against the "
                "reference of the set that was decoded"
            )


def _have_periods(references: Iterable[Reference]) -> bool:
    """Tell whether more spelled letters have a period, as in `i. b. m.`, than none."""
    with_period = without = 0
    for reference in references:
        text = reference.text.lower()
        with_period += len(re.findall(r"(?<!\S)\(?[a-z]\.", text))
        without += len(re.findall(r"(?<!\S)\(?[b-hj-z]\)?(?!\S)", text))
    return with_period > without


def _spelled(words: Sequence[Word]) -> list[Word]:
    texts = with_periods([word.word for word in words])
    return [word._replace(word=text) for word, text in zip(words, texts, strict=True)]

"""Pronunciation lexicons: `word phone phone ...` on each line, as Kaldi's lexicon.txt.

A word with several pronunciations has several lines.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from espnet_distopt.errors import InputError
from espnet_distopt.files.text import data_lines, read_text
from espnet_distopt.files.writing import write_text

SILENCE = "SIL"
"""The phone of silence and noise, which no word has."""

Pronunciation = tuple[str, ...]
Lexicon = Mapping[str, Sequence[Pronunciation]]
"""Word -> its pronunciations, each of one phone or more."""


def read_lexicon(path: Path) -> dict[str, list[Pronunciation]]:
    """Read a lexicon.

    Raises:
        InputError: The file cannot be read or has no words; a word has no phones or has
            the phone of silence, or one pronunciation twice. The message names the
            line.
    """
    lexicon: dict[str, list[Pronunciation]] = {}
    for where, line in data_lines(read_text(path), path):
        word, *phones = line.split()
        if not phones:
            raise InputError(f"{where}: {word} has no phones")
        if SILENCE in phones:
            raise InputError(
                f"{where}: {word} has the phone {SILENCE}, which stands between words"
            )
        if tuple(phones) in lexicon.setdefault(word, []):
            raise InputError(f"{where}: this pronunciation of {word} comes twice")
        lexicon[word].append(tuple(phones))
    if not lexicon:
        raise InputError(f"{path}: no words")
    return lexicon


def write_lexicon(path: Path, lexicon: Lexicon) -> None:
    """Write a lexicon, whole or not at all, sorted by word."""
    lines = (
        f"{word} {' '.join(phones)}\n"
        for word in sorted(lexicon)
        for phones in lexicon[word]
    )
    write_text(path, "".join(lines))


def phones_of(lexicon: Lexicon) -> list[str]:
    """Return all phones, silence first, and then those of the words, sorted."""
    words = {phone for each in lexicon.values() for phones in each for phone in phones}
    return [SILENCE, *sorted(words)]


def require_words(lexicon: Lexicon, words: Iterable[str], where: str) -> None:
    """Check that a lexicon has the words of a text.

    Raises:
        InputError: It lacks some; the message has `where`, their number, and the first.
    """
    missing = sorted({word for word in words if word not in lexicon})
    if missing:
        raise InputError(
            f"{where}: the lexicon lacks {len(missing)} of its words, the first is "
            f"{missing[0]!r}: add their pronunciations"
        )

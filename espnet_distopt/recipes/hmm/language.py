"""What training and decoding know of words: lexicon, HMM states, and an n-gram.

A lexicon has `word phone phone ...` on each line, as Kaldi's lexicon.txt; a word with
several pronunciations has several lines. Each phone has three states, from left to
right. A *pdf* is the number of a state's distribution, as in Kaldi. Here each state of
each phone has its own, whatever the phones beside it (a monophone system).

The directory of a language has these files:

- `lexicon.txt`: the words and their phones;
- `states.txt`: the name of each pdf, which the acoustic model has as tokens;
- `lm.arpa`: the n-gram;
- `made_with`: the order of the n-gram, and the digest of the lexicon's source.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from espnet_distopt.errors import InputError
from espnet_distopt.files.tables import read_table
from espnet_distopt.files.text import data_lines, read_bytes, read_text
from espnet_distopt.files.whole_directory import whole_directory
from espnet_distopt.files.writing import write_text
from espnet_distopt.recipes.hmm.ngram import Ngram, estimate, read_arpa, write_arpa

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


STATES = 3
"""The number of states of a phone, so that it lasts for three frames at least."""


@dataclass(frozen=True)
class PhoneStates:
    """The states of a set of phones.

    Attributes:
        phones: The phones; the first is silence.
    """

    phones: tuple[str, ...]

    @cached_property
    def _first(self) -> dict[str, int]:
        return {phone: STATES * n for n, phone in enumerate(self.phones)}

    def __len__(self) -> int:
        return STATES * len(self.phones)

    def pdfs(self, phone: str) -> range:
        """Return the pdfs of a phone's states, in their order.

        Raises:
            InputError: There is no such phone.
        """
        first = self._first.get(phone)
        if first is None:
            raise InputError(f"phone {phone!r} has no states: the lexicon has changed")
        return range(first, first + STATES)

    def names(self) -> list[str]:
        """Return a name for each pdf, such as `SIL_0`."""
        return [f"{phone}_{state}" for phone in self.phones for state in range(STATES)]


def write_states(path: Path, states: PhoneStates) -> None:
    """Write the names of the pdfs, one a line, whole or not at all."""
    write_text(path, "".join(f"{name}\n" for name in states.names()))


def read_states(path: Path) -> PhoneStates:
    """Read the names of the pdfs.

    Raises:
        InputError: The file cannot be read, or its lines are not the states of silence
            and of other phones, each phone's in their order.
    """
    lines = list(data_lines(read_text(path), path))
    phones = [line.rpartition("_")[0] for _, line in lines[::STATES]]
    states = PhoneStates(tuple(phones))
    for (where, line), name in zip(lines, states.names(), strict=False):
        if line != name:
            raise InputError(f"{where}: expected the state {name}, got {line!r}")
    if len(lines) != len(states) or phones[:1] != [SILENCE]:
        raise InputError(
            f"{path}: expected {STATES} states of {SILENCE}, and of each other phone"
        )
    if len(set(phones)) < len(phones):
        raise InputError(f"{path}: a phone comes twice")
    return states


STATES_FILE = "states.txt"
LEXICON = "lexicon.txt"
ARPA = "lm.arpa"
MADE_WITH = "made_with"


@dataclass(frozen=True)
class Language:
    """A lexicon, the states of its phones, and an n-gram."""

    lexicon: dict[str, list[Pronunciation]]
    states: PhoneStates
    ngram: Ngram


def make_language(source: Path, text: Path, order: int, out: Path) -> Language:
    """Write the directory of a language, whole or not at all, and return the language.

    The lexicon `source` has the words of the text at least, a `text` file of Kaldi.

    Raises:
        InputError: A file cannot be read, a word has no pronunciation, there are no
            words, or the order is below 1.
    """
    digest = hashlib.sha256(read_bytes(source)).hexdigest()
    lexicon, texts = read_lexicon(source), read_table(text, str)
    sentences = [text.split() for text in texts.values()]
    require_words(lexicon, (word for each in sentences for word in each), str(text))
    model = estimate(sentences, lexicon, order)
    states = PhoneStates(tuple(phones_of(lexicon)))
    with whole_directory(out, marker=STATES_FILE) as new:
        write_lexicon(new / LEXICON, lexicon)
        write_states(new / STATES_FILE, states)
        write_arpa(new / ARPA, model)
        write_text(new / MADE_WITH, f"--order {order}\n--lexicon {digest}\n")
    return Language(lexicon, states, model)


def read_language(directory: Path) -> Language:
    """Read the directory of a language.

    Raises:
        InputError: One of its files is missing or malformed.
    """
    return Language(
        read_lexicon(directory / LEXICON),
        read_states(directory / STATES_FILE),
        read_arpa(directory / ARPA),
    )

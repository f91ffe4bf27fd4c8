"""The directory of a lexicon and an n-gram: what training and decoding know of words.

- `lexicon.txt`: the words and their phones;
- `states.txt`: the name of each pdf, which the acoustic model has as tokens;
- `lm.arpa`: the n-gram.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from espnet_distopt.files.whole_directory import whole_directory
from espnet_distopt.hmm.kneser_ney import estimate
from espnet_distopt.hmm.lexicon import (
    Lexicon,
    Pronunciation,
    phones_of,
    read_lexicon,
    require_words,
    write_lexicon,
)
from espnet_distopt.hmm.ngram import Ngram, read_arpa, write_arpa
from espnet_distopt.hmm.states import PhoneStates, read_states, write_states

STATES = "states.txt"
LEXICON = "lexicon.txt"
ARPA = "lm.arpa"


@dataclass(frozen=True)
class Language:
    """A lexicon, the states of its phones, and an n-gram."""

    lexicon: dict[str, list[Pronunciation]]
    states: PhoneStates
    ngram: Ngram


def make_language(
    lexicon: Lexicon, texts: Mapping[str, str], order: int, out: Path, where: str
) -> Ngram:
    """Write the directory of a language, whole or not at all, and return its n-gram.

    Args:
        lexicon: The pronunciations, of the words of the texts at least.
        texts: Utterance -> its words; the n-gram is estimated from them.
        order: The order of the n-gram.
        out: The directory to write.
        where: The file of the texts, for messages.

    Raises:
        InputError: A word has no pronunciation, there are no words, or the order is
            below 1.
    """
    sentences = [text.split() for text in texts.values()]
    require_words(lexicon, (word for each in sentences for word in each), where)
    model = estimate(sentences, lexicon, order)
    with whole_directory(out, marker=STATES) as new:
        write_lexicon(new / LEXICON, lexicon)
        write_states(new / STATES, PhoneStates(tuple(phones_of(lexicon))))
        write_arpa(new / ARPA, model)
    return model


def read_language(directory: Path) -> Language:
    """Read the directory of a language.

    Raises:
        InputError: One of its files is missing or malformed.
    """
    return Language(
        read_lexicon(directory / LEXICON),
        read_states(directory / STATES),
        read_arpa(directory / ARPA),
    )

"""The directory of a lexicon and an n-gram: what training and decoding know of words.

- `lexicon.txt`: the words and their phones;
- `states.txt`: the name of each pdf, which the acoustic model has as tokens;
- `lm.arpa`: the n-gram;
- `made_with`: the order of the n-gram, and the digest of the lexicon's source.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from espnet_distopt.corpora.kaldi.tables import read_table
from espnet_distopt.files.text import read_bytes
from espnet_distopt.files.whole_directory import whole_directory
from espnet_distopt.files.writing import write_text
from espnet_distopt.hmm.kneser_ney import estimate
from espnet_distopt.hmm.lexicon import (
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
MADE_WITH = "made_with"


@dataclass(frozen=True)
class Language:
    """A lexicon, the states of its phones, and an n-gram."""

    lexicon: dict[str, list[Pronunciation]]
    states: PhoneStates
    ngram: Ngram


def make_language(source: Path, text: Path, order: int, out: Path) -> Language:
    """Write the directory of a language, whole or not at all, and return the language.

    Args:
        source: The lexicon, which has the words of the text at least.
        text: Kaldi's `text` file, from which the n-gram is estimated.
        order: The order of the n-gram.
        out: The directory to write.

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
    with whole_directory(out, marker=STATES) as new:
        write_lexicon(new / LEXICON, lexicon)
        write_states(new / STATES, states)
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
        read_states(directory / STATES),
        read_arpa(directory / ARPA),
    )

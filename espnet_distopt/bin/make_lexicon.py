"""Make the lexicon of a text from a dictionary, or from the speech synthesizer."""

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path

from espnet_distopt.bin.options import add_max_lost
from espnet_distopt.corpora.kaldi.tables import read_table
from espnet_distopt.corpora.ldc.acronyms import find_acronyms, spoken_letter
from espnet_distopt.corpora.ldc.losses import Losses
from espnet_distopt.corpora.ldc.ms98 import (
    Entry,
    plain_word,
    plain_words,
    read_dictionary,
)
from espnet_distopt.corpora.mini_swbd.pronunciations import pronounce
from espnet_distopt.errors import InputError, one_line_errors
from espnet_distopt.files.writing import explain_failed_write
from espnet_distopt.hmm.lexicon import Pronunciation, write_lexicon

SPOKEN_NOISE = "SPN"
"""The phone of words without a known pronunciation, such as parts of words."""


def get_parser() -> argparse.ArgumentParser:
    """Return the command's parser."""
    parser = argparse.ArgumentParser(
        description="Write 'word phone phone ...' for each word of some texts. Words "
        f"that a dictionary lacks get the phone {SPOKEN_NOISE}, and are counted. "
        "Letters get their names, because the texts of Switchboard spell acronyms out.",
    )
    parser.add_argument(
        "--text",
        type=Path,
        action="append",
        required=True,
        help="Kaldi `text` file (repeatable)",
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--dictionary", type=Path, help="in the form of MS98's sw-ms98-dict.text"
    )
    source.add_argument(
        "--synthesizer", action="store_true", help="espeak-ng's phonemes of each word"
    )
    add_max_lost(parser, "the dictionary's lines", "they are bad")
    parser.add_argument("--out", type=Path, required=True, help="file to write")
    return parser


@one_line_errors
def main(cmd: Sequence[str] | None = None) -> None:
    """Write the lexicon, and print its size."""
    args = get_parser().parse_args(cmd)
    texts = [text for path in args.text for text in read_table(path, str).values()]
    words = sorted({word for text in texts for word in text.split()})
    if not words:
        raise InputError(f"{args.text[0]}: no words")
    if args.synthesizer:
        lexicon = pronounce(words)
    else:
        lexicon = _look_up(args.dictionary, words, args.max_lost)
    with explain_failed_write(args.out):
        args.out.parent.mkdir(parents=True, exist_ok=True)
        write_lexicon(args.out, lexicon)
    unknown = sum(phones == [(SPOKEN_NOISE,)] for phones in lexicon.values())
    print(f"{args.out}: {len(lexicon)} words, {unknown} of them {SPOKEN_NOISE}")


def _look_up(
    path: Path, words: Sequence[str], max_lost: float
) -> dict[str, list[Pronunciation]]:
    losses = Losses("lines of the dictionary", max_lost)
    entries = read_dictionary(path, losses)
    losses.check(print)
    acronyms = find_acronyms(entries)
    # Switchboard's texts spell acronyms out, so that `US` is no pronunciation of `us`;
    # Fisher's have some, which their transcribers did not spell.
    whole = [entry for entry in entries if plain_word(entry.word) not in acronyms]
    known = _pronunciations(entries) | _pronunciations(whole)
    return {word: _with_letter(word, known.get(word, [])) for word in words}


def _pronunciations(entries: Iterable[Entry]) -> dict[str, list[Pronunciation]]:
    known: dict[str, list[Pronunciation]] = {}
    for entry in entries:
        # Marks of variants and of coinages are not part of a word.
        for word in plain_words(entry.word):
            found = known.setdefault(word, [])
            if entry.phones not in found:
                found.append(entry.phones)
    return known


def _with_letter(word: str, known: list[Pronunciation]) -> list[Pronunciation]:
    """Return what a dictionary knows of a word, and the letter's name if it is one."""
    letter = spoken_letter(word)
    # The article `a` is a letter, too, but `as` and `is` are hardly ever two of them.
    if letter is None or letter in known or (known and len(word) > 1):
        return known or [(SPOKEN_NOISE,)]
    return [*known, letter]


if __name__ == "__main__":
    main()

"""Finds the acronyms of Switchboard: words that are spoken letter by letter.

Switchboard's transcripts write `IBM`, and Fisher's `i._b._m.`; the recipes of Kaldi and
ESPnet turn both into `i b m`. A word of the MS98 dictionary is an acronym if its
pronunciation is that of its letters, one after another. So `IBM` and `TV's` are
acronyms, `NASA` and `it` are not, and `IT` is one where the dictionary spells it so.
"""

from collections.abc import Sequence
from pathlib import Path

from espnet_distopt.corpora.ldc.losses import Losses
from espnet_distopt.corpora.ldc.ms98 import Entry, plain_word, read_dictionary

LETTER_PHONES = {
    name[0]: tuple(name[2:].split())
    for name in (
        *("a ey", "b b iy", "c s iy", "d d iy", "e iy", "f eh f", "g jh iy"),
        *("h ey ch", "i ay", "j jh ey", "k k ey", "l eh l", "m eh m", "n eh n"),
        *("o ow", "p p iy", "q k y uw", "r aa r", "s eh s", "t t iy", "u y uw"),
        *("v v iy", "w d ah b ax l y uw", "x eh k s", "y w ay", "z z iy"),
    )
}
"""The name of each letter, in the phones of the dictionary."""


def read_acronyms(dictionary: Path, losses: Losses | None = None) -> dict[str, str]:
    """Find the acronyms of the MS98 dictionary and how they are spelled out.

    Args:
        dictionary: The path of `sw-ms98-dict.text`.
        losses: Gets its bad lines; None makes them an error.

    Returns:
        The spelling of each acronym, as `find_acronyms` returns it.

    Raises:
        InputError: The dictionary is missing, or has a bad line and none may be left
            out.
    """
    return find_acronyms(read_dictionary(dictionary, losses))


def find_acronyms(entries: Sequence[Entry]) -> dict[str, str]:
    """Return how the acronyms among the words of a dictionary are spelled out.

    Case matters: `US` is an acronym, and `us` is not. The result also has an acronym in
    lower case (`ibm`) if the dictionary has no word of that spelling.

    Returns:
        The spelling of each acronym: `IBM` -> `i b m`, `IBM's` -> `i b m's`,
        `VCRs` -> `v c rs`. Single letters are left out, as they spell themselves.
    """
    words = [(plain_word(entry.word), entry.phones) for entry in entries]
    acronyms = {
        word: spelled for word, phones in words if (spelled := _spell(word, phones))
    }
    written = {word for word, _ in words}
    lower = {word.lower(): spelled for word, spelled in acronyms.items()}
    unused = {word: spelled for word, spelled in lower.items() if word not in written}
    return acronyms | unused


def spoken_letter(word: str) -> tuple[str, ...] | None:
    """Return the phones of a letter's name, with `'s` or `s` behind it if it has one.

    Args:
        word: A word in lower case: `w`, `w's` or `ws`.

    Returns:
        The phones, or None if the word is none of these.
    """
    name = LETTER_PHONES.get(word[:1])
    if name is None or word[1:] not in ("", "'s", "s"):
        return None
    return name + (_s_behind(name[-1]) if word[1:] else ())


def _s_behind(phone: str) -> tuple[str, ...]:
    """Return how the ending `s` is spoken behind the last phone of a letter's name."""
    if phone in ("s", "ch"):
        return ("ih", "z")
    return ("s",) if phone == "f" else ("z",)


def _spell(word: str, phones: tuple[str, ...]) -> str:
    """Return `i b m's` for `IBM's` if that is how it is spoken, else an empty text."""
    letters, ending = word, ""
    for suffix in ("'s", "s"):
        if word.endswith(suffix) and phones[-1] in ("s", "z"):
            letters, ending = word.removesuffix(suffix), suffix
            phones = phones[:-1]
            break
    letters = letters.lower()
    if len(letters) < 2 or not (letters.isascii() and letters.isalpha()):
        return ""
    named = tuple(phone for letter in letters for phone in LETTER_PHONES[letter])
    return " ".join(letters) + ending if phones == named else ""

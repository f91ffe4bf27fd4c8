"""Switchboard transcripts in the form of the MS98 release (Mississippi State, 1998).

The release has a transcript for each side of a conversation, with a segment on each
line: `sw2001A-ms98-a-0002 0.977625 11.561375 hi um yeah i'd like to talk`. Times are in
seconds. One dictionary is for all conversations (`IBM ay b iy eh m`). The times of
words, which the release has, too, are not read.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from espnet_distopt.errors import InputError
from espnet_distopt.files.text import data_lines, read_text
from espnet_distopt.recipes.corpora.ldc.discs import Losses

DICTIONARY = "sw-ms98-dict.text"

_TIME = r"(\d+\.?\d*)"
_LINE = re.compile(
    rf"sw(\d{{4}}[AB])-ms98-a-\d{{4}}\s+{_TIME}\s+{_TIME}\s+(\S.*)", re.IGNORECASE
)

# Kaldi's swbd1_map_words.pl has the same rules; it applies each once, in this order.
_WORD_RULES = [
    (re.compile(pattern, re.IGNORECASE), replacement)
    for pattern, replacement in (
        (r"^\[laughter-(.+)\](-?)$", r"\1\2"),  # [laughter-story]
        (r"^\[(.+)/.+\](-?)$", r"\1\2"),  # [said/meant], even [sa[id]-/meant]
        (r"^-?\[[^][]+\](.+)$", r"-\1"),  # -[an]y: its start was not said
        (r"^(.+)\[[^][]+\]-?$", r"\1-"),  # ab[solute]-: its end was not said
        (r"([^][]+)\[.+\]$", r"\1"),  # ex[specially]-/especially], a slip
        (r"^\{(.+)\}$", r"\1"),  # {yuppiedom}, a coinage
        (r"([a-z])\[[^][]+\]([a-z])", r"\1-\2"),  # ammu[n]it-: a gap inside
        (r"_\d", ""),  # them_1, one of several pronunciations
    )
]
_ASIDE = re.compile(r"<[be]_aside>", re.IGNORECASE)
_MARK = re.compile(r"\[[^][]*\]")


@dataclass(frozen=True)
class Ms98Segment:
    """A stretch of one channel: start and end in seconds, words and marks.

    `where` is the place `file:line` that it was read from, for messages.
    """

    start: float
    end: float
    text: str
    where: str = field(default="", compare=False)


@dataclass(frozen=True)
class Entry:
    """A word of the dictionary, in its own case, and its phones."""

    word: str
    phones: tuple[str, ...]


def _transcript_path(conversation: str, side: str) -> Path:
    """Return where the release keeps a transcript, as `20/2001/sw2001A-...`."""
    name = f"sw{conversation}{side}-ms98-a-trans.text"
    return Path(conversation[:2], conversation, name)


def write_transcript(
    root: Path, conversation: str, side: str, segments: Iterable[Ms98Segment]
) -> None:
    """Write one side's transcript below `root`, at its place in the release."""
    lines = (
        f"sw{conversation}{side}-ms98-a-{number:04d} {each.start:.6f} {each.end:.6f} "
        f"{each.text}"
        for number, each in enumerate(segments, start=1)
    )
    _write_lines(root / _transcript_path(conversation, side), lines)


def write_dictionary(root: Path, entries: Iterable[Entry]) -> None:
    """Write the dictionary into `root`, after a comment such as the release has."""
    lines = (f"{entry.word} {' '.join(entry.phones)}" for entry in entries)
    _write_lines(root / DICTIONARY, ("# word, phones", "", *lines))


def _write_lines(path: Path, lines: Iterable[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(f"{line}\n" for line in lines)
    path.write_text(text, encoding="utf-8", newline="\n")


def read_transcript(path: Path, losses: Losses | None = None) -> list[Ms98Segment]:
    """Read the transcript of the side that the file's name tells.

    `losses` gets the lines that are not `id start end text`, or belong to another side;
    None makes them an error.

    Raises:
        InputError: The file can't be read, or a line is bad and none may be left out;
            the message names file and line.
    """
    losses = losses or Losses("lines")
    side = path.name[2:7]
    segments: list[Ms98Segment] = []
    for where, line in data_lines(read_text(path), path, comment="#"):
        try:
            segments.append(_parse_line(line.strip(), where, side))
        except InputError as error:
            losses.add(error)
    return segments


def _parse_line(line: str, where: str, side: str) -> Ms98Segment:
    found = _LINE.fullmatch(line)
    if found is None:
        raise InputError(
            f"{where}: expected 'sw2001A-ms98-a-0001 start end text', got {line[:60]!r}"
        )
    if found[1].upper() != side.upper():
        raise InputError(
            f"{where}: expected a segment of sw{side}, got one of sw{found[1]}"
        )
    start, end = float(found[2]), float(found[3])
    if end < start:
        raise InputError(f"{where}: ends at {end} s, before its start at {start} s")
    return Ms98Segment(start, end, found[4], where)


def read_dictionary(path: Path, losses: Losses | None = None) -> list[Entry]:
    """Read the dictionary; comments (`#`) and blank lines are skipped.

    `losses` gets the lines that are not a word and its phones; None makes them an
    error.

    Raises:
        InputError: The file can't be read or has no entries, or a line is bad and none
            may be left out; the message names file and line.
    """
    losses = losses or Losses("lines")
    entries: list[Entry] = []
    for where, line in data_lines(read_text(path), path, comment="#"):
        word, *phones = line.split()
        if not phones or not all(phone.isalpha() for phone in phones):
            losses.add(
                f"{where}: expected a word and its phones, as in 'IBM ay b iy eh m', "
                f"got {line[:60]!r}"
            )
            continue
        entries.append(Entry(word, tuple(phones)))
        losses.kept += 1
    if not entries:
        raise InputError(
            f"{path}: only comments, expected a word and its phones a line"
        )
    return entries


def plain_words(text: str, acronyms: Mapping[str, str] | None = None) -> list[str]:
    """Return the words of a segment, in lower case and without marks.

    The result is the training text of Kaldi's and ESPnet's recipes. [silence] and the
    marks of asides are dropped, while the words of asides stay. A word spoken with a
    laugh (`[laughter-story]`), a coinage (`{alrighty}`) and a variant (`them_1`) become
    the plain word. `[said/meant]` becomes what was said. A partial word keeps what was
    said of it and gets a hyphen: `th[at]-` becomes `th-`, and `-[th]is` becomes `-is`.
    Dots are removed.

    Two things differ from these recipes on purpose. [noise], [vocalized-noise] and
    [laughter] are dropped, too, because this project's models transcribe words. And a
    word with a gap, `ammu[n]it-`, becomes `ammu-it-`, as a comment of Kaldi's says;
    Kaldi's script makes `ammn-t-` of it.

    The acronyms are words to spell out (`IBM` -> `i b m`), in the case of the text.
    """
    acronyms = acronyms or {}
    words = (plain_word(token) for token in _ASIDE.sub(" ", text).split())
    spelled = " ".join(
        acronyms.get(word, word) for word in words if not _MARK.fullmatch(word)
    )
    return spelled.lower().replace("._", " ").replace(".", "").split()


@cache
def plain_word(token: str) -> str:
    """Return a word without the marks around and inside it, in its own case."""
    if token.isalpha():
        return token
    for pattern, replacement in _WORD_RULES:
        token = pattern.sub(replacement, token, count=1)
    return token


# Finds the acronyms of Switchboard: words that are spoken letter by letter.
#
# Switchboard's transcripts write `IBM`, and Fisher's `i._b._m.`; the recipes of Kaldi
# and ESPnet turn both into `i b m`. A word of the MS98 dictionary is an acronym if its
# pronunciation is that of its letters, one after another. So `IBM` and `TV's` are
# acronyms, `NASA` and `it` are not, and `IT` is one where the dictionary spells it so.

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

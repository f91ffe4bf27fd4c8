"""Chooses the worst lines of a scored set, for reports, and keeps them in a file.

The command `error_sheet` shows more of them, with their images.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from espnet_distopt.errors import InputError
from espnet_distopt.files.writing import write_text
from espnet_distopt.recipes.scoring.scorers import plain_segments
from espnet_distopt.recipes.scoring.sides import ConversationSide
from espnet_distopt.recipes.scoring.trn import Transcripts

FILE = "worst.json"
"""The name of the file, beside `result.json`."""

MOST = 10
"""The most lines of a set that are kept: a report is not read further."""


@dataclass(frozen=True)
class WorstLine:
    """An utterance, or a line of text, that was recognized badly.

    Attributes:
        id: Its id, or its conversation side and start in seconds.
        errors: The number of words, or characters, that are wrong: the fewest
            substitutions, deletions and insertions that explain the hypothesis.
        length: The number of words, or characters, of the reference.
    """

    id: str
    errors: int
    length: int
    ref: str
    hyp: str


def worst_lines(
    ref: Transcripts, hyp: Transcripts, *, characters: bool = False, most: int = MOST
) -> list[WorstLine]:
    """Choose the lines with the most errors; equal ones are sorted by id.

    Lines without an error are left out. The cost is the product of the lengths of
    reference and hypothesis, for each line that is not all right.

    `ref` and `hyp` have the same lines. Characters are counted with the blanks between
    the words.
    """
    lines = []
    for name in ref:
        if ref[name] != hyp[name]:
            texts = " ".join(ref[name]), " ".join(hyp[name])
            right, found = texts if characters else (ref[name], hyp[name])
            lines.append(WorstLine(name, _errors(right, found), len(right), *texts))
    return sorted(lines, key=lambda line: (-line.errors, line.id))[:most]


def worst_segments(sides: Mapping[str, ConversationSide]) -> list[WorstLine]:
    """Choose the worst segments of conversation sides, by words of normalised text.

    The errors are those of the cross-check by jiwer: they may differ by
    some from those that hubscr counts, which knows alternatives and optional words.
    """
    ref: Transcripts = {}
    hyp: Transcripts = {}
    for side, conversation in sides.items():
        for start, right, found in plain_segments(conversation):
            name = f"{side} {start:.2f}"
            ref[name], hyp[name] = right, found
    return worst_lines(ref, hyp)


def write_worst(directory: Path, lines: Iterable[WorstLine]) -> None:
    """Write the lines into an existing directory."""
    content = [asdict(line) for line in lines]
    text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    write_text(directory / FILE, text)


def read_worst(directory: Path) -> list[WorstLine]:
    """Read the lines; a set whose CTM was scored as it is has none.

    Raises:
        InputError: The file is damaged.
    """
    path = directory / FILE
    if not path.exists():
        return []
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return [WorstLine(**each) for each in content]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{path}: not the worst lines of a set ({error!r}): score again"
        ) from None


def _errors(ref: Sequence[str], hyp: Sequence[str]) -> int:
    """Return the edit distance, by one row of its table at a time."""
    row = list(range(len(hyp) + 1))
    for number, right in enumerate(ref, start=1):
        diagonal, row[0] = row[0], number
        for place, found in enumerate(hyp, start=1):
            change = diagonal + (right != found)
            diagonal = row[place]
            row[place] = min(change, diagonal + 1, row[place - 1] + 1)
    return row[-1]

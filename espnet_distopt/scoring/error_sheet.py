"""Chooses the worst lines of a decoding, and aligns them by character, as text.

error_sheet_picture.py draws the same below the images of the lines.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from espnet_distopt.errors import InputError
from espnet_distopt.scoring.jiwer_counts import align_characters
from espnet_distopt.scoring.trn import Transcripts

MOST = 100
"""The most lines of a sheet: nobody looks at more, and no picture is so high."""

_GAP = "*"


@dataclass(frozen=True)
class Column:
    """A character of the reference and its counterpart; one of them may be empty."""

    ref: str
    hyp: str

    @property
    def mark(self) -> str:
        """Return S (substituted), D (deleted), I (inserted), or a blank for right."""
        if self.ref == self.hyp:
            return " "
        if not self.hyp:
            return "D"
        return "S" if self.ref else "I"


@dataclass(frozen=True)
class WrongLine:
    """A line with errors: its id, and its aligned characters."""

    id: str
    columns: Sequence[Column]

    @property
    def errors(self) -> int:
        """Return the number of wrong characters."""
        return sum(column.mark != " " for column in self.columns)

    @property
    def characters(self) -> int:
        """Return the number of characters of the reference."""
        return sum(bool(column.ref) for column in self.columns)

    @property
    def heading(self) -> str:
        """Return the id, and how much is wrong."""
        errors = "1 error" if self.errors == 1 else f"{self.errors} errors"
        return f"{self.id}: {errors} in {self.characters} characters"


@dataclass(frozen=True)
class Sheet:
    """The worst lines, the worst first.

    Attributes:
        worst: The lines.
        wrong: Number of lines with an error.
        total: Number of all lines.
    """

    worst: Sequence[WrongLine]
    wrong: int
    total: int

    @property
    def heading(self) -> str:
        """Return how many lines are wrong, and how many of them are in the sheet."""
        heading = f"{self.wrong} of {self.total} lines have errors"
        if self.wrong:
            heading += f"; the {len(self.worst)} with the most wrong characters"
        return heading

    def to_text(self) -> str:
        """Return each line's reference, hypothesis, and marks S, D, I below."""
        parts = [f"{self.heading}\n"]
        for rank, line in enumerate(self.worst, start=1):
            ref = "".join(column.ref or _GAP for column in line.columns)
            hyp = "".join(column.hyp or _GAP for column in line.columns)
            marks = "".join(column.mark for column in line.columns)
            rows = [f"{rank}. {line.heading}", f"ref  {ref}", f"hyp  {hyp}"]
            parts.append("\n".join([*rows, f"     {marks}".rstrip()]) + "\n")
        return "\n".join(parts)


def worst_lines(ref: Transcripts, hyp: Transcripts, most: int) -> Sheet:
    """Choose the lines with the most wrong characters, and sort equal ones by id.

    Args:
        ref: The words of each line.
        hyp: The words that were read in each of these lines.
        most: The number of lines to choose.

    Raises:
        InputError: `most` is less than 1 or more than a sheet can have, or jiwer is not
            installed.
    """
    if not 1 <= most <= MOST:
        raise InputError(f"--most {most}: expected a number from 1 to {MOST}")
    ids = [line for line in sorted(ref) if ref[line] != hyp[line]]
    pairs = [(" ".join(ref[line]), " ".join(hyp[line])) for line in ids]
    lines = [
        WrongLine(line, columns)
        for line, columns in zip(ids, align(pairs), strict=True)
    ]
    worst = sorted(lines, key=lambda line: (-line.errors, line.id))[:most]
    return Sheet(worst, len(lines), len(ref))


def align(pairs: Sequence[tuple[str, str]]) -> list[list[Column]]:
    """Align references and hypotheses with the fewest errors, by character.

    >>> [(column.ref, column.hyp) for column in align([("ab", "b")])[0]]
    [('a', ''), ('b', 'b')]

    Raises:
        InputError: jiwer is not installed.
    """
    if not pairs:
        return []
    refs, hyps = zip(*pairs, strict=True)
    chunks_of = align_characters(refs, hyps).alignments
    aligned = []
    for (ref, hyp), chunks in zip(pairs, chunks_of, strict=True):
        columns: list[Column] = []
        for chunk in chunks:
            right = ref[chunk.ref_start_idx : chunk.ref_end_idx]
            read = hyp[chunk.hyp_start_idx : chunk.hyp_end_idx]
            columns += [
                Column(right[n : n + 1], read[n : n + 1])
                for n in range(max(len(right), len(read)))
            ]
        aligned.append(columns)
    return aligned

"""STM files of a NIST Hub5 evaluation, which tell the scorer what is said.

Each line is `file channel speaker start end <labels> text`, with times in seconds; the
labels may be missing. Lines that start with `;;` are comments.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from espnet_distopt.corpora.hub5.marks import IGNORED, check_marks
from espnet_distopt.corpora.hub5.pem import Span, check_spans, format_span, parse_span
from espnet_distopt.errors import InputError
from espnet_distopt.files.text import data_lines, read_text


@dataclass(frozen=True)
class Reference:
    """A line of an STM: its span, its labels (as `O,SWB`), and its text with marks."""

    span: Span
    labels: str
    text: str

    @property
    def judged(self) -> bool:
        """Whether the segment is scored, rather than marked as ignored."""
        return IGNORED not in self.text.lower().split()


def read_stm(path: Path, log: Callable[[str], None] = print) -> list[Reference]:
    """Read an STM.

    Args:
        path: The file.
        log: Called with a warning if segments of a side overlap.

    Raises:
        InputError: The file is bad in one of the ways that `read_pem` names, or the
            marks of a text are not what SCTK understands.
    """
    return parse_stm(read_text(path), path, log)


def parse_stm(
    text: str, path: Path, log: Callable[[str], None] = print
) -> list[Reference]:
    """Read the text of an STM, whose lines must be those of the file.

    Args:
        text: The text of the whole file.
        path: The file that messages name.
        log: Called with a warning if segments of a side overlap.

    Raises:
        InputError: The text is bad in one of the ways that `read_stm` names.
    """
    references = [
        _reference(line.split(), where) for where, line in data_lines(text, path)
    ]
    check_spans(path, [reference.span for reference in references], log)
    return references


def check_labels(stm: str, references: Iterable[Reference]) -> None:
    """Check that an STM declares the labels it uses; `sclite` fails where it doesn't.

    Args:
        stm: The whole text of the STM.
        references: The lines to check.

    Raises:
        InputError: A label has no line `;; LABEL "SWB" ...`.
    """
    declared = {name.lower() for name in re.findall(r';;\s*LABEL\s+"([^"]*)"', stm)}
    for reference in references:
        for label in filter(None, reference.labels.split(",")):
            if label.lower() not in declared:
                raise InputError(
                    f"{reference.span.where}: label {label} is not declared by a line "
                    f';; LABEL "{label}" "name" "description"'
                )


def write_stm(path: Path, header: str, references: Iterable[Reference]) -> None:
    """Write a header of comments and the lines of an STM, whose speakers are sides."""
    lines = [f"{_format_reference(reference)}\n" for reference in references]
    path.write_text(header + "".join(lines), encoding="utf-8")


def _format_reference(reference: Reference) -> str:
    labels = f"<{reference.labels}> " if reference.labels else ""
    return f"{format_span(reference.span)} {labels}{reference.text}".rstrip()


def _reference(fields: list[str], where: str) -> Reference:
    span = parse_span(fields[:5], where)
    rest = fields[5:]
    labels = ""
    if rest and rest[0].startswith("<"):
        labels = rest.pop(0)
        if not re.fullmatch("<[^<>]+>", labels):
            raise InputError(f"{where}: expected labels like <O,SWB>, got {labels}")
    check_marks(rest, where)
    return Reference(span, labels[1:-1], " ".join(rest))

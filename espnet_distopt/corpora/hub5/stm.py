"""STM files of a NIST Hub5 evaluation: what is said, for the scorer.

Each line is `file channel speaker start end <labels> text`, times in seconds; the
labels may be missing. Lines that start with `;;` are comments.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from espnet_distopt.corpora.hub5.marks import check_marks
from espnet_distopt.corpora.hub5.pem import Span, check_spans, format_span, parse_span
from espnet_distopt.errors import InputError
from espnet_distopt.files.text import data_lines, read_text


@dataclass(frozen=True)
class Reference:
    """A line of an STM: where, which subset (`O,SWB`), and the text with its marks."""

    span: Span
    labels: str
    text: str


def read_stm(path: Path) -> list[Reference]:
    """Read an STM.

    Raises:
        InputError: as for a PEM, or a text's marks don't fit each other.
    """
    return parse_stm(read_text(path), path)


def parse_stm(text: str, path: Path) -> list[Reference]:
    """Read the text of an STM, in which line breaks are where the file has them.

    Args:
        text: of the whole file.
        path: named in errors.

    Raises:
        InputError: see `read_stm`.
    """
    references = [
        _reference(line.split(), where) for where, line in data_lines(text, path)
    ]
    check_spans(path, [reference.span for reference in references])
    return references


def check_labels(stm: str, references: Iterable[Reference]) -> None:
    """Check that an STM declares the labels it uses, for `sclite` ends without.

    Args:
        stm: its whole text.
        references: its lines, or those of them to check.

    Raises:
        InputError: a label has no line `;; LABEL "SWB" ...`.
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
    """Write an STM after a header of comment lines; the speaker is the side."""
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

"""STM files of NIST's Hub5 evaluations, which tell the scorer what is said.

Each line of an STM is `file channel speaker start end <labels> text`, with times in
seconds; the labels may be missing. Lines that start with `;;` are comments.

Marks in the text tell the scorer what to forgive. A recognizer may leave out `(word)`.
Each of the alternatives `{ one / two / @ }` is right, where `@` stands for no word. A
segment with the text `IGNORE_TIME_SEGMENT_IN_SCORING` is not scored.
"""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from operator import attrgetter
from pathlib import Path

from espnet_distopt.errors import InputError
from espnet_distopt.files.text import data_lines, read_text


def read_channel(name: str, where: str) -> str:
    """Return a channel's name in capitals: a letter, or a number.

    The scorer takes both, and does not tell small letters from capitals. Telephone
    recordings have A and B, or 1 and 2.

    Raises:
        InputError: It is neither a letter nor a number.
    """
    if not re.fullmatch("[A-Za-z]|[0-9]+", name):
        raise InputError(f"{where}: expected a channel such as A or B, got {name}")
    return name.upper()


def with_capital_channels(text: str) -> str:
    """Return the text of an STM or a CTM with its channels in capitals.

    sclite takes small letters, too. But hubscr sorts `a` behind `B`. A reference and
    recognized words that use both then differ in their order, at which sclite fails.

    >>> with_capital_channels(";; a comment\\nsw_1 a 0.5 0.1 a\\n")
    ';; a comment\\nsw_1 A 0.5 0.1 a\\n'
    """
    return re.sub(
        r"^(?!;;)([ \t]*\S+[ \t]+)([a-z])(?=[ \t])",
        lambda found: found[1] + found[2].upper(),
        text,
        flags=re.MULTILINE,
    )


IGNORED = "ignore_time_segment_in_scoring"


def reference_words(text: str) -> list[str]:
    """Return the words of a reference, for scoring without regard to its marks.

    The words are in lower case. Hesitations, `<tags>` and the mark of segments that are
    not scored are dropped; brackets are removed, and the first of the alternatives
    `{ a / b }` is taken. Spelled letters lose their periods, as in the training text:
    `I. B. M.'s` becomes `i b m's`. The STM itself keeps its marks for hub5 scoring.
    """
    text = first_alternatives(text.lower())
    words = [
        re.sub(r"[().]", "", token)
        for token in text.replace("._", " ").split()
        if not re.fullmatch(rf"\(*%hesitation\)*|<.*>|@|{IGNORED}", token)
    ]
    return [word for word in words if word]


def first_alternatives(text: str) -> str:
    """Return a text with the first of each of its alternatives.

    >>> first_alternatives("{ we are / we're } here")
    'we are  here'
    """
    return re.sub(r"\{\s*([^{}/]*)[^{}]*\}", r"\1", text)


def mend_stm(text: str) -> str:
    """Mend what SCTK rejects in the published STM: doubled brackets, marks of asides.

    The lines stay the same lines, comments stay as they are, and a text that is mended
    already does not change.
    """
    lines = text.rstrip().split("\n")
    return "".join(f"{_mend(line)}\n" for line in lines)


def _mend(line: str) -> str:
    if line.startswith(";;"):
        return line.rstrip()
    line = re.sub(r"\s*<[BE]_ASIDE>", "", line)
    return re.sub(r"\({2,}", "(", line).rstrip()


def _check_marks(words: Sequence[str], where: str) -> None:
    """Check that the marks of a text are what SCTK understands."""
    text = " ".join(words)
    if re.search(r"[()]", re.sub(r"\([^()]+\)", "", text)):
        raise InputError(f"{where}: brackets ( ) that don't pair in {text[:60]!r}")
    if re.search(r"\([^)]*[{}][^)]*\)", text):
        raise InputError(f"{where}: braces within brackets ( ) in {text[:60]!r}")
    for word in words:
        if len(word) > 1 and re.search(r"[{}]", word):
            raise InputError(
                f"{where}: expected blanks around braces, as in '{{ we are / we }}', "
                f"got {word!r}"
            )
    _check_alternatives(words, where)


def _check_alternatives(words: Sequence[str], where: str) -> None:
    # Alternatives may hold alternatives. For each open one the list tells whether it
    # has words yet.
    filled: list[bool] = []
    for word in words:
        if word == "{":
            filled.append(False)
            continue
        if word in ("}", "/"):
            if not filled:
                raise InputError(f"{where}: '{word}' without '{{' before it")
            if not filled[-1]:
                raise InputError(
                    f"{where}: an empty alternative; write '@' for nothing"
                )
            filled[-1] = False
            if word == "/":
                continue
            filled.pop()
        if filled:
            filled[-1] = True
    if filled:
        raise InputError(f"{where}: '{{' without '}}' after it")


# Rounding may let a segment end a little after the next one starts. That is harmless,
# as the scorer places each word by its midpoint. With a larger overlap it gives words
# of one segment to the other.
_OVERLAP = 0.5


@dataclass(frozen=True)
class Span:
    """A stretch of one channel of a recording; start and end are in seconds.

    The channel is A or B; a capital letter or a number in general. `where` is the place
    `file:line` that it was read from, for messages.
    """

    file: str
    channel: str
    start: float
    end: float
    where: str = field(default="", compare=False)

    @property
    def side(self) -> str:
        """Return the conversation side, such as `en_4156-A`."""
        return f"{self.file}-{self.channel}"

    @property
    def utterance(self) -> str:
        """Return the utterance id, as `en_4156-A_030185-030248`, in centiseconds.

        The times are cut off, not rounded, as in the ids of Kaldi and ESPnet.
        """
        return f"{self.side}_{int(self.start * 100):06d}-{int(self.end * 100):06d}"


def _parse_span(fields: list[str], where: str) -> Span:
    """Return the span that the fields `file channel speaker start end` describe."""
    if len(fields) < 5:
        raise InputError(
            f"{where}: expected 'file channel speaker start end', got "
            f"{' '.join(fields)[:60]!r}"
        )
    file, channel, _, start, end = fields
    channel = read_channel(channel, where)
    try:
        span = Span(file, channel, float(start), float(end), where)
    except ValueError:
        raise InputError(
            f"{where}: expected start and end in seconds, got {start} {end}"
        ) from None
    if not 0 <= span.start < span.end < math.inf:
        raise InputError(f"{where}: expected 0 <= start < end, got {start} {end}")
    return span


def check_overlaps(spans: Iterable[Span], log: Callable[[str], None]) -> None:
    """Check that no two segments of a side are the same, or overlap by much.

    Raises:
        InputError: Two are the same; the message names the places of both.
    """
    ordered = sorted(spans, key=attrgetter("side", "start", "end"))
    overlaps: list[str] = []
    for before, span in pairwise(ordered):
        if before.side != span.side:
            continue
        if before.utterance == span.utterance:
            raise InputError(f"{span.where}: {span.utterance} is at {before.where} too")
        if span.start < before.end - _OVERLAP or span.end <= before.end:
            overlaps.append(
                f"{span.where}: starts at {span.start} s, but the segment at "
                f"{before.where} of the same side ends at {before.end} s"
            )
    if overlaps:
        more = f" ({len(overlaps)} such segments)" if len(overlaps) > 1 else ""
        log(f"warning: {overlaps[0]}{more}: the scorer may mix up their words")


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

    Raises:
        InputError: The file can't be read, is empty or not UTF-8; a line is malformed,
            or its marks are not what SCTK understands; or two segments of a side are
            the same. The message names file and line.
    """
    return parse_stm(read_text(path), path, log)


def parse_stm(
    text: str, path: Path, log: Callable[[str], None] = print
) -> list[Reference]:
    """Read the text of an STM, whose lines must be those of the file.

    Raises:
        InputError: The text is bad in one of the ways that `read_stm` names.
    """
    references = [
        _reference(line.split(), where) for where, line in data_lines(text, path)
    ]
    if not references:
        raise InputError(f"{path}: has comments only, no segments")
    check_overlaps((reference.span for reference in references), log)
    return references


def write_stm(path: Path, header: str, references: Iterable[Reference]) -> None:
    """Write a header of comments and the lines of an STM, whose speakers are sides."""
    lines = []
    for reference in references:
        span = reference.span
        side = f"{span.file} {span.channel} {span.file}_{span.channel}"
        times = (f"{time:.3f}".removesuffix("0") for time in (span.start, span.end))
        labels = f"<{reference.labels}> " if reference.labels else ""
        lines.append(f"{side} {' '.join(times)} {labels}{reference.text}".rstrip())
    text = "".join(f"{line}\n" for line in lines)
    path.write_text(header + text, encoding="utf-8")


def _reference(fields: list[str], where: str) -> Reference:
    span = _parse_span(fields[:5], where)
    rest = fields[5:]
    labels = ""
    if rest and rest[0].startswith("<"):
        labels = rest.pop(0)
        if not re.fullmatch("<[^<>]+>", labels):
            raise InputError(f"{where}: expected labels like <O,SWB>, got {labels}")
    _check_marks(rest, where)
    return Reference(span, labels[1:-1], " ".join(rest))

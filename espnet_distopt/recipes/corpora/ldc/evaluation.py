"""Sets of speech for testing, with the files that hub5 scoring needs.

The Hub5 2000 evaluation (LDC2002S09 and LDC2002T43) has 40 telephone conversations, 20
of Switchboard and 20 of CallHome. The other set is the telephone part of the Rich
Transcription 2003 evaluation (LDC2007S10).
"""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from pathlib import Path

from espnet_distopt.errors import InputError
from espnet_distopt.files.text import read_bytes, read_text
from espnet_distopt.recipes.corpora.hub5.stm import (
    Reference,
    Span,
    check_overlaps,
    mend_stm,
    parse_stm,
    reference_words,
)
from espnet_distopt.recipes.corpora.kaldi.directory import (
    CHANNELS,
    SpeechSet,
    Utterance,
)
from espnet_distopt.recipes.corpora.ldc.discs import (
    OVERSHOOT,
    call_seconds,
    find_file,
    find_files,
    name_recordings,
)

_PADDING = 0.1
"""Seconds added on each side of an utterance where no other one is near."""


@dataclass(frozen=True)
class Evaluation:
    """An evaluation set.

    Attributes:
        speech: The utterances to recognise, which are the segments that are scored; the
            text of one whose reference has only hesitations or noise is empty.
        stm: The text of the reference, mended and joined. It keeps all utterances and
            all marks.
        glm: The file of mapping rules, which has been checked.
    """

    speech: SpeechSet
    stm: str
    glm: Path


def evaluation_set(
    name: str,
    audio: dict[str, Path],
    references: Sequence[Reference],
    log: Callable[[str], None],
) -> SpeechSet:
    """Make the utterances to recognise from a reference.

    Every segment that is scored is one: where the reference has no words, those that
    are recognised are insertions. The ids have the times of the reference. The audio
    has up to 0.1 s more on each side, but at most half of the gap to the next
    utterance. An utterance that reaches past the end of its recording is cut there; one
    that starts past it is left out. The reference keeps both, so a scorer counts the
    missing words as deletions.

    Raises:
        InputError: The recording of a line is missing or bad, or its channel is neither
            A nor B; the message names file and line.
    """
    seconds = _lengths(audio, (reference.span for reference in references))
    of_span = {reference.span: reference for reference in references}
    _tell_outside(name, of_span, seconds, log)
    utterances = [
        _utterance(of_span[span], start, end)
        for span, start, end in _padded(of_span, seconds)
        if end > start and of_span[span].judged
    ]
    if not utterances:
        raise InputError(f"{name}: no utterance lies within its recording")
    utterances.sort(key=attrgetter("id"))
    return SpeechSet(name, audio, tuple(utterances))


def _utterance(reference: Reference, start: float, end: float) -> Utterance:
    span, text = reference.span, " ".join(reference_words(reference.text))
    return Utterance(span.utterance, span.file, span.channel, start, end, text)


def _lengths(audio: dict[str, Path], spans: Iterable[Span]) -> dict[str, float]:
    """Return the length in seconds of each recording that has a span."""
    seconds: dict[str, float] = {}
    for span in spans:
        if span.channel not in CHANNELS:
            raise InputError(
                f"{span.where}: expected channel A or B, got {span.channel}"
            )
        if span.file not in audio:
            raise InputError(f"{span.where}: no recording {span.file}.sph")
        if span.file not in seconds:
            seconds[span.file] = call_seconds(audio[span.file])
    return seconds


def _tell_outside(
    name: str,
    spans: Collection[Span],
    seconds: dict[str, float],
    log: Callable[[str], None],
) -> None:
    """Tell how many spans reach past the end of their recording by more than a bit."""
    past = [span for span in spans if span.end > seconds[span.file] + OVERSHOOT]
    if not past:
        return
    out = sum(span.start >= seconds[span.file] for span in past)
    first = past[0]
    log(
        f"warning: {name}: {len(past)} of {len(spans)} segments reach past the end of "
        f"their recording; {len(past) - out} are cut, and {out} are left out, whose "
        f"words count as deletions; the first: {first.where}: ends at {first.end} s, "
        f"but {first.file} has only {seconds[first.file]:.2f} s"
    )


def _padded(
    spans: Iterable[Span], seconds: dict[str, float]
) -> Iterator[tuple[Span, float, float]]:
    """Yield each span with its padded start and end, in seconds."""
    ordered = sorted(spans, key=attrgetter("side", "start"))
    for _, group in groupby(ordered, key=attrgetter("side")):
        side = list(group)
        ends = [-math.inf, *(span.end for span in side)]
        starts = [*(span.start for span in side[1:]), math.inf]
        for span, before, after in zip(side, ends, starts, strict=False):
            last = int(seconds[span.file] * 100) / 100
            start = max(0.0, span.start - _margin(span.start - before))
            end = min(last, span.end + _margin(after - span.end))
            yield span, round(start, 3), round(end, 3)


def _margin(gap: float) -> float:
    """Return the padding beside a gap (seconds), which is negative if spans overlap."""
    return max(0.0, min(_PADDING, gap / 2))


CONVERSATIONS = 40
"""The number of conversations on the disc."""


def read_eval2000(
    speech: Path, text: Path, log: Callable[[str], None] = print
) -> Evaluation:
    """Read the evaluation set.

    Args:
        speech: The directory that has `*.sph` below it.
        text: The directory that has `hub5e00*.stm` and `*hub5.glm` below it.
        log: Called with a line for each difference from the published discs.

    Returns:
        The utterances, whose ids have the times of the STM, with the STM and the GLM.
        The PEM on the disc, which has the same times, is not read.

    Raises:
        InputError: A file is missing, or a line of the reference is bad in a way that
            the scorer does not take.
    """
    stm = find_file(text, r"hub5e00.*\.stm", "reference")
    glm = find_file(text, r".*hub5\.glm", "mapping rules")
    audio = name_recordings(find_files(speech, r"(sw|en)_\d{4}\.sph"))
    if len(audio) != CONVERSATIONS:
        log(
            f"warning: {speech}: {len(audio)} conversations, the published set has "
            f"{CONVERSATIONS}"
        )
    mended = mend_stm(read_text(stm))
    references = parse_stm(mended, stm, log)
    speech_set = evaluation_set("eval2000", audio, references, log)
    return Evaluation(speech_set, mended, glm)


_AUDIO = Path("data", "audio", "eval03", "english", "cts")
_REFERENCES = Path("data", "references", "eval03", "english", "cts")
_RULES = Path("data", "trans_rules", "en20030506.glm")
_LETTERS = {"1": "A", "2": "B", "A": "A", "B": "B"}
_GAP = "inter_segment_gap"
"""The speaker of stretches between utterances, which are not scored."""


def read_rt03(root: Path, log: Callable[[str], None] = print) -> Evaluation:
    """Read the evaluation set.

    Channels 1 and 2 of the STM files become A and B, and gaps between segments are left
    out. The disc has no PEM; its STM files say what to recognise.

    Args:
        root: The disc, or a directory that holds it as `rt_03`.
        log: Called with a line for everything that is odd but no error.

    Raises:
        InputError: A directory or file is missing, or a line is bad in a way that the
            scorer does not take.
    """
    root = _disc(root)
    audio = name_recordings(find_files(root / _AUDIO, r".*\.sph"))
    paths = find_files(root / _REFERENCES, r".*\.stm")
    if not paths:
        raise InputError(f"{root / _REFERENCES}: no references (*.stm) below it")
    read_bytes(root / _RULES)
    references: list[Reference] = []
    lines: list[str] = []
    for path in paths:
        text = _as_in_2000(mend_stm(read_text(path)), path)
        references += parse_stm(text, path, log)
        lines += filter(None, text.split("\n"))
    check_overlaps((reference.span for reference in references), log)
    # Every file declares the same labels, so of equal comments one is enough.
    lines.sort(key=lambda line: not line.startswith(";;"))
    stm = "".join(f"{line}\n" for line in dict.fromkeys(lines))
    speech_set = evaluation_set("rt03", audio, references, log)
    return Evaluation(speech_set, stm, root / _RULES)


def _disc(root: Path) -> Path:
    for place in (root, root / "rt_03"):
        if (place / "data").is_dir():
            return place
    raise InputError(f"{root}: expected the disc LDC2007S10, with {_AUDIO} below it")


def _as_in_2000(text: str, path: Path) -> str:
    """Empty the lines of gaps, and name channels by letters; no line moves."""
    lines = []
    for number, line in enumerate(text.rstrip().split("\n"), start=1):
        fields = line.split(maxsplit=2)
        if line.startswith(";;") or len(fields) < 3:
            lines.append(line)  # a comment, or a fault that the parser reports
        elif fields[1].upper() not in _LETTERS:
            raise InputError(f"{path}:{number}: expected channel 1 or 2: {line[:60]!r}")
        elif fields[2].split()[0] == _GAP:
            lines.append("")
        else:
            lines.append(f"{fields[0]} {_LETTERS[fields[1].upper()]} {fields[2]}")
    return "\n".join(lines)

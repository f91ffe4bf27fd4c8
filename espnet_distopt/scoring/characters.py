"""Counts character and word errors of text lines, by jiwer.

The counts of all lines are added before a rate is taken, because a mean of the lines'
own rates would give a short line the weight of a long one. A character is a Unicode
code point of the composed text (NFC); the blanks between words are characters, too.
"""

import unicodedata
from collections.abc import Mapping
from pathlib import Path

from espnet_distopt.errors import InputError
from espnet_distopt.scoring.confidence import (
    LINES,
    WRITERS,
    Draws,
    Interval,
    bootstrap_interval,
)
from espnet_distopt.scoring.counts import Counts
from espnet_distopt.scoring.jiwer_counts import Jiwer
from espnet_distopt.scoring.result import CER, WER, Result, Scorer
from espnet_distopt.scoring.subsets import ALL, members
from espnet_distopt.scoring.trn import Transcripts, check_same_utterances, read_text


def read_lines(ref_path: Path, hyp_path: Path) -> tuple[Transcripts, Transcripts]:
    """Read the reference and the hypothesis of each line, composed (NFC).

    Raises:
        InputError: A file is unreadable or malformed, a reference is empty, or the two
            do not hold the same lines.
    """
    ref, hyp = (_composed(read_text(path)) for path in (ref_path, hyp_path))
    check_same_utterances(ref, hyp, ref_path, hyp_path)
    empty = sorted(line for line, words in ref.items() if not words)
    if empty:
        raise InputError(
            f"{ref_path}: {len(empty)} lines have no text to score against, the first "
            f"is {empty[0]}: take them out of the test set"
        )
    return ref, hyp


def score_lines(
    ref: Transcripts,
    hyp: Transcripts,
    writers: Mapping[str, str],
    halves: Mapping[str, str],
) -> tuple[Result, Result]:
    """Count the errors of each half and of all lines.

    Args:
        ref: The words of each line; no line is empty.
        hyp: The words that were read in each of these lines.
        writers: The writer or font of each line. The intervals are taken over writers;
            a line that is not in it counts as a writer of its own.
        halves: The regular expression of each half, by name; a line belongs to a half
            if the expression is found in its id.

    Returns:
        The result for characters (CER), and the one for words (WER).

    Raises:
        InputError: A half's pattern is no regular expression or finds no line, or jiwer
            is not installed.
    """
    parts = {
        name: members(name, pattern, ref)
        for name, pattern in (*halves.items(), (ALL, ""))
    }
    scorers: dict[str, Scorer] = {CER: Jiwer(characters=True), WER: Jiwer()}
    characters, words = (
        _score(measure, ref, hyp, writers, parts) for measure in scorers.items()
    )
    return characters, words


def _score(
    measure: tuple[str, Scorer],
    ref: Transcripts,
    hyp: Transcripts,
    writers: Mapping[str, str],
    parts: Mapping[str, list[str]],
) -> Result:
    name, scorer = measure
    counts: dict[str, Counts] = {}
    intervals: dict[str, Interval] = {}
    numbers: dict[str, int] = {}
    for part, lines in parts.items():
        groups: dict[str, list[str]] = {}
        for line in lines:
            groups.setdefault(writers.get(line, line), []).append(line)
        each = [
            scorer.count({u: ref[u] for u in group}, {u: hyp[u] for u in group})
            for group in groups.values()
        ]
        counts[part] = Counts.total(each)
        interval = bootstrap_interval(each)
        if interval:
            intervals[part], numbers[part] = interval, len(each)
    kind = (
        WRITERS if len({writers.get(line, line) for line in ref}) < len(ref) else LINES
    )
    draws = Draws(kind, numbers) if numbers else None
    return Result(scorer.label, counts, intervals, measure=name, draws=draws)


def _composed(transcripts: Transcripts) -> Transcripts:
    return {
        line: [unicodedata.normalize("NFC", word) for word in words]
        for line, words in transcripts.items()
    }

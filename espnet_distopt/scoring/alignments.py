"""Reads the alignments that sclite reports (`.pra`): the counts of each segment."""

import re
from collections.abc import Iterable

from espnet_distopt.errors import InputError
from espnet_distopt.scoring.counts import Counts

_FIELD = re.compile(r"(File|Channel|Scores): +(.*\S) *")


def parse_alignments(report: str, sides: Iterable[str]) -> dict[str, Counts]:
    """Add up the counts of the segments on each conversation side.

    Args:
        report: The alignments that sclite reports of an STM and a CTM.
        sides: The sides' names, as `en_4156-A`; sclite writes them in lower case.

    Returns:
        The counts of each side that has a segment in the report.

    Raises:
        InputError: The report is of another form.
    """
    names = {side.lower(): side for side in sides}
    found: dict[str, list[Counts]] = {}
    place: dict[str, str] = {}
    for line in report.splitlines():
        match = _FIELD.fullmatch(line)
        if not match:
            continue
        place[match.group(1)] = match.group(2)
        if "Scores" in place:
            counts = _counts(place.pop("Scores"))
            side = f"{place.get('File')}-{place.get('Channel')}"
            if side not in names:
                raise InputError(f"sclite's alignments have an unknown side {side}")
            found.setdefault(names[side], []).append(counts)
    return {side: Counts.total(found[side]) for side in sorted(found)}


def _counts(scores: str) -> Counts:
    match = re.fullmatch(r"\(#C #S #D #I\) (\d+) (\d+) (\d+) (\d+)", scores)
    if not match:
        raise InputError(f"sclite's alignments have scores in another form: {scores}")
    correct, substituted, deleted, inserted = map(int, match.groups())
    return Counts(
        sentences=1,
        words=correct + substituted + deleted,
        correct=correct,
        substitutions=substituted,
        deletions=deleted,
        insertions=inserted,
        sentence_errors=int(substituted + deleted + inserted > 0),
    )

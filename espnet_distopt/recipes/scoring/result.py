"""The result of scoring: counts for each half and for all, and its two files.

The errors of text lines are counted by character and by word. The counts of all lines
are added before a rate is taken, because a mean of the lines' own rates would give a
short line the weight of a long one. A character is a Unicode code point of the composed
text (NFC); the blanks between words are characters, too.
"""

import json
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from espnet_distopt.errors import InputError
from espnet_distopt.files.writing import write_text
from espnet_distopt.recipes.scoring.counts import (
    LINES,
    SPEAKERS,
    WRITERS,
    Counts,
    Draws,
    Interval,
    bootstrap_interval,
    counts_table,
)
from espnet_distopt.recipes.scoring.scorers import Jiwer
from espnet_distopt.recipes.scoring.trn import (
    ALL,
    Transcripts,
    check_same_utterances,
    members,
    read_transcripts,
)

WER, CER = "WER", "CER"
UNITS = {WER: "words", CER: "characters"}
"""What each measure counts; `Counts.words` are of this unit."""

FILES = ("result.txt", "result.json")
"""What a result is written into."""

AS_IS = "as it is"
FILTERED = "without hesitations, cut-off words and tags"
"""What was scored of a CTM: all of it, as in NIST's evaluations, or what Kaldi's and
ESPnet's recipes leave of it."""


class Scorer(Protocol):
    """A class that counts errors: `Sclite` or `Jiwer`."""

    @property
    def label(self) -> str:
        """Return the name and version, which results carry."""

    def count(self, ref: Transcripts, hyp: Transcripts) -> Counts:
        """Count the errors of transcripts that hold the same utterances."""


@dataclass(frozen=True)
class Result:
    """Counts by half, and the scorer they come from.

    Attributes:
        scorer: The name and version of the scorer.
        halves: The counts of each half; the whole set comes last, as `all`.
        intervals: The 95 % interval of each half's error rate in percent, where known.
        speakers: The counts of each speaker, where known.
        cross_check: The result of another scorer for the same words, whose figures do
            not compare with these.
        measure: WER or CER.
        ctm: What was scored of a CTM, AS_IS or FILTERED; None if there was no CTM.
        draws: What the intervals are a bootstrap over; None if there are none.
    """

    scorer: str
    halves: dict[str, Counts]
    intervals: dict[str, Interval] = field(default_factory=dict)
    speakers: dict[str, Counts] = field(default_factory=dict)
    cross_check: "Result | None" = None
    measure: str = WER
    ctm: str | None = None
    draws: Draws | None = None

    @property
    def kind(self) -> str:
        """Return what a column of figures must name: the scorer, without its version.

        Figures of a CTM as it is are of another kind than those of a filtered one.
        """
        name = self.scorer.split()[0]
        return f"{name}, CTM {AS_IS}" if self.ctm == AS_IS else name

    @property
    def unit(self) -> str:
        """Return what is counted: words or characters."""
        return UNITS[self.measure]

    def to_json(self) -> str:
        """Return the result as JSON: counts and rates (percent) for each half."""
        return json.dumps(self._content(), indent=2) + "\n"

    @classmethod
    def read(cls, path: Path) -> "Result":
        """Read a `result.json`.

        Raises:
            InputError: The file is not one.
        """
        try:
            return cls._parse(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(
                f"{path}: not a result of scoring ({error!r}): score again"
            ) from None

    def summary(self) -> str:
        """Return a table of percentages by half, with the scorer above it."""
        text = f"scorer: {self.scorer} (percent of the reference {self.unit})\n"
        if self.ctm:
            text += f"the CTM was scored {self.ctm}\n"
        text += counts_table(self.halves, self.intervals, self.unit)
        if self.cross_check:
            other = self.cross_check
            text += f"cross-check: {other.scorer}; not comparable with the above\n"
            text += counts_table(other.halves, other.intervals)
        return text

    def to_text(self) -> str:
        """Return the summary, and a table of the speakers if they are known."""
        if not self.speakers:
            return self.summary()
        return f"{self.summary()}by speaker\n{counts_table(self.speakers)}"

    def write(self, directory: Path) -> None:
        """Write `result.txt`, then `result.json`, into an existing directory."""
        write_text(directory / "result.txt", self.to_text())
        write_text(directory / "result.json", self.to_json())

    def _content(self) -> dict[str, Any]:
        content: dict[str, Any] = {"scorer": self.scorer, "measure": self.measure}
        if self.ctm:
            content["ctm"] = self.ctm
        if self.draws:
            content["bootstrap_over"] = asdict(self.draws)
        content["halves"] = {}
        for name, counts in self.halves.items():
            content["halves"][name] = asdict(counts) | {
                "error_rate": round(counts.error_rate, 2),
                "sentence_error_rate": round(counts.sentence_error_rate, 2),
            }
            if name in self.intervals:
                content["halves"][name]["interval"] = list(self.intervals[name])
        if self.speakers:
            content["speakers"] = {
                name: asdict(counts) for name, counts in self.speakers.items()
            }
        if self.cross_check:
            content["cross_check"] = self.cross_check._content()
        return content

    @classmethod
    def _parse(cls, content: Mapping[str, Any]) -> "Result":
        halves = content["halves"]
        other = content.get("cross_check")
        draws = content.get("bootstrap_over")
        measure = str(content["measure"])
        if measure not in UNITS:
            raise ValueError(f"measure {measure}")
        intervals = {
            name: each["interval"]
            for name, each in halves.items()
            if "interval" in each
        }
        return cls(
            str(content["scorer"]),
            _counts(halves),
            {
                name: (float(low), float(high))
                for name, (low, high) in intervals.items()
            },
            _counts(content.get("speakers", {})),
            cls._parse(other) if other else None,
            measure,
            content.get("ctm"),
            Draws(**draws) if draws else None,
        )


def score(
    ref: Transcripts, hyp: Transcripts, halves: Mapping[str, str], scorer: Scorer
) -> Result:
    """Score each half, and all utterances.

    An utterance belongs to a half if the half's regular expression is found in its id.

    Raises:
        InputError: A half's pattern is no regular expression, or finds no utterance
            or no reference word.
    """
    counts: dict[str, Counts] = {}
    for name, pattern in (*halves.items(), (ALL, "")):
        chosen = {each: ref[each] for each in members(name, pattern, ref)}
        if not any(chosen.values()):
            raise InputError(f"no reference word in '{name}': nothing to score")
        counts[name] = scorer.count(chosen, {u: hyp[u] for u in chosen})
    return Result(scorer.label, counts)


def add_up(
    scorer: str,
    speakers: Mapping[str, Counts],
    halves: Mapping[str, str],
    cross_check: Result | None = None,
    ctm: str | None = None,
) -> Result:
    """Add up the counts of speakers, for each half and for all.

    A speaker belongs to a half if the half's regular expression is found in its name.
    `ctm` is AS_IS or FILTERED.

    Raises:
        InputError: A half's pattern is no regular expression, or finds no speaker
            or no reference word.
    """
    parts = {
        name: [speakers[each] for each in members(name, pattern, speakers)]
        for name, pattern in (*halves.items(), (ALL, ""))
    }
    result = replace(_summed(scorer, parts, SPEAKERS), speakers=dict(speakers))
    for name, counts in result.halves.items():
        if not counts.words:
            raise InputError(f"no reference word in '{name}': nothing to score")
    return replace(result, cross_check=cross_check, ctm=ctm)


def _summed(scorer: str, parts: Mapping[str, Sequence[Counts]], kind: str) -> Result:
    """Return the sums of the parts, with intervals by a bootstrap over this kind."""
    found = {name: bootstrap_interval(each) for name, each in parts.items()}
    intervals = {name: interval for name, interval in found.items() if interval}
    numbers = {name: len(parts[name]) for name in intervals}
    return Result(
        scorer,
        {name: Counts.total(each) for name, each in parts.items()},
        intervals,
        draws=Draws(kind, numbers) if numbers else None,
    )


def _counts(content: Mapping[str, Mapping[str, Any]]) -> dict[str, Counts]:
    names = Counts.__dataclass_fields__
    return {
        each: Counts(**{name: int(values[name]) for name in names})
        for each, values in content.items()
    }


def read_lines(ref_path: Path, hyp_path: Path) -> tuple[Transcripts, Transcripts]:
    """Read the reference and the hypothesis of each line, composed (NFC).

    Raises:
        InputError: A file is unreadable or malformed, a reference is empty, or the two
            do not hold the same lines.
    """
    ref, hyp = (_composed(read_transcripts(path)) for path in (ref_path, hyp_path))
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

    No reference is empty. A line belongs to a half if the half's regular expression is
    found in its id. The intervals are taken over the writers or fonts; a line without
    one counts as a writer of its own.

    Returns:
        The result for characters (CER), and the one for words (WER).

    Raises:
        InputError: A half's pattern is no regular expression or finds no line, or jiwer
            is not installed.
    """
    owners = {writers.get(line, line) for line in ref}
    kind = WRITERS if len(owners) < len(ref) else LINES
    groups: dict[str, list[list[str]]] = {}
    for name, pattern in (*halves.items(), (ALL, "")):
        lines: dict[str, list[str]] = {}
        for line in members(name, pattern, ref):
            lines.setdefault(writers.get(line, line), []).append(line)
        groups[name] = list(lines.values())

    def scored(measure: str, scorer: Jiwer) -> Result:
        parts = {
            name: [
                scorer.count({u: ref[u] for u in group}, {u: hyp[u] for u in group})
                for group in each
            ]
            for name, each in groups.items()
        }
        return replace(_summed(scorer.label, parts, kind), measure=measure)

    return scored(CER, Jiwer(characters=True)), scored(WER, Jiwer())


def _composed(transcripts: Transcripts) -> Transcripts:
    return {
        line: [unicodedata.normalize("NFC", word) for word in words]
        for line, words in transcripts.items()
    }

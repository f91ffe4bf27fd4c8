"""A scored decoding: counts for each half and for all, and its two files."""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from espnet_distopt.errors import InputError
from espnet_distopt.scoring.counts import Counts
from espnet_distopt.scoring.trn import Transcripts

ALL = "all"
"""The name under which the whole set is scored."""


class Scorer(Protocol):
    """What counts errors: `Sclite` or `Jiwer`."""

    @property
    def label(self) -> str:
        """Name and version, which results carry."""

    def count(self, ref: Transcripts, hyp: Transcripts) -> Counts:
        """Count the errors of transcripts that hold the same utterances."""


@dataclass(frozen=True)
class Result:
    """Counts by half, the whole set last as `all`, and the scorer they come from."""

    scorer: str
    halves: dict[str, Counts]

    def to_json(self) -> str:
        """Return the result as JSON: counts and rates (percent) for each half."""
        halves = {
            name: asdict(counts)
            | {
                "error_rate": round(counts.error_rate, 2),
                "sentence_error_rate": round(counts.sentence_error_rate, 2),
            }
            for name, counts in self.halves.items()
        }
        return json.dumps({"scorer": self.scorer, "halves": halves}, indent=2) + "\n"

    @classmethod
    def read(cls, path: Path) -> "Result":
        """Read a `result.json`.

        Raises:
            InputError: The file is not one.
        """
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            names = Counts.__dataclass_fields__
            halves = {
                half: Counts(**{name: int(values[name]) for name in names})
                for half, values in content["halves"].items()
            }
            return cls(str(content["scorer"]), halves)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(
                f"{path}: not a result of bin.score ({error!r}): score again"
            ) from None

    def to_text(self) -> str:
        """Return the result as a table of percentages, with the scorer above it."""
        width = max(map(len, self.halves))
        columns = ("Snt", "Wrd", "Corr", "Sub", "Del", "Ins", "Err", "S.Err")
        head = f"{'':{width}} {columns[0]:>6} {columns[1]:>7}"
        lines = [
            f"scorer: {self.scorer} (percent of the reference words)",
            head + "".join(f"{column:>7}" for column in columns[2:]),
        ]
        for name, counts in self.halves.items():
            line = f"{name:{width}} {counts.sentences:6} {counts.words:7}"
            lines.append(line + "".join(f"{rate:7.1f}" for rate in rates(counts)))
        return "\n".join(lines) + "\n"

    def write(self, directory: Path) -> None:
        """Write `result.txt`, then `result.json`, into an existing directory."""
        write_whole(directory / "result.txt", self.to_text())
        write_whole(directory / "result.json", self.to_json())


def rates(counts: Counts) -> tuple[float, ...]:
    """Return Corr, Sub, Del, Ins, Err and S.Err in percent, in sclite's order."""
    return (
        counts.percent(counts.correct),
        counts.percent(counts.substitutions),
        counts.percent(counts.deletions),
        counts.percent(counts.insertions),
        counts.error_rate,
        counts.sentence_error_rate,
    )


def score(
    ref: Transcripts, hyp: Transcripts, halves: Mapping[str, str], scorer: Scorer
) -> Result:
    """Score each half, and all utterances.

    Args:
        ref: Reference words by utterance id.
        hyp: Hypothesis words for the same ids.
        halves: Regular expressions by name; an utterance belongs to a half if the
            expression is found in its id.
        scorer: What counts.

    Raises:
        InputError: A half is no regular expression, or has no utterance or no
            reference word.
    """
    counts: dict[str, Counts] = {}
    for name, pattern in (*halves.items(), (ALL, "")):
        chosen = _matching(name, pattern, ref)
        if not any(chosen.values()):
            raise InputError(f"no reference word in '{name}': nothing to score")
        counts[name] = scorer.count(chosen, {u: hyp[u] for u in chosen})
    return Result(scorer.label, counts)


def write_whole(path: Path, content: str) -> None:
    """Write a file under a temporary name, then rename it: it is whole or absent."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(content, encoding="utf-8")
    os.replace(temporary, path)


def _matching(name: str, pattern: str, ref: Transcripts) -> Transcripts:
    try:
        expression = re.compile(pattern)
    except re.error as error:
        raise InputError(
            f"half {name}: '{pattern}' is no regular expression: {error}"
        ) from None
    chosen = {utt: words for utt, words in ref.items() if expression.search(utt)}
    if not chosen:
        raise InputError(
            f"half {name}: no utterance id matches '{pattern}', "
            f"an id looks like {next(iter(ref))}"
        )
    return chosen

"""Reads what an experiment directory tells of its training and its scores."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from espnet_distopt.errors import InputError
from espnet_distopt.scoring.result import Result
from espnet_distopt.scoring.worst import WorstLine, read_worst


@dataclass(frozen=True)
class TrainingSummary:
    """How an experiment was trained; None where the trainer has not written it.

    Attributes:
        algorithm: The name of the distributed optimizer.
        learners: The number of learners.
        epochs: The number of epochs trained.
        seconds: The wall-clock time of the training.
        espnet: The version of ESPnet that it was trained with.
        torch: The version of torch that it was trained with.
    """

    algorithm: str | None = None
    learners: int | None = None
    epochs: int | None = None
    seconds: float | None = None
    espnet: str | None = None
    torch: str | None = None

    @classmethod
    def read(cls, path: Path) -> "TrainingSummary":
        """Read the trainer's `distopt/summary.json`; without the file all is None.

        Raises:
            InputError: The file is there and is not a JSON object.
        """
        if not path.exists():
            return cls()
        try:
            content = dict(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError) as error:
            raise InputError(f"{path}: not a JSON object: {error}") from None
        names = cls.__dataclass_fields__
        return cls(**{name: content[name] for name in names if name in content})


@dataclass(frozen=True)
class DecodedExperiment:
    """An experiment that was decoded in one way: its training, and its results by set.

    A set has one result, or one for characters and one for words.

    Attributes:
        name: The name of the experiment, and behind it that of the decoding, if the
            experiment was decoded in more than one way: `asr_adpsgd_2/decode_words`.
        summary: How it was trained.
        results: The results of each set.
        worst: The worst lines of each set of which scoring has kept some, the worst
            first.
    """

    name: str
    summary: TrainingSummary
    results: dict[str, list[Result]]
    worst: dict[str, list[WorstLine]] = field(default_factory=dict)

    @classmethod
    def read(
        cls, directory: Path, name: str | None = None
    ) -> "list[DecodedExperiment]":
        """Read `EXP/distopt/summary.json` and `EXP/DECODE/SET/score_?er/result.json`.

        The worst lines are in `worst.json` beside a result. A file, or a directory of
        something else, is an experiment without results.

        Args:
            directory: The experiment's directory.
            name: Its name; None for that of the directory.

        Returns:
            The experiment for each way in which it was decoded; at least one.

        Raises:
            InputError: There is nothing of that name, or a file in it is damaged.
        """
        if not directory.exists():
            raise InputError(f"{directory}: no such experiment directory")
        paths = sorted(directory.glob("*/*/score_[cw]er/result.json"))
        ways: dict[str, list[Path]] = {}
        for path in paths:
            ways.setdefault(path.parts[-4], []).append(path)
        name = directory.resolve().name if name is None else name
        summary = TrainingSummary.read(directory / "distopt" / "summary.json")
        return [
            cls(f"{name}/{way}" if len(ways) > 1 else name, summary, *_results(found))
            for way, found in (ways or {"": []}).items()
        ]


def _results(
    paths: Sequence[Path],
) -> tuple[dict[str, list[Result]], dict[str, list[WorstLine]]]:
    """Read `SET/score_?er/result.json`, and the worst lines of the sets."""
    results: dict[str, list[Result]] = {}
    worst: dict[str, list[WorstLine]] = {}
    for path in paths:
        test_set = path.parts[-3]
        results.setdefault(test_set, []).append(Result.read(path))
        if lines := read_worst(path.parent):
            worst[test_set] = lines
    return results, worst

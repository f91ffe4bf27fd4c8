"""Reads what experiments tell of training and scores, and reports it in Markdown."""

import json
import subprocess
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from platform import python_version

from espnet_distopt.errors import InputError
from espnet_distopt.files.text import read_text
from espnet_distopt.monitoring.duration import duration
from espnet_distopt.recipes.scoring.counts import columns, format_interval
from espnet_distopt.recipes.scoring.result import AS_IS, CER, Result
from espnet_distopt.recipes.scoring.worst import WorstLine, read_worst


@dataclass(frozen=True)
class TrainingSummary:
    """How an experiment was trained; None where the trainer has not written it.

    Attributes:
        seconds: The wall-clock time of the training.
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
        worst: The worst lines of each set of which scoring has kept some, the worst
            first.
        models: The files of parameters that have decoded the sets, as far as known.
    """

    name: str
    summary: TrainingSummary
    results: dict[str, list[Result]]
    worst: dict[str, list[WorstLine]] = field(default_factory=dict)
    models: frozenset[str] = frozenset()

    @classmethod
    def read(
        cls, directory: Path, name: str | None = None
    ) -> "list[DecodedExperiment]":
        """Read `EXP/distopt/summary.json` and `EXP/DECODE/SET/score_?er/result.json`.

        The worst lines are in `worst.json` beside a result, and `EXP/DECODE/SET/model`
        names the model that has decoded. A file, or a directory of
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
            cls(
                f"{name}/{way}" if len(ways) > 1 else name,
                summary,
                *_results_of(found),
                _models_of(found),
            )
            for way, found in (ways or {"": []}).items()
        ]


def _results_of(
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


def _models_of(paths: Sequence[Path]) -> frozenset[str]:
    notes = {path.parents[1] / "model" for path in paths}
    return frozenset(read_text(note).strip() for note in notes if note.is_file())


NONE = "-"
"""What a cell shows if its value is not known."""

OTHER_DATA = "(other test data)"
"""What stands beside a figure that does not compare with the others of its column."""

INTERVALS = "In brackets: the 95 % interval, by a bootstrap over {}."


@dataclass(frozen=True)
class Table:
    """A table: its head and its rows, and how many first columns hold words."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: int


@dataclass(frozen=True, kw_only=True)
class Environment:
    """Where and when the report was made."""

    date: str
    commit: str
    python: str
    torch: str
    espnet: str

    @classmethod
    def current(cls) -> "Environment":
        """Return today's date, this checkout's commit and the installed versions."""
        return cls(
            date=date.today().isoformat(),
            commit=_commit(Path(__file__)),
            python=python_version(),
            torch=_version("torch"),
            espnet=_version("espnet"),
        )


def render(
    experiments: Sequence[DecodedExperiment],
    environment: Environment,
    *,
    title: str,
    command: str | None = None,
    note: str | None = None,
) -> str:
    """Return the report: a row for each experiment, their counts, the environment.

    Figures of different scorers never share a column: a column of the main table, and
    each table of counts, names its scorer.

    Args:
        experiments: The experiments, of which at least one has a result.
        environment: Where and when the report is made.
        title: The heading of the report.
        command: The command that made the results.
        note: A sentence that must stand above the figures, for instance that the speech
            is synthetic.
    """
    parts = [f"# {title}", *([note] if note else []), _markdown(overview(experiments))]
    if explanation := interval_note(experiments):
        parts.append(explanation)
    for heading, table in counts(experiments):
        parts += [f"## {heading}", _markdown(table)]
    lines = environment_lines(experiments, environment, command)
    parts += ["## Environment", "\n".join(f"- {line}" for line in lines)]
    return "\n\n".join(parts) + "\n"


def interval_note(experiments: Sequence[DecodedExperiment]) -> str:
    """Return what the intervals of the main table are; "" if it has none."""
    results = [each for _, _, each in _results(experiments) if each.intervals]
    if not results:
        return ""
    of_lines = any(result.measure == CER for result in results)
    unknown = "the writers, fonts or lines" if of_lines else "the speakers"
    numbers: dict[str, set[int]] = {}
    for result in results:
        if result.draws:
            found = numbers.setdefault(result.draws.kind, set())
            found.update(result.draws.numbers.values())
    drawn = [f"{_range(found)} {kind}" for kind, found in numbers.items()]
    drawn += [unknown] * any(result.draws is None for result in results)
    return INTERVALS.format(", or over ".join(drawn))


def _range(numbers: Collection[int]) -> str:
    low, high = min(numbers), max(numbers)
    return f"{low}" if low == high else f"{low} to {high}"


def counts(experiments: Sequence[DecodedExperiment]) -> Iterator[tuple[str, Table]]:
    """Yield the tables of counts, and of cross-checks, each with its heading."""
    results = _results(experiments)
    yield from _details("Counts (percent)", results)
    checks = [(e, name, r.cross_check) for e, name, r in results if r.cross_check]
    yield from _details("Cross-check (percent), not comparable with the above", checks)


def _results(experiments: Sequence[DecodedExperiment]) -> list[tuple[str, str, Result]]:
    return [
        (exp.name, name, result)
        for exp in experiments
        for name, several in exp.results.items()
        for result in several
    ]


def overview(experiments: Sequence[DecodedExperiment]) -> Table:
    """Return the main table: how each experiment was trained, and its error rates.

    An error rate is marked if it is of other test data than most of its column.
    """
    single = len({name for exp in experiments for name in exp.results}) == 1
    cells = [
        {
            _column(half if single else f"{name} {half}", result): (result, half)
            for name, several in exp.results.items()
            for result in several
            for half in result.halves
        }
        for exp in experiments
    ]
    rates = list(dict.fromkeys(column for row in cells for column in row))
    data = {
        rate: Counter(_data(*row[rate]) for row in cells if rate in row)
        for rate in rates
    }
    usual = {rate: counted.most_common(1)[0][0] for rate, counted in data.items()}
    head = ["experiment", "algorithm", "learners", "epochs", "training time"]
    rows = [
        [
            exp.name,
            _cell(exp.summary.algorithm),
            _cell(exp.summary.learners),
            _cell(exp.summary.epochs),
            format_time(exp.summary.seconds),
            *(_rate(*row[r], usual[r]) if r in row else NONE for r in rates),
        ]
        for exp, row in zip(experiments, cells, strict=True)
    ]
    return Table([*head, *rates], rows, left=2)


def _column(half: str, result: Result) -> str:
    return f"{result.measure} {half} ({result.kind})"


def _data(result: Result, half: str) -> tuple[int, ...]:
    """Return what tells the test data of two results of one column apart."""
    counts = result.halves[half]
    if result.kind.startswith("hubscr"):
        # Its words are those of the alternatives that suit the hypothesis.
        return (counts.sentences,)
    return counts.sentences, counts.words


def _rate(result: Result, half: str, usual: tuple[int, ...]) -> str:
    rate = f"{result.halves[half].error_rate:.1f}"
    interval = result.intervals.get(half)
    if interval:
        rate += f" ({format_interval(interval)})"
    return rate if _data(result, half) == usual else f"{rate} {OTHER_DATA}"


def _details(
    heading: str, results: Iterable[tuple[str, str, Result]]
) -> Iterator[tuple[str, Table]]:
    """Yield a heading and a table with sclite's columns for each scorer and unit."""
    tables: dict[tuple[str, str], list[list[str]]] = {}
    for experiment, name, result in results:
        scorer = result.scorer + (f", CTM {AS_IS}" if result.ctm == AS_IS else "")
        tables.setdefault((scorer, result.unit), []).extend(
            [experiment, name, half, str(counts.sentences), str(counts.words)]
            + [f"{rate:.1f}" for rate in counts.rates]
            for half, counts in result.halves.items()
        )
    for (scorer, unit), rows in tables.items():
        title = f"{heading}: {scorer}" + ("" if unit == "words" else f", {unit}")
        head = ["experiment", "test set", "half", *columns(unit)]
        yield title, Table(head, rows, left=3)


def environment_lines(
    experiments: Sequence[DecodedExperiment],
    environment: Environment,
    command: str | None,
) -> list[str]:
    """Return what a reader needs to make the figures again; parameters as `render`."""
    trained = {
        f"espnet {_cell(exp.summary.espnet)}, torch {_cell(exp.summary.torch)}"
        for exp in experiments
        if exp.summary.espnet or exp.summary.torch
    }
    results = [r for exp in experiments for each in exp.results.values() for r in each]
    decoded: dict[str, list[str]] = {}
    for exp in experiments:
        decoded.setdefault(", ".join(sorted(exp.models)), []).append(exp.name)
    unknown = decoded.pop("", [])
    models = [
        model if len(decoded) == 1 and not unknown else f"{model} of {', '.join(names)}"
        for model, names in decoded.items()
    ]
    scorers = {result.scorer for result in results}
    scorers |= {r.cross_check.scorer for r in results if r.cross_check}
    return [
        f"date: {environment.date}",
        f"commit: {environment.commit}",
        f"python: {environment.python}",
        f"torch: {environment.torch}",
        f"espnet: {environment.espnet}",
        *(["trained with: " + "; ".join(sorted(trained))] if trained else []),
        *([f"decoded model: {'; '.join(models)}"] if models else []),
        *([f"scorer: {'; '.join(sorted(scorers))}"] if scorers else []),
        *([f"command: `{command}`"] if command else []),
    ]


def format_time(seconds: float | None) -> str:
    """Return a number of seconds in words, such as `1 h 05 min`, or `-` for None."""
    return NONE if seconds is None else duration(seconds)


def _markdown(table: Table) -> str:
    rule = [":--"] * table.left + ["--:"] * (len(table.head) - table.left)
    rows = (table.head, rule, *table.rows)
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _cell(value: object) -> str:
    return NONE if value is None else str(value)


def _version(package: str) -> str:
    # The metadata is read, since to import torch or espnet takes seconds.
    try:
        return version(package)
    except PackageNotFoundError:
        return NONE


def _commit(file: Path) -> str:
    """Return the commit of a file's checkout, with `-dirty` if files were changed.

    An installed package may lie in a folder of another project's checkout.
    """
    describe = "git describe --always --abbrev=12 --exclude=* --dirty"
    try:
        _git(["git", "ls-files", "--error-unmatch", file.name], file.parent)
        return _git(describe.split(), file.parent)
    except (OSError, subprocess.CalledProcessError):
        return NONE


def _git(command: Sequence[str], directory: Path) -> str:
    done = subprocess.run(
        command, cwd=directory, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()

"""The results table of a recipe, in Markdown."""

import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from platform import python_version

from espnet_distopt.scoring.experiment import Experiment
from espnet_distopt.scoring.result import rates

NONE = "-"
"""What a cell shows that nothing is known about."""


@dataclass(frozen=True, kw_only=True)
class Environment:
    """Where the report was made."""

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
            commit=_commit(Path(__file__).parent),
            python=python_version(),
            torch=_version("torch"),
            espnet=_version("espnet"),
        )


def render(
    experiments: Sequence[Experiment],
    environment: Environment,
    *,
    title: str,
    command: str | None = None,
    note: str | None = None,
) -> str:
    """Return the report: a row an experiment, the counts beneath, the environment.

    Args:
        experiments: At least one experiment with a result.
        environment: Where the report was made.
        title: Heading of the report.
        command: The command that made the results.
        note: A sentence that must stand above the figures, such as that the speech
            is synthetic.
    """
    parts = [f"# {title}", *([note] if note else [])]
    parts += [_overview(experiments), "## Counts (percent)", _details(experiments)]
    parts += ["## Environment", _environment(experiments, environment, command)]
    return "\n\n".join(parts) + "\n"


def _overview(experiments: Sequence[Experiment]) -> str:
    """Return the main table: how each was trained, and its word error rates."""
    single = len({name for exp in experiments for name in exp.results}) == 1
    cells = [
        {
            half if single else f"{name} {half}": f"{counts.error_rate:.1f}"
            for name, result in exp.results.items()
            for half, counts in result.halves.items()
        }
        for exp in experiments
    ]
    columns = list(dict.fromkeys(column for row in cells for column in row))
    head = ["experiment", "algorithm", "learners", "epochs", "training time"]
    rows = [
        [
            exp.name,
            _cell(exp.summary.algorithm),
            _cell(exp.summary.learners),
            _cell(exp.summary.epochs),
            format_time(exp.summary.seconds),
            *(row.get(column, NONE) for column in columns),
        ]
        for exp, row in zip(experiments, cells, strict=True)
    ]
    return _table([*head, *(f"WER {column}" for column in columns)], rows, left=2)


def _details(experiments: Iterable[Experiment]) -> str:
    """Return sclite's columns for each experiment, test set and half."""
    head = ["experiment", "test set", "half", "scorer", "Snt", "Wrd"]
    head += ["Corr", "Sub", "Del", "Ins", "Err", "S.Err"]
    rows = [
        [exp.name, name, half, result.scorer, str(counts.sentences), str(counts.words)]
        + [f"{rate:.1f}" for rate in rates(counts)]
        for exp in experiments
        for name, result in exp.results.items()
        for half, counts in result.halves.items()
    ]
    return _table(head, rows, left=4)


def _environment(
    experiments: Iterable[Experiment], environment: Environment, command: str | None
) -> str:
    """Return the list of what a reader needs to make the figures again."""
    trained = {
        f"espnet {_cell(exp.summary.espnet)}, torch {_cell(exp.summary.torch)}"
        for exp in experiments
        if exp.summary.espnet or exp.summary.torch
    }
    scorers = {result.scorer for exp in experiments for result in exp.results.values()}
    lines = [
        f"date: {environment.date}",
        f"commit: {environment.commit}",
        f"python: {environment.python}",
        f"torch: {environment.torch}",
        f"espnet: {environment.espnet}",
        *(["trained with: " + "; ".join(sorted(trained))] if trained else []),
        f"scorer: {', '.join(sorted(scorers))}",
        *([f"command: `{command}`"] if command else []),
    ]
    return "\n".join(f"- {line}" for line in lines)


def format_time(seconds: float | None) -> str:
    """Return a duration (seconds) as people write it: `1 h 05 min`, `3 min 07 s`."""
    if seconds is None:
        return NONE
    minutes, rest = divmod(round(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60:02} min"
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], left: int) -> str:
    """Return a Markdown table whose first `left` columns are aligned to the left."""
    rule = [":--"] * left + ["--:"] * (len(head) - left)
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, rule, *rows))


def _cell(value: object) -> str:
    return NONE if value is None else str(value)


def _version(package: str) -> str:
    # Metadata, not an import: torch and espnet take seconds to load.
    try:
        return version(package)
    except PackageNotFoundError:
        return NONE


def _commit(directory: Path) -> str:
    """Return the commit checked out there, with `-dirty` if files were changed."""
    command = "git describe --always --abbrev=12 --exclude=* --dirty"
    try:
        done = subprocess.run(
            command.split(), cwd=directory, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return NONE
    return done.stdout.strip()

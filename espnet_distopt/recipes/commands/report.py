"""Write one page about trainings: losses, speed, waiting, deaths, error rates."""

import argparse
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from espnet_distopt.errors import InputError, one_line_errors
from espnet_distopt.files.names import distinguishing_names
from espnet_distopt.files.writing import explain_failed_write, write_text
from espnet_distopt.files.yaml import read_yaml
from espnet_distopt.monitoring.experiment import Experiment
from espnet_distopt.recipes.scoring.report import (
    NONE,
    DecodedExperiment,
    Environment,
    Table,
    counts,
    environment_lines,
    format_time,
    interval_note,
    overview,
)
from espnet_distopt.recipes.scoring.worst import MOST

STYLE = """\
body { font: 16px/1.5 sans-serif; max-width: 70rem; margin: auto; padding: 0 1rem 3rem;
       color: #1f2937; background: #ffffff; }
h1, h2, h3 { line-height: 1.2; margin: 2rem 0 .5rem; }
.wide { overflow-x: auto; margin-bottom: 1rem; }
.wide svg { width: 100%; min-width: 40rem; height: auto; }
table { border-collapse: collapse; font-size: .9rem; }
th, td { border-bottom: 1px solid #d1d5db; padding: .3rem .7rem; text-align: right; }
th.words, td.words { text-align: left; }
pre { font-size: .8rem; background: #f3f4f6; padding: 1rem; overflow-x: auto; }
"""


@dataclass(frozen=True)
class Training:
    """What an experiment directory holds for a report.

    Attributes:
        history: What its learners have written, all of it; None without that.
        scores: How it was trained and what was scored, for each decoding.
    """

    name: str
    directory: Path
    history: Experiment | None
    scores: Sequence[DecodedExperiment]

    @classmethod
    def read(cls, directory: Path, name: str) -> "Training | None":
        """Read an experiment; return None for what has neither learners nor scores.

        Raises:
            InputError: There is no such directory, or a file in it is damaged.
        """
        history = Experiment.read(directory, whole=True)
        scores = DecodedExperiment.read(directory, name)
        known = history or any(each.results for each in scores)
        return cls(name, directory, history, scores) if known else None

    @property
    def configuration(self) -> dict[str, Any]:
        """What ESPnet's `config.yaml` of the experiment says; empty without it."""
        path = self.directory / "config.yaml"
        return read_yaml(path) if path.exists() else {}


def page(
    trainings: Sequence[Training], environment: Environment, *, title: str, now: float
) -> str:
    """Return the page."""
    parts = [f"<h1>{escape(title)}</h1>", *_trainings(trainings, now)]
    decoded = [scores for each in trainings for scores in each.scores]
    scored = [scores for scores in decoded if scores.results]
    if scored:
        parts += ["<h2>Error rates</h2>", _table(overview(scored))]
        parts.append(f"<p>{escape(interval_note(scored))}</p>")
        for heading, table in counts(scored):
            parts += [f"<h3>{escape(heading)}</h3>", _table(table)]
        parts += _worst(scored)
    parts += _configurations({e.name: e.configuration for e in trainings})
    lines = environment_lines(decoded, environment, None)
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    parts += ["<h2>Made with</h2>", f"<ul>{items}</ul>"]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>\n{STYLE}</style></head><body>\n"
        + "\n".join(parts)
        + "\n</body></html>\n"
    )


def _trainings(trainings: Sequence[Training], now: float) -> Iterator[str]:
    """Yield the section of the trainings, with its pictures."""
    # matplotlib takes a second to import, and is only needed here.
    from espnet_distopt.monitoring.figures import learners, losses

    histories = {e.name: e.history for e in trainings if e.history is not None}
    if not histories:
        return
    yield "<h2>How they went</h2>"
    yield _table(_summary(histories, now))
    yield f'<div class="wide">{losses(histories)}</div>'
    for name, history in histories.items():
        yield f"<h3>{escape(name)}</h3>"
        yield f"<p>{escape(history.describe(now))}</p>"
        yield f'<div class="wide">{learners(history)}</div>'


def _summary(histories: Mapping[str, Experiment], now: float) -> Table:
    """Return a row for each training."""
    head = "training,algorithm,state,learners,epoch,loss,validation,distance,duration"
    rows = []
    for name, each in histories.items():
        last = each.last
        figures = (
            each.loss,
            each.at_epoch_end("valid_loss"),
            each.at_epoch_end("consensus_distance"),
        )
        rows.append(
            [
                name,
                each.algorithm,
                each.state(now),
                str(last.learners),
                f"{each.behind.epoch} of {last.max_epoch}",
                *(NONE if f is None else f"{f:.4g}" for f in figures),
                format_time(each.seconds),
            ]
        )
    return Table(head.split(","), rows, left=3)


def _worst(scored: Sequence[DecodedExperiment]) -> Iterator[str]:
    """Yield the worst lines of each decoded set of which scoring has kept some."""
    if not any(each.worst for each in scored):
        return
    yield "<h2>Worst lines</h2>"
    yield "<p>The lines of each set with the most errors, of words, or of characters "
    yield "where a character error rate was counted.</p>"
    for experiment in scored:
        for name, lines in experiment.worst.items():
            rows = [
                [line.id, f"{line.errors} of {line.length}", line.ref, line.hyp]
                for line in lines[:MOST]
            ]
            yield f"<h3>{escape(experiment.name)}: {escape(name)}</h3>"
            head = ["line", "errors", "reference", "hypothesis"]
            yield _table(Table(head, rows, left=len(head)))


def _configurations(configurations: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield how the configurations differ, and each of them, folded away."""
    known = {name: each for name, each in configurations.items() if each}
    if not known:
        return
    yield "<h2>Configuration</h2>"
    keys = sorted({key for each in known.values() for key in each})
    differing = [
        [key, *(str(each.get(key, NONE)) for each in known.values())]
        for key in keys
        if len({str(each.get(key, NONE)) for each in known.values()}) > 1
    ]
    if differing:
        yield "<p>What differs:</p>"
        yield _table(Table(["option", *known], differing, left=1 + len(known)))
    for name, each in known.items():
        text = "\n".join(f"{key}: {value}" for key, value in each.items())
        yield f"<details><summary>{escape(name)}</summary><pre>{escape(text)}</pre>"
        yield "</details>"


def _table(table: Table) -> str:
    """Return a table that scrolls by itself where the window is narrow."""

    def row(cells: Sequence[str], tag: str) -> str:
        words = [' class="words"' if n < table.left else "" for n in range(len(cells))]
        marked = zip(cells, words, strict=True)
        return "".join(f"<{tag}{mark}>{escape(cell)}</{tag}>" for cell, mark in marked)

    head = f"<thead><tr>{row(table.head, 'th')}</tr></thead>"
    body = "".join(f"<tr>{row(cells, 'td')}</tr>\n" for cells in table.rows)
    return f'<div class="wide"><table>{head}<tbody>\n{body}</tbody></table></div>'


def get_parser() -> argparse.ArgumentParser:
    """Return the command's parser."""
    parser = argparse.ArgumentParser(
        description="Write a page of HTML about one or several trainings, with its "
        "pictures in it, so that it can be mailed and read without a network. It has "
        "what the learners have written (EXP/distopt/learner*.jsonl), what scoring has "
        "written, and the configurations. A directory with neither learners nor scores "
        "is left out, so that exp/* may be given.",
    )
    add = parser.add_argument
    add("experiments", type=Path, nargs="+", metavar="EXP")
    add("-o", "--out", type=Path, required=True, metavar="FILE.html", help="the page")
    add("--title", default="Trainings", help="heading of the page")
    return parser


@one_line_errors
def main(cmd: Sequence[str] | None = None) -> None:
    """Write the page; what is left out goes to stderr."""
    args = get_parser().parse_args(cmd)
    names = distinguishing_names(args.experiments)
    found = [
        (directory, Training.read(directory, name))
        for directory, name in zip(args.experiments, names, strict=True)
    ]
    for directory, training in found:
        if training is None:
            print(f"{directory}: no training, left out", file=sys.stderr)
    trainings = [training for _, training in found if training is not None]
    if not trainings:
        raise InputError(
            f"{args.experiments[0]}: no distopt/learner*.jsonl and no scores in any "
            "directory: train or score first"
        )
    try:
        text = page(trainings, Environment.current(), title=args.title, now=time.time())
    except ModuleNotFoundError as error:
        raise InputError(
            f"a report needs {error.name}: pip install matplotlib"
        ) from None
    with explain_failed_write(args.out):
        write_text(args.out, text)


if __name__ == "__main__":
    main()

"""ESPnet3's smallest recipe, whose iterators are built anew for each epoch.

Two learners train mini_an4, with the real speech that ESPnet's wheel has; stock ESPnet3
but for the `strategy` in the YAML. Forward and backward pass are real, and a sleep
makes them as long as the learner's speed says. All else comes on top: loading, the
optimizer's step, communication, validation and checkpoints. The bound is the time that
an epoch's batches take if both learners always compute.
"""

import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from emulated.methods import MeasuredMethod
from mini_an4 import OURS, PACKAGES, UTTERANCES, Recipe
from report import spread

from espnet_distopt.errors import InputError
from straggling.frame import Loop, Row, Run, each_once, slow_steps

LEARNERS = 2
EPOCHS = 2
SECONDS = 1.0
"""Those of the fast learner's passes over a batch; a thirtieth of them computes."""

STRATEGIES: dict[str, Any] = {
    "ddp": "ddp",
    "adpsgd": {"_target_": OURS, "algorithm": "adpsgd"},
}


@dataclass(frozen=True, kw_only=True)
class Figures:
    """The figures of a run.

    Attributes:
        training: the seconds of each epoch, from its first batch to the meeting at its
            end.
        whole: the seconds of the fit, with validation and checkpoints.
        bound: those of an epoch if both learners always compute.
        slow_steps: the number of steps of the slow learner in an epoch, on average.
        once: whether every utterance was trained on once in each epoch.
    """

    training: list[float]
    whole: float
    bound: float
    slow_steps: float
    once: bool


def rows(slowdown: float, quick: bool) -> list[Row]:
    """Return the rows.

    Raises:
        InputError: ESPnet3 is not there.
    """
    if not PACKAGES.is_dir():
        raise InputError("there is no ESPnet3: tools/setup.sh --dev installs it")
    many, few = (40, 12) if quick else (320, 16)
    return [
        Row(
            label=name,
            run=Run(
                method=MeasuredMethod(name=name),
                learners=LEARNERS,
                slowdown=slowdown,
                steps=steps,
                queue=name == "adpsgd",
                slow=1,  # The bound is that of learners that do not wait.
                once=name == "ddp",
            ),
        )
        for name, steps in (("ddp", few), ("adpsgd", many))
    ]


def measure(run: Run) -> Figures:
    """Prepare a copy of the recipe, train it, and return the figures."""
    name, seconds = run.method.name, [SECONDS, SECONDS * run.slowdown]
    with tempfile.TemporaryDirectory() as folder:
        recipe = Recipe(Path(folder) / "recipe", LEARNERS)
        recipe.configure(name, STRATEGIES[name], seconds, max_epochs=EPOCHS)
        recipe.prepare(name, run.steps // UTTERANCES)
        recipe.train(name, timeout=120 + EPOCHS * run.steps * seconds[-1])
        return _figures(recipe, name, seconds, run.steps)


def _figures(recipe: Recipe, name: str, seconds: list[float], batches: int) -> Figures:
    """Return the figures of a training that has ended.

    Args:
        recipe: the recipe.
        name: the name of the training.
        seconds: the seconds of each learner's step.
        batches: the number of batches of an epoch.
    """
    learners = recipe.events(name)

    def times(event: str, of: list[list[Any]]) -> list[float]:
        return [time for kind, time, *_ in of if kind == event]

    begins = min(min(times("begin", events)) for events in learners)
    ends = max(max(times("end", events)) for events in learners)
    met = [times("met", events) for events in learners]
    meetings = [begins, *map(max, zip(*met, strict=True))]
    firsts = [
        min(t for events in learners for t in times("batch", events) if t > before)
        for before in meetings[:-1]
    ]
    seen = Counter(u for each in recipe.utterances(name) for u in each)
    return Figures(
        training=[end - first for first, end in zip(firsts, meetings[1:], strict=True)],
        whole=ends - begins,
        bound=batches / sum(1 / each for each in seconds),
        slow_steps=len(times("step", learners[-1])) / EPOCHS,
        once=seen == {str(n): EPOCHS for n in range(batches)},
    )


def _training(row: Row, _: Row) -> str:
    return spread([median(each.training) for each in row.found], ".1f")


def _of_bound(row: Row, _: Row) -> str:
    return spread([each.bound / median(each.training) for each in row.found], ".3f")


def _with_validation(row: Row, _: Row) -> str:
    return spread([EPOCHS * each.bound / each.whole for each in row.found], ".3f")


def _caption(found: Sequence[Row], often: str) -> str:
    stock, ours = (row.run for row in found)
    version = next(PACKAGES.glob("espnet-*.dist-info")).stem.split("-")[1]
    return (
        f"{LEARNERS} learners train the recipe mini_an4 of ESPnet {version} over gloo; "
        f"one of them is {ours.slowdown:g} times slower. Forward and backward pass "
        f"are real, and a sleep makes them take {SECONDS} s for a batch of one "
        "utterance, or as many times more. The bound is the time of an epoch if both "
        "learners always compute, and nothing else takes time. An epoch's training "
        "goes from its first batch to the meeting of the learners after the last one. "
        f"An epoch has {ours.steps} batches ({stock.steps} with ddp, which is one "
        f"run); a fit has {EPOCHS} epochs. A figure is {often}."
    )


LOOP = Loop(
    rows=rows,
    measure=measure,
    columns=(
        ("an epoch's training, s", _training),
        ("bound, s", lambda row, _: f"{row.found[0].bound:.1f}"),
        ("of the bound", _of_bound),
        ("with validation and checkpoint", _with_validation),
        ("steps of the slow learner", slow_steps),
        ("each utterance once", each_once),
    ),
    caption=_caption,
    repeats=2,
    seeds=(),
    hidden=0,
)

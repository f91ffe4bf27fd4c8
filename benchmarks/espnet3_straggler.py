"""The benchmark measures how much one slow learner holds up ESPnet3's smallest recipe.

Two learners train ESPnet3's recipe mini_an4, with the real speech that ESPnet's wheel
has; stock ESPnet3 but for the `strategy` in the YAML. One learner is ten times slower.
Forward and backward pass are real, and a sleep makes them as long as the learner's
speed says, so that two cores are enough. All else comes on top: loading, the
optimizer's step, communication, iterators that are built anew for each epoch,
validation and checkpoints.

The bound is the time that an epoch's batches take if both learners always compute.

    python benchmarks/espnet3_straggler.py     # half an hour, mostly asleep
"""

import argparse
import tempfile
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from mini_an4.recipe import OURS, PACKAGES, UTTERANCES, Recipe
from report import how_often, spread, write_report

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
        slow_steps: the number of steps of the slow learner in all epochs.
        once: whether every utterance was trained on once in each epoch.
    """

    training: list[float]
    whole: float
    bound: float
    slow_steps: int
    once: bool


def figures(recipe: Recipe, name: str, seconds: list[float], batches: int) -> Figures:
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
        slow_steps=len(times("step", learners[-1])),
        once=seen == {str(n): EPOCHS for n in range(batches)},
    )


def measure(name: str, slowdown: float, batches: int) -> Figures:
    """Prepare a copy of the recipe, train it, and return the figures."""
    seconds = [SECONDS, SECONDS * slowdown]
    with tempfile.TemporaryDirectory() as folder:
        recipe = Recipe(Path(folder) / "recipe", LEARNERS)
        recipe.configure(name, STRATEGIES[name], seconds, max_epochs=EPOCHS)
        recipe.prepare(name, batches // UTTERANCES)
        timeout = 120 + EPOCHS * batches * seconds[-1]
        recipe.train(name, timeout=timeout)
        return figures(recipe, name, seconds, batches)


def table(found: dict[str, list[Figures]]) -> list[str]:
    """Return the lines of the table."""
    lines = [
        "| strategy | an epoch's training, s | bound, s | of the bound | with "
        "validation and checkpoint | steps of the slow learner | each utterance once |",
        "| :-- | --: | --: | --: | --: | --: | :-- |",
    ]
    for name, runs in found.items():
        bound = runs[0].bound
        training = [median(each.training) for each in runs]
        whole = [each.whole / EPOCHS for each in runs]
        cells = [
            name,
            spread(training, ".1f"),
            f"{bound:.1f}",
            spread([bound / each for each in training], ".3f"),
            spread([bound / each for each in whole], ".3f"),
            spread([each.slow_steps / EPOCHS for each in runs], ".0f"),
            "yes" if all(each.once for each in runs) else "no",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def main() -> None:
    """Measure, print the table and write it to benchmarks/results/."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--slowdown", type=float, default=10.0, help="factor of the slow learner"
    )
    parser.add_argument("--repeats", type=int, default=2, help="repeats of adpsgd")
    parser.add_argument("--quick", action="store_true", help="make one short run each")
    parser.add_argument("--out", type=Path, help="folder of the results")
    args = parser.parse_args()
    if not PACKAGES.is_dir():
        parser.error("there is no ESPnet3: tools/setup.sh --dev installs it")
    repeats = 1 if args.quick else max(1, args.repeats)
    many, few = (40, 12) if args.quick else (320, 16)
    found: dict[str, list[Figures]] = {"ddp": [], "adpsgd": []}
    for name, count, times in (("ddp", few, 1), ("adpsgd", many, repeats)):
        for _ in range(times):
            found[name].append(measure(name, args.slowdown, count))
            print(f"{name}: {found[name][-1]}", flush=True)
    version = next(PACKAGES.glob("espnet-*.dist-info")).stem.split("-")[1]
    caption = (
        f"{LEARNERS} learners train the recipe mini_an4 of ESPnet {version} over gloo; "
        f"one of them is {args.slowdown:g} times slower. Forward and backward pass "
        f"are real, and a sleep makes them take {SECONDS} s for a batch of one "
        "utterance, or as many times more. The bound is the time of an epoch if both "
        "learners always compute, and nothing else takes time. An epoch's training "
        "goes from its first batch to the meeting of the learners after the last one. "
        f"An epoch has {many} batches ({few} with ddp, which is one run); a fit has "
        f"{EPOCHS} epochs. A figure is {how_often(repeats)}."
    )
    data = {name: [asdict(f) for f in runs] for name, runs in found.items()}
    write_report(
        "espnet3_straggler",
        args.quick,
        args.out,
        table(found),
        caption,
        data,
        seeds=[],
        repeats=repeats,
    )


if __name__ == "__main__":
    main()

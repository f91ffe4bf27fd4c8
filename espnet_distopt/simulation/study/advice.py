"""The module ranks methods by the time in which they train on as many samples.

Only time is simulated, and it says nothing of how well a method trains. So the ranking
also shows what each learner sends, and how stale the corrections are.
"""

import io
from collections.abc import Sequence
from dataclasses import dataclass

import yaml

from espnet_distopt.errors import InputError
from espnet_distopt.simulation.study.outcome import SimulatedMethod
from espnet_distopt.simulation.study.trial import Trial, steps_each
from espnet_distopt.simulation.virtual_learner import Step

PERIOD = 8
FEWER, MORE = 20, 68
"""The steps between which a method is looked at: what happens once, at the start and at
the end of an epoch, is outside of them. Blocks of `PERIOD`, the waits of gossip for an
exchange that lasts longer than its default `max_staleness`, 16 steps, repeat in
them."""

METHODS = [
    SimulatedMethod(name="allreduce", algorithm="allreduce"),
    SimulatedMethod(name="adpsgd", algorithm="adpsgd"),
    SimulatedMethod(name="hadpsgd", algorithm="hadpsgd"),
    SimulatedMethod(name="dpsgd", algorithm="dpsgd"),
    SimulatedMethod(
        name=f"bmuf, blocks of {PERIOD}",
        algorithm="bmuf",
        options={"period": PERIOD},
    ),
]
"""The methods that are ranked. Of equally fast ones the first comes first."""

TIE = 1.03
"""A method that takes at most so many times as long as the fastest is as fast. Links
and steps are never known more exactly than that."""


@dataclass(frozen=True, kw_only=True)
class Advice:
    """What a method would do on a cluster.

    Attributes:
        method: the method.
        seconds: the virtual seconds of a step of all learners.
        sent: the bytes that a learner sends in a step.
        staleness: the staleness of the stalest correction, in steps; None if none is.
    """

    method: SimulatedMethod
    seconds: float
    sent: float
    staleness: float | None


def advise(trial: Trial, learners: int) -> list[Advice]:
    """Return the methods that can run, the fastest first.

    Raises:
        InputError: no method can run.
    """
    found, reasons = [], []
    for method in METHODS:
        try:
            trial.check(method, learners)
        except InputError as error:  # such as unequal nodes
            reasons.append(error)
            continue
        found.append(_advice(trial, method, learners))
    if not found:
        raise reasons[0]
    return sorted(found, key=lambda advice: float(f"{advice.seconds:.4g}"))


def _advice(trial: Trial, method: SimulatedMethod, learners: int) -> Advice:
    """Return what a method does between the steps `FEWER` and `MORE` of a learner."""
    simulation = trial.simulation(method, learners)
    simulation.start()
    simulation.epoch(steps_each(simulation, MORE))
    few, many = (simulation.record[: steps * learners] for steps in (FEWER, MORE))
    factor = trial.message_factor(simulation.learners[0].model) / learners
    figures = [virtual.metrics() for virtual in simulation.learners]
    stale = [each["staleness_max"] for each in figures if "staleness_max" in each]
    return Advice(
        method=method,
        seconds=(many[-1].seconds - few[-1].seconds) / (MORE - FEWER),
        sent=factor * (_sent(many) - _sent(few)) / (MORE - FEWER),
        staleness=max(stale, default=None),
    )


def _sent(record: Sequence[Step]) -> int:
    """Return the bytes that all learners have sent up to their last steps in it."""
    return sum({line.rank: line.bytes_sent for line in record}.values())


def advice_table(
    ranked: Sequence[Advice], samples: int, batch_size: int, learners: int
) -> str:
    """Return a table, and the lines of YAML for the fastest method.

    Of methods that tie, the lines are for the first of `METHODS`.
    """
    text = io.StringIO()
    steps = samples / batch_size
    print(
        f"| method | a step | {samples} samples | sent per step and learner "
        "| staleness, max |\n| --- | --- | --- | --- | --- |",
        file=text,
    )
    for advice in ranked:
        stale = "-" if advice.staleness is None else f"{advice.staleness:.0f}"
        print(
            f"| {advice.method.name} | {1e3 * advice.seconds:.1f} ms "
            f"| {advice.seconds * steps:.1f} s | {advice.sent / 1e6:.1f} MB "
            f"| {stale} |",
            file=text,
        )
    tied = [a.method for a in ranked if a.seconds <= TIE * ranked[0].seconds]
    best = min(tied, key=METHODS.index)
    which = "The fastest"
    if len(tied) > 1:
        names = ", ".join(method.name for method in tied)
        which = f"A tie within {TIE - 1:.0%}: {names}. The simplest of them"
    print(
        f"\nSimulated, {learners} learners: time alone, which says nothing of how well "
        f"a method trains (docs/claims.md does). {which}, for the training's "
        "configuration:\n",
        file=text,
    )
    lines: dict[str, object] = {"distopt": best.algorithm}
    if best.options:
        lines["distopt_conf"] = dict(best.options)
    print(yaml.safe_dump(lines, sort_keys=False), end="", file=text)
    return text.getvalue()

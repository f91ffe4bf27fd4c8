"""The module ranks methods by the time in which they train on as many samples.

Only time is simulated, and it says nothing of how well a method trains: a method that
communicates less is never slower. So the ranking also shows what each learner sends,
and how stale the corrections are.
"""

import io
from collections.abc import Sequence
from dataclasses import dataclass, replace

import yaml

from espnet_distopt.errors import InputError
from espnet_distopt.simulation.study.outcome import Outcome, SimulatedMethod
from espnet_distopt.simulation.study.trial import Trial

PERIOD = 8
FEWER, MORE = 8, 32
"""The steps of the two runs whose difference is that of a step: what happens once, at
the start and at the end of an epoch, is in both. Blocks of `PERIOD` and the rounds
of hypercubes of 4, 8, 16, 64, 256 and 4,096 learners repeat in the steps between."""

METHODS = [
    SimulatedMethod(name="allreduce", algorithm="allreduce"),
    SimulatedMethod(
        name="dpsgd on a hypercube",
        algorithm="dpsgd",
        options={"topology": "hypercube"},
    ),
    SimulatedMethod(name="adpsgd", algorithm="adpsgd"),
    SimulatedMethod(
        name="adpsgd on a hypercube",
        algorithm="adpsgd",
        options={"topology": "hypercube"},
    ),
    SimulatedMethod(name="hadpsgd", algorithm="hadpsgd"),
    SimulatedMethod(
        name=f"bmuf, blocks of {PERIOD}",
        algorithm="bmuf",
        options={"period": PERIOD},
    ),
]
"""The methods that are ranked."""


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

    Args:
        trial: a trial of time alone.
        learners: the number of learners.

    Raises:
        InputError: no method can run.
    """
    found = []
    for method in METHODS:
        try:
            trial.check(method, learners)
        except InputError:
            continue  # such as a hypercube of six learners
        found.append(_advice(trial, method, learners))
    if not found:
        raise InputError(f"no method can run with {learners} learners")
    return sorted(found, key=lambda advice: advice.seconds)


def _advice(trial: Trial, method: SimulatedMethod, learners: int) -> Advice:
    few, many = (_run(trial, method, learners, steps) for steps in (FEWER, MORE))
    steps = MORE - FEWER
    return Advice(
        method=method,
        seconds=(many.stepped - few.stepped) / steps,
        sent=(many.bytes_sent - few.bytes_sent) / steps,
        staleness=many.staleness_max,
    )


def _run(trial: Trial, method: SimulatedMethod, learners: int, steps: int) -> Outcome:
    samples = steps * trial.batch_size
    short = replace(trial, samples=samples, epochs=1)
    return short.run(method, learners, lambda point: None)


def advice_table(
    ranked: Sequence[Advice], samples: int, batch_size: int, learners: int
) -> str:
    """Return a table, and the lines of YAML for the fastest method.

    Args:
        ranked: the methods, the fastest first.
        samples: the number of samples whose time the table shows.
        batch_size: the number of samples of a step of all learners.
        learners: the number of learners.
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
    best = ranked[0].method
    print(
        f"\nSimulated, {learners} learners: time alone, which says nothing of how well "
        "a method trains (docs/claims.md does). The fastest, for the training's "
        "configuration:\n",
        file=text,
    )
    lines: dict[str, object] = {"distopt": best.algorithm}
    if best.options:
        lines["distopt_conf"] = dict(best.options)
    print(yaml.safe_dump(lines, sort_keys=False), end="", file=text)
    return text.getvalue()

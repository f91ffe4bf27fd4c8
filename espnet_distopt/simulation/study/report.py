"""The module reports simulated trials: a Markdown table and its caption."""

import math
import shlex
from collections.abc import Sequence

from espnet_distopt.simulation.compute import Compute
from espnet_distopt.simulation.network import SHARED, Link
from espnet_distopt.simulation.study.outcome import Outcome
from espnet_distopt.simulation.study.problem import TimeOnly
from espnet_distopt.simulation.study.trial import Trial

HEADINGS = (
    "algorithm",
    "learners",
    "held-out loss",
    "virtual time (s)",
    "speed-up",
    "samples/s",
    "staleness, mean / max",
    "sent per learner (MB)",
)


def report(trial: Trial, outcomes: Sequence[Outcome], arguments: Sequence[str]) -> str:
    """Return the table, its caption, and the command that repeats the trials."""
    command = f"python -m espnet_distopt.bin.simulate {shlex.join(arguments)}".strip()
    repeat = f"Command: `{command}` (seed {trial.seed})."
    return f"{table(outcomes)}\n{caption(trial, outcomes)}{repeat}\n"


def table(outcomes: Sequence[Outcome]) -> str:
    """Return a table with one row for each outcome.

    Below it stands a line for each trial that was cut short, or has lost learners.
    """
    rows = [_row(outcome) for outcome in outcomes]
    widths = [max(map(len, column)) for column in zip(HEADINGS, *rows, strict=True)]
    lines = [_line(HEADINGS, widths), _line(["-" * w for w in widths], widths)]
    lines += [_line(row, widths) for row in rows]
    lost = [
        f"{o.method.name}, {o.learners} learners: cut short in epoch {len(o.history)}, "
        f"and its row is of {o.last.samples} samples: {o.lost}"
        for o in outcomes
        if o.lost
    ]
    lost += [
        f"{o.method.name}, {o.learners} learners: went on without "
        f"{', '.join(map(str, o.dead))}, and trained on {o.last.samples} samples"
        for o in outcomes
        if o.dead and not o.lost
    ]
    return "\n".join([*lines, "", *lost] if lost else lines) + "\n"


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = (cell.ljust(w) for cell, w in zip(cells, widths, strict=True))
    return f"| {' | '.join(padded)} |"


def _row(outcome: Outcome) -> list[str]:
    last = outcome.last
    return [
        outcome.method.name,
        str(outcome.learners),
        f"{last.loss:.5g}" if math.isfinite(last.loss) else "diverged",
        f"{last.seconds:.1f}",
        _figure(outcome.speedup, ".2f"),
        _figure(outcome.throughput, ".1f"),
        _figure(outcome.staleness, ".2f")
        + " / "
        + _figure(outcome.staleness_max, ".0f"),
        f"{outcome.bytes_sent / 1e6:.3f}",
    ]


def _figure(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def caption(trial: Trial, outcomes: Sequence[Outcome]) -> str:
    """Return a caption that says under which assumptions the figures hold.

    It also says that the times are simulated: nothing here was timed.
    """
    steps = trial.samples // trial.batch_size
    lines = [
        f"Simulated: virtual learners in one process, {_gradients(trial)}; times are "
        "those of a virtual clock. Speed-up is against one learner that trains on as "
        "many samples in whole batches, and is not slowed.",
        f"Problem: {trial.problem.describe()}; batches of {trial.batch_size} samples "
        f"in all, {trial.epochs} epochs of {steps * trial.batch_size} samples.",
        f"Compute: {_of_compute(trial)}.",
        *_of_late_faults(trial, outcomes),
        f"Network: {_of_network(trial, outcomes[0])}.",
    ]
    options = [
        f"{o.method.name}: {o.method.algorithm} with "
        + ", ".join(f"{k}={v}" for k, v in o.method.options.items())
        for o in outcomes
        if o.method.options
    ]
    if options:
        lines.append(f"Options: {'; '.join(dict.fromkeys(options))}.")
    return "\n".join(lines) + "\n"


def _gradients(trial: Trial) -> str:
    learns = not isinstance(trial.problem, TimeOnly)
    return "with real gradients" if learns else "without gradients, so no loss counts"


def _of_compute(trial: Trial) -> str:
    compute = trial.compute
    phrases = [
        f"{_of_steps(compute)} for {trial.batch_size // trial.compute_learners} samples"
    ]
    phrases += [
        f"learner {rank} {factor:g} times slower"
        for rank, factor in sorted(compute.slowdown.items())
    ]
    phrases += map(str, trial.faults)
    return ", ".join(phrases)


def _of_late_faults(trial: Trial, outcomes: Sequence[Outcome]) -> list[str]:
    """Return a line for each trial that had ended before all faults had struck."""
    lines = []
    for outcome in outcomes:
        late = [str(f) for f in trial.faults if f.at > outcome.last.seconds]
        if late and not outcome.lost:
            name = f"{outcome.method.name}, {outcome.learners} learners"
            lines.append(f"{name}: ended before these faults: {', '.join(late)}.")
    return lines


def _of_steps(compute: Compute) -> str:
    if compute.trace:
        mean = sum(compute.trace) / len(compute.trace)
        return f"steps as {len(compute.trace)} measured ones, {mean:g} s in the mean,"
    spread = f", log-normal with sigma {compute.spread:g}," if compute.spread else ""
    return f"a step takes {compute.seconds:g} s{spread}"


def _of_network(trial: Trial, outcome: Outcome) -> str:
    network = trial.network
    phrases = [_of_link(network.between)]
    if network.per_node > 1:
        phrases = [
            f"nodes of {network.per_node} learners: {_of_link(network.between)} "
            f"between nodes, {_of_link(network.inside)} inside"
        ]
    if trial.model_bytes is None:
        phrases.append(f"a model of {outcome.parameters} parameters")
    else:
        phrases.append(f"a model of {trial.model_bytes / 1e6:g} MB")
    phrases += [
        f"{name} of {getattr(network, name) / 1e9:g} GB/s, shared"
        for name in SHARED
        if math.isfinite(getattr(network, name))
    ]
    if network.loss:
        phrases.append(f"messages lost with probability {network.loss:g}")
    return ", ".join(phrases)


def _of_link(link: Link) -> str:
    return f"{link.latency * 1e3:g} ms and {link.bandwidth / 1e9:g} GB/s"

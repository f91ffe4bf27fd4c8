"""What `bin.status` says about an experiment, for people."""

from espnet_distopt.monitoring.duration import duration
from espnet_distopt.monitoring.experiment import Experiment, LearnerHistory, log_end

HEAD = (
    *("learner", "host", "step", "samples/s", "comm", "wait"),
    *("staleness", "cpu", "gpu", "age", ""),
)
LEFT = {"host", ""}
"""The columns whose entries are aligned to the left."""


def table(experiment: Experiment, now: float) -> str:
    """Return the experiment's state, and a line for each learner."""
    lines = [_state(experiment, now), "  " + _position(experiment, now)]
    if experiment.state(now) in ("silent", "failed"):
        end = log_end(experiment.directory)
        lines += [f"  train.log says: {end}"] if end else []
    slowest = experiment.slowest
    rows = [HEAD] + [
        _row(rank, each, now, rank == slowest, rank in experiment.lost)
        for rank, each in experiment.learners.items()
    ]
    widths = [max(len(row[n]) for row in rows) for n in range(len(HEAD))]
    for row in rows:
        cells = [
            cell.ljust(width) if name in LEFT else cell.rjust(width)
            for name, cell, width in zip(HEAD, row, widths, strict=True)
        ]
        lines.append("  " + "  ".join(cells).rstrip())
    return "\n".join(lines) + "\n"


def _state(experiment: Experiment, now: float) -> str:
    last, known = experiment.last, len(experiment.learners)
    count = f"{last.learners} learner" + ("s" if last.learners > 1 else "")
    if known < last.learners and last.algorithm != "none":
        count = f"{known} of {count}"
    text = f"{experiment.directory}: {experiment.describe(now)} "
    text += f"({experiment.algorithm}, {count}"
    if last.slurm_job is not None:
        text += f", Slurm job {last.slurm_job}"
        text += f", restart {last.slurm_restarts}" if last.slurm_restarts else ""
    return text + ")"


def _position(experiment: Experiment, now: float) -> str:
    last = experiment.behind
    parts = [f"epoch {last.epoch}/{last.max_epoch}"]
    parts.append(f"step {last.step}/{last.steps or '?'}")
    if last.event == "validate":
        parts.append("validates")
    loss = "loss" if last.event in ("epoch", "end") else "latest loss"
    figures = {
        loss: (experiment.loss, ".3f"),
        "valid loss": (experiment.at_epoch_end("valid_loss"), ".3f"),
        "consensus distance": (experiment.at_epoch_end("consensus_distance"), ".2g"),
    }
    parts += [
        f"{name} {value:{form}}"
        for name, (value, form) in figures.items()
        if value is not None
    ]
    if experiment.samples_per_second is not None:
        parts.append(f"{experiment.samples_per_second:.1f} samples/s")
    left = experiment.seconds_left(now)
    if left is not None and experiment.state(now) not in ("finished", "failed"):
        parts.append(f"{duration(left)} left")
    return "  ".join(parts)


def _row(
    rank: int, learner: LearnerHistory, now: float, slowest: bool, lost: bool
) -> tuple[str, ...]:
    last, state = learner.last, "lost" if lost else learner.state(now)
    notes = [state, "slowest"] if slowest else [state]
    return (
        str(rank),
        last.host,
        f"{last.step}/{last.steps or '?'}",
        _number(learner.per_second("samples")),
        _percent(learner.per_second("comm_time")),
        _percent(learner.per_second("wait_time")),
        _staleness(learner),
        _percent(learner.mean("cpu")),
        _gpu(learner),
        duration(learner.age(now)),
        ", ".join(notes).removeprefix("running").removeprefix(", "),
    )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.0f}%"


def _staleness(learner: LearnerHistory) -> str:
    """Return the mean staleness, with the largest one in parentheses."""
    mean, largest = learner.mean("staleness"), learner.staleness_max
    if mean is None:
        return "-"
    return f"{mean:.1f}" + ("" if largest is None else f" ({largest:.0f})")


def _gpu(learner: LearnerHistory) -> str:
    """Return the GPU's load, and the GiB of its memory that the learner holds."""
    memory = learner.last.gpu_memory
    if memory is None:
        return "-"
    return f"{_percent(learner.mean('gpu'))} {memory / 2**30:.1f}G"

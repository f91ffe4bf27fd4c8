"""The tables of the benchmark, from the figures of its cases."""

from collections.abc import Sequence
from statistics import mean
from typing import Any

Row = dict[str, Any]

_HEAD = (
    "case",
    "learners",
    "faults",
    "goodput of the living (by the fastest calm stretch)",
    "of all places",
    "heals in s",
    "longest pause in s",
    "away in s",
    "batches lost / repeated / dealt",
    "hangs",
    "invariants broken",
    "final loss",
)


def table(rows: Sequence[Row]) -> list[str]:
    """Return the lines of all tables; each row has its `case` and its `figures`."""
    tormented = [row for row in rows if "goodput" in row["figures"]]
    lines = []
    if tormented:
        lines += [f"| {' | '.join(_HEAD)} |", f"|{' --- |' * len(_HEAD)}"]
        lines += [_line(row) for row in tormented]
    undisturbed = [row for row in rows if row["case"] == "undisturbed"]
    if undisturbed:
        losses = [row["figures"]["final_loss"] for row in undisturbed]
        epochs = sorted({row["figures"]["epochs"] for row in undisturbed})
        lines += ["", *_undisturbed(losses, epochs)]
    ends = [row for row in rows if row["case"] in ("store", "disk")]
    if ends:
        lines += ["", "| case | times | what came of it |", "| --- | --: | --- |"]
        lines += [_end(row) for row in ends]
    return lines


def measured_on(rows: Sequence[Row]) -> str:
    """Return the commits that were measured, as a sentence."""
    commits: dict[str, list[str]] = {}
    for row in rows:
        cases = commits.setdefault(str(row["machine"]["commit"]), [])
        cases += [row["case"]] * (row["case"] not in cases)
    each = "; ".join(
        f"{', '.join(cases)}: {commit}" for commit, cases in commits.items()
    )
    return f"Measured commits: {each}."


def _line(row: Row) -> str:
    found = row["figures"]
    batches = found["batches"]
    cells = [
        row["case"],
        str(row["learners"]),
        ", ".join(f"{n} x {kind}" for kind, n in found["faults"].items()),
        f"{found['goodput']:.3f} ({found['goodput_least']:.3f})",
        f"{found['goodput_of_places']:.3f}",
        _quantiles(found["heal"]),
        _quantiles(found["pause"]),
        _quantiles(found["away"]),
        f"{batches['lost']} / {batches['repeated']} / {batches['dealt']}",
        str(len(found["hangs"])),
        str(len(found["broken"])),
        f"{found['final_loss']:.5f} ({batches['epochs']} epochs)",
    ]
    return f"| {' | '.join(cells)} |"


def _quantiles(found: dict[str, float]) -> str:
    if not found:
        return ""
    return f"{found['median']:.2f}, {found['p95']:.2f}, {found['max']:.2f}"


def _undisturbed(losses: Sequence[float], epochs: Sequence[int]) -> list[str]:
    each = ", ".join(f"{loss:.5f}" for loss in losses)
    return [
        f"Undisturbed trainings with {len(losses)} other seeds end at the losses "
        f"{each} (mean {mean(losses):.5f}) after {epochs[0]} epochs."
    ]


def _end(row: Row) -> str:
    found = row["figures"]
    if row["case"] == "store":
        seconds = [each["seconds"] for each in found]
        left = sum(len(each["left"]) for each in found)
        text = (
            f"all learners and the launcher had ended after {min(seconds):.1f} to "
            f"{max(seconds):.1f} s, {left} processes were left; the last line is "
            f"`{found[0]['said'][-1]}`"
        )
        return f"| the store's process is killed | {len(found)} | {text} |"
    good = sum(
        each["status"] == 0 and each["whole"] and each["saves_again"] and each["others"]
        for each in found
    )
    text = (
        f"in {good} of {len(found)} the last checkpoint stayed whole, the others went "
        "on, the learner was started again, joined, and saved once there was room"
    )
    return f"| a disk is full at a checkpoint | {len(found)} | {text} |"

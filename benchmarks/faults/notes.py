"""The notes of a tormented run: what its learners did, and what was done to them."""

import json
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from faults.records import Process, Records

Span = tuple[float, float]
"""The begin and the end of a stretch, in seconds."""


class Notes:
    """The notes of a run, and what was done to it.

    Args:
        directory: the folder of the run.
    """

    def __init__(self, directory: Path) -> None:
        self.records = Records(directory)
        self.records.read()
        faults = directory / "faults.jsonl"
        lines = faults.read_text().splitlines() if faults.exists() else []
        self.done: list[dict[str, Any]] = [json.loads(line) for line in lines]
        settings = json.loads((directory / "settings.json").read_text())
        self.size: int = settings["learners"]
        self.items: int = settings["items"]

    def spans(self, name: str) -> list[Span]:
        """Return the stretches of a name that have begun and ended."""
        begins = [e["time"] for e in self.done if e["event"] == f"{name} begins"]
        ends = [e["time"] for e in self.done if e["event"] == f"{name} ends"]
        return list(zip(begins, ends, strict=False))

    @property
    def faults(self) -> list[dict[str, Any]]:
        """The deaths and stops, in their order."""
        return [e for e in self.done if e["event"] in ("death", "stop", "slow")]

    def lives(self, process: Process) -> list[Span]:
        """Return when a process has lived: from its first step, without stops."""
        first = process.first_step
        if first is None:
            return []
        key = process.rank, process.incarnation
        ends = [
            e["time"]
            for e in self.done
            if e["event"] == "death" and (e["rank"], e["incarnation"]) == key
        ]
        begin, spans, end = first, [], min([*ends, process.last])
        for event in self.done:
            if (event.get("rank"), event.get("incarnation")) == key:
                if event["event"] == "stop":
                    spans.append((begin, event["time"]))
                    begin = math.inf
                elif event["event"] == "continued":
                    begin = event["time"]
        return [(a, min(b, end)) for a, b in [*spans, (begin, end)] if a < end]

    def speed(self, within: Sequence[Span]) -> tuple[int, float]:
        """Return the batches that were trained and the learner-seconds that lived."""
        batches, seconds = 0, 0.0
        for process in self.records:
            lives = self.lives(process)
            for span in within:
                seconds += sum(_overlap(life, span) for life in lives)
                times = [when for when, _ in process.of("step")[1:]]
                batches += sum(span[0] <= when < span[1] for when in times)
        return batches, seconds

    def batches(self) -> dict[str, int]:
        """Count the batches of all epochs that have ended: lost, and repeated ones."""
        trained: dict[int, Counter[int]] = {}
        for process in self.records:
            for _, (epoch, item) in process.of("step"):
                trained.setdefault(epoch, Counter())[item] += 1
        ended = {e for p in self.records for _, (e, *_) in p.of("consensus")}
        counts = [trained.get(epoch, Counter()) for epoch in sorted(ended)]
        return {
            "epochs": len(counts),
            "dealt": self.items * len(counts),
            "trained": sum(len(each) for each in counts),
            "lost": sum(self.items - len(each) for each in counts),
            "repeated": sum(each.total() - len(each) for each in counts),
        }

    def final_loss(self) -> float:
        """Return the loss of the last consensus model."""
        losses = [e for p in self.records for e in p.of("consensus")]
        _, (_, loss, _) = max(losses, key=lambda event: (event[1][0], event[0]))
        return float(loss)


def _overlap(one: Span, other: Span) -> float:
    return max(0.0, min(one[1], other[1]) - max(one[0], other[0]))

"""What a person sees while a model trains: short lines on stdout, from learner 0."""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from espnet2 import __version__ as espnet_version
from espnet2.train.reporter import SubReporter, aggregate

INTERVAL = 15.0
"""Seconds between two lines within an epoch."""


def duration(seconds: float) -> str:
    """Return e.g. `4 s`, `3 min 05 s` or `2 h 10 min`."""
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 1:
        return f"{rest} s"
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def latest(reporter: SubReporter, key: str, steps: int | None = None) -> float:
    """Return the mean of `key` over the last `steps` steps (all if None), or NaN."""
    values = reporter.stats.get(key, [])
    values = values if steps is None else values[-steps:]
    return float(aggregate(values)) if values else float("nan")


class Progress:
    """Prints the position in the training, and keeps `distopt/summary.json`.

    Args:
        talks: whether this learner prints and writes; one of them does.
        about: what the summary says of the run as a whole.

    Attributes:
        samples: utterances that this learner has trained on in this epoch.
    """

    def __init__(
        self, output_dir: Path, max_epoch: int, talks: bool, **about: Any
    ) -> None:
        self._talks = talks
        self._summary = output_dir / "distopt" / "summary.json"
        self._about = about
        self._max_epoch = max_epoch
        self._epoch_times: list[float] = []
        self._train_loss = float("nan")
        self.samples = 0

    def begin_epoch(
        self,
        epoch: int,
        steps: int | None,
        done: int | None = 0,
        earlier: dict[str, float] | None = None,
    ) -> None:
        """Note where the epoch begins.

        Args:
            epoch: its number.
            steps: its length if known.
            done: how many of them an earlier run has made; None: all.
            earlier: what `spent` returned in that run.
        """
        self._epoch, self._steps = epoch, steps
        if self._talks and done != 0:
            where = f"step {done}/{steps or '?'}" if done else "its validation"
            self._say(f"goes on {'after' if done else 'with'} {where}")
        earlier = earlier or {"samples": 0, "seconds": 0.0}
        self._printed = time.perf_counter()
        self._began = self._printed - earlier["seconds"]
        self.samples = int(earlier["samples"])

    def spent(self) -> dict[str, float]:
        """Return what this epoch has taken so far."""
        seconds = time.perf_counter() - self._began
        return {"samples": self.samples, "seconds": seconds}

    def step(self, step: int, reporter: SubReporter) -> None:
        """Print a line if the last is some time ago."""
        now = time.perf_counter()
        if not self._talks or now - self._printed < INTERVAL:
            return
        self._printed = now
        loss = latest(reporter, "loss", 50)
        self._say(
            f"step {step}/{self._steps or '?'}",
            f"loss {loss:.3f}",
            self._left(step / self._steps if self._steps else 0.0),
        )

    def stop(self, step: int, signal: str | None, saved: bool) -> None:
        """Say that the run stops after `step`, asked by `signal` (None: another's)."""
        if self._talks:
            what = "state saved" if saved else "the epoch will be repeated"
            self._say(
                f"stopped after step {step}/{self._steps or '?'} "
                f"by {signal or 'another learner'}",
                f"{what}: start again to go on",
            )

    def end_training(self, reporter: SubReporter) -> None:
        """Note the loss of the epoch's training part."""
        self._train_loss = latest(reporter, "loss")

    def end_epoch(self, reporter: SubReporter, total_samples: float) -> None:
        """Print the epoch's line and add the epoch to the summary."""
        if not self._talks:
            return
        elapsed = time.perf_counter() - self._began
        self._epoch_times.append(elapsed)
        self._say(
            f"loss {self._train_loss:.3f}",
            f"valid loss {latest(reporter, 'loss'):.3f}",
            duration(elapsed),
            self._left(1.0),
        )
        self._update_summary(elapsed, total_samples)

    def _left(self, done: float) -> str:
        """Return the time left, from finished epochs or from this one's pace."""
        epochs_left = self._max_epoch - self._epoch + 1 - done
        if self._epoch_times:
            per_epoch = sum(self._epoch_times) / len(self._epoch_times)
        elif done > 0:
            per_epoch = (time.perf_counter() - self._began) / done
        else:
            return ""
        left = per_epoch * epochs_left
        return f"{duration(left)} left" if epochs_left > 0 else "done"

    def _say(self, *parts: str) -> None:
        line = "  ".join(part for part in parts if part)
        print(f"epoch {self._epoch}/{self._max_epoch}  {line}", flush=True)

    def _update_summary(self, seconds: float, samples: float) -> None:
        try:
            epochs = json.loads(self._summary.read_text())["per_epoch"]
        except (OSError, ValueError, KeyError):
            epochs = {}
        epochs = {key: e for key, e in epochs.items() if int(key) < self._epoch}
        epochs[str(self._epoch)] = {"seconds": round(seconds, 2), "samples": samples}
        summary = {
            **self._about,
            "epochs": self._epoch,
            "samples": sum(epoch["samples"] for epoch in epochs.values()),
            "seconds": round(sum(epoch["seconds"] for epoch in epochs.values()), 2),
            "espnet": espnet_version,
            "torch": torch.__version__,
            "python": sys.version.split()[0],
            "per_epoch": epochs,
        }
        self._summary.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._summary.with_suffix(".part")
        temporary.write_text(json.dumps(summary, indent=1) + "\n")
        os.replace(temporary, self._summary)

"""What a person sees while a model trains.

Short lines on stdout, from learner 0; each learner's own file for `bin.status`.
"""

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from espnet2 import __version__ as espnet_version
from espnet2.train.reporter import SubReporter, aggregate

from espnet_distopt.espnet.training.learner_log import LearnerLog
from espnet_distopt.espnet.training.stopping import Stopped
from espnet_distopt.files.writing import write_json
from espnet_distopt.monitoring.duration import duration
from espnet_distopt.monitoring.lines import Event

INTERVAL = 15.0
"""Seconds between two lines within an epoch."""


def latest(reporter: SubReporter, key: str, steps: int | None = None) -> float:
    """Return the mean of `key` over the last `steps` steps (all if None), or NaN."""
    values = reporter.stats.get(key, [])
    values = values if steps is None else values[-steps:]
    return float(aggregate(values)) if values else float("nan")


class Progress:
    """Prints the position in the training, and keeps `distopt/summary.json`.

    Every learner writes its own file (`learner_log`); one of them does the rest.

    Args:
        output_dir: of the experiment.
        max_epoch: of the training.
        talks: whether this learner prints and writes the summary.
        algorithm: its name.
        learners: how many there are.

    Attributes:
        samples: utterances that this learner has trained on in this epoch.
        batches: that it has trained on in this epoch, with those of an earlier run.
        position: the step of the epoch: of this learner, or, where learners take their
            batches from a work queue, of all of them on average.
    """

    def __init__(
        self,
        output_dir: Path,
        max_epoch: int,
        talks: bool,
        algorithm: str,
        learners: int,
    ) -> None:
        self._talks = talks
        self._summary = output_dir / "distopt" / "summary.json"
        self._about = {"algorithm": algorithm, "learners": learners}
        self._max_epoch = max_epoch
        self._epoch_times: list[float] = []
        self._train_loss = float("nan")
        self._log = LearnerLog(output_dir, max_epoch, algorithm, learners)
        self.samples = self.batches = self.position = 0

    def begin_epoch(
        self,
        epoch: int,
        steps: int | None,
        step: int | None = 0,
        earlier: dict[str, float] | None = None,
    ) -> None:
        """Note where the epoch begins.

        Args:
            epoch: its number.
            steps: its length if known.
            step: the one that an earlier run has come to; None: the last.
            earlier: what `spent` returned in that run.
        """
        self._epoch, self._steps = epoch, steps
        if self._talks and step != 0:
            where = f"step {step}/{steps or '?'}" if step else "its validation"
            self._say(f"goes on {'after' if step else 'with'} {where}")
        earlier = earlier or {"samples": 0, "batches": 0, "seconds": 0.0}
        self._printed = time.perf_counter()
        self._began = self._printed - earlier["seconds"]
        self.samples = int(earlier["samples"])
        self.batches = int(earlier["batches"])
        self.position = steps or 0 if step is None else step
        self._log.begin_epoch(epoch, steps, self.batches, self.samples)
        if self._log.last is None:
            goes_on = epoch > 1 or step != 0
            self._write("resume" if goes_on else "begin")

    def spent(self) -> dict[str, float]:
        """Return what this epoch has taken so far."""
        seconds = time.perf_counter() - self._began
        return {
            "samples": self.samples,
            "batches": self.batches,
            "seconds": seconds,
        }

    def step(
        self, step: int, reporter: SubReporter, figures: Mapping[str, float]
    ) -> None:
        """Print and write a line if the last is some time ago.

        Args:
            step: the position from now on.
            reporter: of the epoch.
            figures: the session's, of this step.
        """
        self.position = step
        self._log.add(figures)
        now = time.perf_counter()
        if now - self._printed < INTERVAL:
            return
        self._printed = now
        left = self._left(step / self._steps if self._steps else 0.0)
        self._write("step", reporter, left=left)
        if self._talks:
            loss = latest(reporter, "loss", 50)
            self._say(
                f"step {step}/{self._steps or '?'}", f"loss {loss:.3f}", _in_words(left)
            )

    def stop(self, signal: str | None, saved: bool) -> None:
        """Say that the run stops here, asked by `signal` (None: another's)."""
        self._write("stop", signal=signal, saved=saved)
        if self._talks:
            what = "state saved" if saved else "the epoch will be repeated"
            self._say(
                f"stopped after step {self.position}/{self._steps or '?'} "
                f"by {signal or 'another learner'}",
                f"{what}: start again to go on",
            )

    def end_training(self, reporter: SubReporter) -> None:
        """Note the loss of the epoch's training part."""
        self._train_loss = latest(reporter, "loss")
        self._write("validate", reporter, left=self._left(1.0))

    def end_epoch(self, reporter: SubReporter, total_samples: float) -> None:
        """Print and write the epoch's line and add the epoch to the summary."""
        elapsed = time.perf_counter() - self._began
        self._epoch_times.append(elapsed)
        left = self._left(1.0)
        figures: dict[str, Any] = {
            "epoch_loss": self._train_loss,
            "valid_loss": latest(reporter, "loss"),
        }
        if "consensus_distance" in reporter.stats:
            figures["consensus_distance"] = latest(reporter, "consensus_distance")
        self._write("epoch", left=left, **figures)
        if not self._talks:
            return
        self._say(
            f"loss {self._train_loss:.3f}",
            f"valid loss {figures['valid_loss']:.3f}",
            duration(elapsed),
            _in_words(left),
        )
        self._update_summary(elapsed, total_samples)

    def leave(self, error: BaseException | None) -> None:
        """Write that the training has ended, and why if it has failed."""
        if isinstance(error, Stopped) or self._log.last is None:
            return
        why = None if error is None else f"{type(error).__name__}: {error}"
        self._write("end", error=why and why.rstrip(": ").splitlines()[0])

    def _left(self, done: float) -> float | None:
        """Return the seconds left, from finished epochs or from this one's pace."""
        epochs_left = self._max_epoch - self._epoch + 1 - done
        if self._epoch_times:
            per_epoch = sum(self._epoch_times) / len(self._epoch_times)
        elif done > 0:
            per_epoch = (time.perf_counter() - self._began) / done
        else:
            return None
        return max(0.0, per_epoch * epochs_left)

    def _write(
        self, event: Event, reporter: SubReporter | None = None, **more: Any
    ) -> None:
        """Write a line; with a `reporter`, of the loss since the last one, too."""
        new = self.batches - self._log.batches
        if reporter is not None and new > 0 and "loss" in reporter.stats:
            more["loss"] = latest(reporter, "loss", new)
        self._log.write(event, self.position, self.batches, self.samples, **more)

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
        write_json(self._summary, summary)


def _in_words(left: float | None) -> str:
    if left is None:
        return ""
    return f"{duration(left)} left" if left > 0 else "done"

"""How far a training is, for a person who watches it.

Learner 0 prints short lines on stdout and keeps `distopt/summary.json`. Every learner
writes a file of its own, which `bin.status` reads.
"""

import json
import logging
import os
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from espnet2 import __version__ as espnet_version
from espnet2.train.reporter import SubReporter, aggregate

from espnet_distopt.core.membership import Members
from espnet_distopt.errors import in_words
from espnet_distopt.files.writing import write_json
from espnet_distopt.monitoring.duration import duration
from espnet_distopt.monitoring.lines import Event, Line, append

ALL_WRONG = (0.9, 1.02)
"""The share of validation tokens that CTC's best path gets wrong if it hardly depends
on the input: blanks alone have 1, the commonest token everywhere less. Who writes more
than that has left the plateau.
"""
FEW_STEPS = 300
"""The steps in which any model may be on the plateau."""
INTERVAL = 15.0
"""The number of seconds between two lines within an epoch, at least."""
SUMS = ("comm_time", "wait_time", "bytes", "exchanges")
"""The session's figures of a step that a line adds up over its steps."""
_FINISHED = (
    "{}: the training there is finished, and nothing was trained now: a larger "
    "max_epoch goes on; another directory begins anew (in a recipe: --tag NAME)"
)


def latest(reporter: SubReporter, key: str, steps: int | None = None) -> float:
    """Return the mean of `key` over the last `steps` steps (all if None), or NaN."""
    values = reporter.stats.get(key, [])
    values = values if steps is None else values[-steps:]
    return float(aggregate(values)) if values else float("nan")


@dataclass
class _Since:
    """What has happened since a learner's last line, or since its epoch began."""

    start: float
    batches: int
    samples: int
    sums: dict[str, Any] = field(default_factory=dict)
    staleness: list[float] = field(default_factory=list)
    staleness_max: float = 0.0

    def add(self, figures: Mapping[str, float]) -> None:
        """Count the session's figures of one step."""
        for key in SUMS:
            if key in figures:
                self.sums[key] = self.sums.get(key, 0.0) + figures[key]
        if "staleness" in figures:
            self.staleness.append(figures["staleness"])
            largest = figures.get("staleness_max", 0.0)
            self.staleness_max = max(self.staleness_max, largest)


class Progress:
    """Prints and writes the position of one learner in the training.

    A file that cannot be written is logged, and does not end the training.

    Attributes:
        talks: Whether this learner prints, and writes the summary, at this moment.
        samples, batches: How many it has trained on in this epoch, in earlier runs too.
        position: The step that the epoch has come to. It is this learner's own, except
            where learners take their batches from a work queue: there it is the mean
            over the learners.
        steps: The number of steps of the epoch; None if it is not known.
    """

    def __init__(
        self,
        output_dir: Path,
        max_epoch: int,
        talks: bool,
        algorithm: str,
        learners: int,
    ) -> None:
        self.talks = talks
        self._output_dir = output_dir
        self._about: dict[str, Any] = {"algorithm": algorithm, "learners": learners}
        self._max_epoch = max_epoch
        self._epochs: list[tuple[float, float]] = []  # seconds of training, and of all
        self._ended = time.perf_counter()  # the end of the epoch before
        self._train_loss = float("nan")
        self._trained = False  # A run may begin with the validation of an epoch.
        self.samples = self.batches = self.position = 0
        self.steps: int | None = None
        rank = dist.get_rank() if dist.is_initialized() else 0
        self._summary = output_dir / "distopt" / "summary.json"
        self._log = output_dir / "distopt" / f"learner{rank}.jsonl"
        self._who: dict[str, Any] = {
            **self._about,
            "rank": rank,
            "max_epoch": max_epoch,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            **_slurm_job(),
        }
        self._written, self._cpu = time.perf_counter(), _cpu_seconds()
        self._last: Event | None = None
        self._has_nvml = True

    def begin_epoch(
        self,
        epoch: int,
        steps: int | None,
        step: int | None = 0,
        earlier: dict[str, float] | None = None,
    ) -> None:
        """Note where the epoch, of so many steps, begins.

        An earlier run has come to `step`, or None if only the validation is left, and
        `spent` has returned `earlier` there.
        """
        self._epoch, self.steps = epoch, steps
        if self.talks and step != 0:
            where = f"step {step}/{steps or '?'}" if step else "its validation"
            self._say(f"goes on {'after' if step else 'with'} {where}")
        earlier = earlier or {"samples": 0, "batches": 0, "seconds": 0.0}
        self._printed = time.perf_counter()
        self._began = self._printed - earlier["seconds"]
        self.samples = int(earlier["samples"])
        self.batches = int(earlier["batches"])
        self.position = steps or 0 if step is None else step
        self._earlier = self._training = earlier["seconds"]
        self._before: float | None = None
        self._since = _Since(self._printed, self.batches, self.samples)
        if self._last is None:
            goes_on = epoch > 1 or step != 0
            if self.talks and goes_on:
                self._say_what_changed()
            self._write("resume" if goes_on else "begin")

    def _say_what_changed(self) -> None:
        """Say whether another algorithm, or another number of learners, goes on."""
        before = self._read_summary()
        before = {key: before.get(key, now) for key, now in self._about.items()}
        if before != self._about:
            was, now = (
                f"{each['algorithm']} with {each['learners']} learner"
                + "s" * (each["learners"] > 1)
                for each in (before, self._about)
            )
            self._say(f"goes on by {now}, after {was}".replace("none", "stock ESPnet"))

    def total_samples(self, epoch: float | None = None) -> float:
        """Return the utterances of all learners since the training began.

        Those of this epoch are given, or estimated from this learner's own.
        """
        if self._before is None:
            self._before = sum(e["samples"] for e in self._earlier_epochs().values())
        if epoch is None:
            each = self.samples / max(1, self.batches)
            epoch = each * self.position * self._about["learners"]
        return self._before + epoch

    def spent(self) -> dict[str, float]:
        """Return the utterances, batches and seconds of this epoch so far."""
        seconds = time.perf_counter() - self._began
        return dict(samples=self.samples, batches=self.batches, seconds=seconds)

    def step(
        self, step: int, reporter: SubReporter, figures: Mapping[str, float]
    ) -> None:
        """Print and write a line if the last one is more than `INTERVAL` old."""
        self.position = step
        self._since.add(figures)
        now = time.perf_counter()
        if now - self._printed < INTERVAL:
            return
        self._printed = now
        left = self._left(step / self.steps if self.steps else 0.0)
        self._write("step", reporter, left=left)
        if self.talks:
            loss = latest(reporter, "loss", 50)
            words = _in_words(left)
            if words and not self._epochs:
                words = f"at least {words}"  # No validation is known yet.
            self._say(f"step {step}/{self.steps or '?'}", f"loss {loss:.3f}", words)

    def stop(self, signal: str | None, saved: bool, resume: bool = True) -> None:
        """Say that the run stops here, and whether this learner's state is saved.

        Args:
            signal: The name of the signal; None if another learner has got one.
            saved: Whether it is.
            resume: Whether the same options let ESPnet go on from what was saved.
        """
        self._write("stop", signal=signal, saved=saved)
        if self.talks:
            what = "state saved" if saved else "the epoch will be repeated"
            how = "start again" if resume else "start again with --resume true"
            self._say(
                f"stopped after step {self.position}/{self.steps or '?'} "
                f"by {signal or 'another learner'}",
                f"{what}: {how} to go on",
            )

    def follow(self, members: Members) -> None:
        """Write and print who lives from now on."""
        self._write("members", members=",".join(map(str, members.ranks)))
        if not self.talks:
            return
        size, left = self._about["learners"], members.ranks
        lost = ", ".join(str(rank) for rank in range(size) if rank not in left)
        self._say(
            f"lost: learner {lost}; {len(left)} of {size} left"
            if lost
            else f"all {size} learners train again"
        )

    def end_training(self, reporter: SubReporter) -> None:
        """Note the mean training loss of the epoch; write that validation begins."""
        self._training = time.perf_counter() - self._began
        self._train_loss = latest(reporter, "loss")
        self._trained = bool(reporter.stats.get("loss"))
        self._write("validate", reporter, left=self._left(1.0))

    def end_epoch(self, reporter: SubReporter, total_samples: float) -> None:
        """Print and write the epoch's line, and add the epoch to the summary."""
        now = time.perf_counter()
        elapsed = now - self._began
        self._epochs.append((self._training, now - self._ended + self._earlier))
        self._ended = now
        left = self._left(None)
        figures: dict[str, Any] = {
            "epoch_loss": self._train_loss,
            "valid_loss": latest(reporter, "loss"),
        }
        if "consensus_distance" in reporter.stats:
            figures["consensus_distance"] = latest(reporter, "consensus_distance")
        self._write("epoch", left=left, **figures)
        if not self.talks:
            return
        self._say(
            f"loss {self._train_loss:.3f}" if self._trained else "",
            f"valid loss {figures['valid_loss']:.3f}",
            duration(elapsed),
            _in_words(left),
        )
        self._warn_of_plateau(latest(reporter, "cer_ctc"))
        self._update_summary(elapsed, total_samples)

    def _warn_of_plateau(self, wrong: float) -> None:
        """Say, after epochs 2, 4, 8 and so on, that the model has not begun to learn.

        `wrong` is the share of validation tokens that CTC's best path gets wrong.
        """
        epoch = self._epoch
        # It is NaN if the model has no CTC, or its error rate is not reported.
        least, most = ALL_WRONG
        if epoch < 2 or epoch & (epoch - 1) or not least <= wrong <= most:
            return
        if epoch * (self.steps or FEW_STEPS) < FEW_STEPS:
            return
        causes = "the learning rate is too high, or much too low"
        if self._about["algorithm"] in ("bmuf", "bmuf_adam", "diloco", "slowmo"):
            causes += ", or block momentum begins too early (see the option warmup)"
        self._say(
            f"CTC's best path gets {wrong:.0%} of the validation tokens wrong, as a "
            f"constant output does: if it stays so, then most likely {causes}"
        )

    def leave(self, error: BaseException | None) -> None:
        """Write that the process ends, and why if the training has failed.

        A training that was finished before has no epoch left, which is said instead.
        """
        if self._last is None:
            if self.talks and error is None:
                print(_FINISHED.format(self._output_dir), flush=True)
            return
        self._write("end", error=None if error is None else in_words(error))

    def _left(self, done: float | None) -> float | None:
        """Return the seconds left by this run's epochs, or by the pace of its first.

        An epoch lasts until the next one begins to train, so validation counts, and
        what ESPnet plots and saves. The first epoch has the start of the run in it, and
        counts only while there is no other. A share of this epoch's training is `done`;
        None: its validation, too.
        """
        known = self._epochs[1:] or self._epochs
        if known:
            training = sum(each for each, _ in known) / len(known)
            whole = sum(each for _, each in known) / len(known)
        elif done:
            training = whole = (time.perf_counter() - self._began) / done
        else:
            return None
        here = 0.0 if done is None else whole - done * training
        return here + whole * (self._max_epoch - self._epoch)

    def _write(
        self, event: Event, reporter: SubReporter | None = None, **more: Any
    ) -> None:
        """Write a line; with a `reporter`, it has the mean loss since the last one."""
        since, new = self._since, self.batches - self._since.batches
        if reporter is not None and new > 0 and "loss" in reporter.stats:
            more["loss"] = latest(reporter, "loss", new)
        if since.staleness:
            more["staleness"] = sum(since.staleness) / len(since.staleness)
            more["staleness_max"] = since.staleness_max
        # A change of the members comes within the training, or after it.
        training = event in ("step", "validate", "stop") or (
            event == "members" and new > 0
        )
        now, cpu = time.perf_counter(), _cpu_seconds()
        elapsed = now - self._written
        line = Line(
            time=time.time(),
            event=event,
            epoch=self._epoch,
            step=self.position,
            steps=self.steps,
            epoch_samples=self.samples,
            seconds=now - max(self._written, since.start) if training else 0.0,
            batches=new,
            samples=self.samples - since.samples,
            cpu=(cpu - self._cpu) / elapsed if elapsed > 1 else None,
            **self._who,
            **since.sums,
            **self._gpu_use(),
            **more,
        )
        self._since = _Since(time.perf_counter(), self.batches, self.samples)
        self._written, self._cpu, self._last = now, cpu, event
        try:
            append(line, self._log)
        except OSError as error:
            logging.warning(f"{self._log}: cannot be written: {error.strerror}")

    def _say(self, *parts: str) -> None:
        line = "  ".join(part for part in parts if part)
        print(f"epoch {self._epoch}/{self._max_epoch}  {line}", flush=True)

    def _update_summary(self, seconds: float, samples: float) -> None:
        epochs = self._earlier_epochs()
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

    def _read_summary(self) -> dict[str, Any]:
        try:
            return dict(json.loads(self._summary.read_text()))
        except (OSError, ValueError, TypeError):
            return {}

    def _earlier_epochs(self) -> dict[str, Any]:
        """Return the summary's entries of the epochs before this one, by number."""
        epochs = self._read_summary().get("per_epoch", {})
        return {key: e for key, e in epochs.items() if int(key) < self._epoch}

    def _gpu_use(self) -> dict[str, Any]:
        """Return the GPU's memory, and its load where NVML's package is installed."""
        if not torch.cuda.is_initialized():
            return {}
        use = {"gpu_memory": float(torch.cuda.memory_reserved())}
        if self._has_nvml:
            try:
                use["gpu"] = torch.cuda.utilization() / 100
            except Exception as error:  # NVML raises errors of its own classes.
                logging.info(f"the use of the GPU is not known: {error!r}")
                self._has_nvml = False
        return use


def _in_words(left: float | None) -> str:
    if left is None:
        return ""
    return f"{duration(left)} left" if left > 0 else "done"


def _slurm_job() -> dict[str, Any]:
    if "SLURM_JOB_ID" not in os.environ:
        return {}
    restarts = os.environ.get("SLURM_RESTART_COUNT") or "0"
    return {
        "slurm_job": os.environ["SLURM_JOB_ID"],
        "slurm_restarts": int(restarts) if restarts.isdecimal() else None,
    }


def _cpu_seconds() -> float:
    times = os.times()
    return times.user + times.system

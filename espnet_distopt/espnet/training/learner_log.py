"""The file in which each learner tells how it trains; `monitoring.lines` reads it."""

import logging
import os
import socket
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from espnet_distopt.monitoring.lines import Event, Line, append

SUMS = ("comm_time", "wait_time", "bytes", "exchanges")
"""The session's figures of a step that a line adds up over its steps."""


class LearnerLog:
    """Appends lines to `distopt/learner{rank}.jsonl`.

    A line tells where the learner is and what has happened since its last line.

    Args:
        output_dir: The experiment's directory.
        max_epoch: The number of the last epoch.
        algorithm: The name of the algorithm.
        learners: The number of learners.

    Attributes:
        last: The event of the last line; None before the first.
        batches: The number of batches of this epoch up to the last line.
    """

    def __init__(
        self, output_dir: Path, max_epoch: int, algorithm: str, learners: int
    ) -> None:
        rank = dist.get_rank() if dist.is_initialized() else 0
        self.last: Event | None = None
        self._path = output_dir / "distopt" / f"learner{rank}.jsonl"
        self._who: dict[str, Any] = {
            "rank": rank,
            "learners": learners,
            "algorithm": algorithm,
            "max_epoch": max_epoch,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            **_slurm_job(),
        }
        self._written, self._cpu = time.perf_counter(), _cpu_seconds()
        self._has_nvml = True
        self.begin_epoch(1, None, 0, 0)

    def begin_epoch(
        self, epoch: int, steps: int | None, batches: int, samples: int
    ) -> None:
        """Begin to count anew, from a position in an epoch.

        Args:
            epoch: The number of the epoch.
            steps: The number of its steps; None if it is not known.
            batches: The number of batches that this learner has trained on in it.
            samples: The number of utterances, likewise.
        """
        self._epoch: dict[str, Any] = {"epoch": epoch, "steps": steps}
        self._began = time.perf_counter()
        self.batches, self._samples = batches, samples
        self._sums: defaultdict[str, float] = defaultdict(float)
        self._staleness: list[float] = []
        self._staleness_max = 0.0

    def add(self, figures: Mapping[str, float]) -> None:
        """Count the session's figures of one step."""
        for key in SUMS:
            self._sums[key] += figures.get(key, 0.0)
        if "staleness" in figures:
            self._staleness.append(figures["staleness"])
            largest = figures.get("staleness_max", 0.0)
            self._staleness_max = max(self._staleness_max, largest)

    def write(
        self, event: Event, step: int, batches: int, samples: int, **more: Any
    ) -> None:
        """Append a line.

        A file that cannot be written is logged, and does not end the training.

        Args:
            event: What happens.
            step: The step that the epoch has come to.
            batches: The number of batches that this learner has trained on in it.
            samples: The number of utterances, likewise.
            more: Further figures of the line, by name.
        """
        # A change of the members comes within the training, or after it.
        training = event in ("step", "validate", "stop") or (
            event == "members" and batches > self.batches
        )
        now, cpu = time.perf_counter(), _cpu_seconds()
        elapsed = now - self._written
        since: dict[str, Any] = {
            "seconds": now - max(self._written, self._began) if training else 0.0,
            "batches": batches - self.batches,
            "samples": samples - self._samples,
            "cpu": (cpu - self._cpu) / elapsed if elapsed > 1 else None,
            **self._sums,
        }
        if self._staleness:
            since["staleness"] = sum(self._staleness) / len(self._staleness)
            since["staleness_max"] = self._staleness_max
        line = Line(
            time=time.time(),
            event=event,
            step=step,
            epoch_samples=samples,
            **self._who,
            **self._epoch,
            **since,
            **self._gpu_use(),
            **more,
        )
        self.begin_epoch(line.epoch, line.steps, batches, samples)
        self._written, self._cpu, self.last = now, cpu, event
        try:
            append(line, self._path)
        except OSError as error:
            logging.warning(f"{self._path}: cannot be written: {error.strerror}")

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

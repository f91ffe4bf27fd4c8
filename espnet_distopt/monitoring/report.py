"""What `bin.status --json` says about an experiment, for programs."""

from typing import Any

from espnet_distopt.monitoring.experiment import Experiment
from espnet_distopt.monitoring.learner import LearnerHistory
from espnet_distopt.monitoring.lines import plain


def report(experiment: Experiment, now: float) -> dict[str, Any]:
    """Return the state and the figures of an experiment, ready to be written as JSON.

    Rates are per second of training, and shares are of the time of training; see
    `monitoring.learner`.

    Args:
        experiment: The experiment.
        now: Unix time for which the state is told.
    """
    behind, last = experiment.behind, experiment.last
    content = {
        "experiment": str(experiment.directory),
        "state": experiment.state(now),
        "description": experiment.describe(now),
        "algorithm": last.algorithm,
        "learners": last.learners,
        "members": sorted(set(range(last.learners)) - set(experiment.lost)),
        "changes": [change._asdict() for change in experiment.changes],
        "slurm_job": last.slurm_job,
        "slurm_restarts": last.slurm_restarts,
        "epoch": behind.epoch,
        "max_epoch": behind.max_epoch,
        "step": behind.step,
        "steps": behind.steps,
        "loss": experiment.loss,
        "valid_loss": experiment.at_epoch_end("valid_loss"),
        "consensus_distance": experiment.at_epoch_end("consensus_distance"),
        "samples_per_s": experiment.samples_per_second,
        "seconds_left": experiment.seconds_left(now),
    }
    slowest = experiment.slowest
    learners = [
        {
            "rank": rank,
            "slowest": rank == slowest,
            **_learner(each, now),
            **({"state": "lost"} if rank in experiment.lost else {}),
        }
        for rank, each in experiment.learners.items()
    ]
    return {**_plain(content), "per_learner": learners}


def _learner(learner: LearnerHistory, now: float) -> dict[str, Any]:
    last = learner.last
    content = {
        "host": last.host,
        "pid": last.pid,
        "state": learner.state(now),
        "age": learner.age(now),
        "epoch": last.epoch,
        "step": last.step,
        "loss": learner.loss,
        "samples_per_s": learner.per_second("samples"),
        "steps_per_s": learner.per_second("batches"),
        "bytes_per_s": learner.per_second("bytes"),
        "communicating": learner.per_second("comm_time"),
        "waiting": learner.per_second("wait_time"),
        "staleness": learner.mean("staleness"),
        "staleness_max": learner.staleness_max,
        "cpu": learner.mean("cpu"),
        "gpu": learner.mean("gpu"),
        "gpu_memory": last.gpu_memory,
    }
    return _plain(content)


def _plain(content: dict[str, Any]) -> dict[str, Any]:
    return {key: plain(value) for key, value in content.items()}

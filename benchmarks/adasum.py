"""Adasum beside the sum and the mean of the learners' updates, and one learner.

At 8, 16 and 32 virtual learners, by SGD with momentum, from the same learning rates,
those of one learner. The mean is `allreduce`; the sum is `allreduce` with an N-fold
rate, in which the update is the sum of what the learners would add. Adasum lies in
between: the sum of orthogonal updates, the mean of parallel ones.

    FSDD=/path python benchmarks/adasum.py --workers 2      # 5 minutes
"""

from dataclasses import replace

from convergence.across_learners import StudySize, compare
from convergence.training import SINGLES, Training

BATCH = 4
FULL = StudySize(
    learners=(8, 16, 32),
    samples=32_768,
    rates=(0.003, 0.01, 0.03, 0.1),
    seeds=(0, 1, 2),
)
QUICK = StudySize(learners=(2, 4), samples=512, rates=(0.01, 0.03), seeds=(0, 1))


def methods(samples: int, learners: int) -> dict[str, Training]:
    """Return the trainings to compare."""
    mean = Training(
        algorithm="allreduce",
        learners=learners,
        batch=BATCH,
        samples=samples,
        lr=1.0,
        seed=0,
        problem=SINGLES,
    )
    return {
        "mean": mean,
        "adasum": replace(mean, algorithm="adasum"),
        "sum": replace(mean, lr=float(learners)),
    }


NOTE = (
    "SGD with momentum 0.9. Mean: allreduce; sum: allreduce with N times the rate; "
    "adasum: of updates, in every step."
)

if __name__ == "__main__":
    compare("adasum", __doc__, FULL, QUICK, methods, NOTE)

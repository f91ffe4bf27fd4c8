"""The benchmark compares Adasum with the mean and the sum of the learners' updates.

It trains 8, 16 and 32 virtual learners, and one learner alone, by SGD with momentum.
All methods choose from the same learning rates, which are those of one learner. The
mean is `allreduce`. The sum is `allreduce` with N times the rate: its update is the sum
of the updates that the learners would make alone. Adasum lies in between: it adds
orthogonal updates and averages parallel ones.

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
    """Return the training of each method to compare.

    Args:
        samples: the number of samples of a training.
        learners: the number of learners.
    """
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
    "The optimizer is SGD with momentum 0.9. The mean is allreduce; the sum is "
    "allreduce with N times the rate; adasum combines the updates of every step."
)

if __name__ == "__main__":
    compare("adasum", __doc__, FULL, QUICK, methods, NOTE)

"""The benchmark compares what BMUF can do with Adam's moments at the end of a block.

It trains 8, 16 and 32 virtual learners by BMUF with Adam. The moments are either
extrapolated to the start of the next block (BMUF-Adam) or averaged over the learners.
Synchronous Adam and one learner alone are the baselines. All trainings see equally many
samples. In the first fifth of the steps, blocks end in a plain average, because block
momentum would amplify the large first steps of a random model.

    FSDD=/path python benchmarks/moments.py --workers 2      # 5 minutes
"""

from dataclasses import replace

from convergence.across_learners import StudySize, compare
from convergence.training import SINGLES, Training

BATCH = 4
PERIOD = 2
FULL = StudySize(
    learners=(8, 16, 32),
    samples=32_768,
    rates=(0.0003, 0.001, 0.003, 0.01),
    seeds=(0, 1, 2),
)
QUICK = StudySize(learners=(2, 4), samples=512, rates=(0.003, 0.01), seeds=(0, 1))


def methods(samples: int, learners: int) -> dict[str, Training]:
    """Return the training of each method to compare.

    Args:
        samples: the number of samples of a training.
        learners: the number of learners.
    """
    adam = Training(
        algorithm="allreduce",
        learners=learners,
        batch=BATCH,
        samples=samples,
        lr=1.0,
        seed=0,
        problem=SINGLES,
        optim="adam",
    )

    def bmuf(moments: str) -> Training:
        options = {"period": PERIOD, "warmup": adam.steps // 5, "moments": moments}
        return replace(adam, algorithm="bmuf_adam", options=tuple(options.items()))

    return {
        "allreduce": adam,
        "bmuf_adam, extrapolate": bmuf("extrapolate"),
        "bmuf_adam, average": bmuf("average"),
    }


NOTE = (
    f"The optimizer is Adam; blocks have {PERIOD} steps, and block momentum is 1 - 1/N "
    "after the first fifth of the steps."
)

if __name__ == "__main__":
    compare("moments", __doc__, FULL, QUICK, methods, NOTE)

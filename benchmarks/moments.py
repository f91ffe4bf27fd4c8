"""What becomes of Adam's moments under BMUF: extrapolated, averaged; and no BMUF.

BMUF with Adam at 8, 16 and 32 virtual learners: its moments extrapolated to the start
of the next block (BMUF-Adam), or averaged over the learners; beside synchronous Adam
and one learner. All see as many samples. In the first fifth of the steps, blocks are
plain averages: block momentum amplifies the wild first steps of a random model.

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
    """Return the trainings to compare."""
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
    f"Adam; blocks of {PERIOD} steps, block momentum 1 - 1/N after the first fifth of "
    "the steps."
)

if __name__ == "__main__":
    compare("moments", __doc__, FULL, QUICK, methods, NOTE)

"""The module lists the runs of `straggler`: methods with a queue or equal shares."""

from dataclasses import dataclass
from typing import Any

from emulated.methods import PEERS, MeasuredMethod
from espnet_distopt.algorithms import ALGORITHMS

LEARNERS = 4
NODE = 2
"""The number of learners of a node, for hadpsgd."""
PARAMETERS = 1_000_000
STEP_SECONDS = 0.1
OPTIONS: dict[str, dict[str, Any]] = {
    **{name: {"period": 4} for name in ("bmuf", "bmuf_adam", "local_sgd", "slowmo")},
    "diloco": {"period": 4},
    "hadpsgd": {"per_node": NODE},
    "PostLocalSGD": {"period": 4},
    "fairscale SlowMo": {"period": 4},
    "hivemind": {"period": 32},
}


@dataclass(frozen=True, kw_only=True)
class StragglerRun:
    """One run of a method.

    Attributes:
        method: the method.
        slowdown: how many times slower the last learner is than the others.
        steps: the number of steps of all learners together.
        queue: whether learners take batches from a queue as they become free;
            otherwise each learner has an equal share.
        slow: the number of learners that are as slow as the last one, because they step
            together with it.
    """

    method: MeasuredMethod
    slowdown: float
    steps: int
    queue: bool = False
    slow: int = LEARNERS

    @property
    def label(self) -> str:
        """The name of the run in the table."""
        return self.method.label + (", queue" if self.queue else "")

    @property
    def bound(self) -> float:
        """The largest possible throughput, relative to that of equal learners."""
        return (LEARNERS - self.slow + self.slow / self.slowdown) / LEARNERS


def runs(slowdown: float, quick: bool) -> list[StragglerRun]:
    """Return the runs; the first has equal learners without communication."""
    many, few = (160, 16) if quick else (960, 48)

    def alone(slowdown: float, queue: bool) -> StragglerRun:
        method = MeasuredMethod(name="none")
        return StragglerRun(
            method=method, slowdown=slowdown, steps=many, queue=queue, slow=1
        )

    queued = [
        StragglerRun(
            method=MeasuredMethod(name=name, options=OPTIONS.get(name, {})),
            slowdown=slowdown,
            steps=many,
            queue=True,
            slow=NODE if name == "hadpsgd" else 1,
        )
        for name in ("adpsgd", "hadpsgd", "hivemind")
    ]
    shared = [
        StragglerRun(
            method=MeasuredMethod(
                name=name, options=OPTIONS.get(name, {}), adam=name == "bmuf_adam"
            ),
            slowdown=slowdown,
            steps=few,
        )
        for name in (*ALGORITHMS, *PEERS)
        if name not in ("hivemind", "bare TCP")
    ]
    return [alone(1.0, False), alone(slowdown, True), *queued, *shared]

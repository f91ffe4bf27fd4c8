"""What `straggler` measures: its methods, each with a queue or with equal shares."""

from dataclasses import dataclass
from typing import Any

from emulated.methods import PEERS, MeasuredMethod
from espnet_distopt.algorithms import ALGORITHMS

LEARNERS = 4
NODE = 2
"""Learners of a node of hadpsgd."""
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
class Run:
    """One run of a method.

    Attributes:
        slowdown: of the last learner.
        steps: of all learners together.
        queue: who is through with a batch takes the next; else each learner has an
            equal share.
        slow: learners that are slow with the last one, as they step together.
    """

    method: MeasuredMethod
    slowdown: float
    steps: int
    queue: bool = False
    slow: int = LEARNERS

    @property
    def label(self) -> str:
        """What the table calls it."""
        return self.method.label + (", queue" if self.queue else "")

    @property
    def bound(self) -> float:
        """What can be reached of the speed of equal learners."""
        return (LEARNERS - self.slow + self.slow / self.slowdown) / LEARNERS


def runs(slowdown: float, quick: bool) -> list[Run]:
    """Return what is measured, equal learners without communication first."""
    many, few = (160, 16) if quick else (960, 48)

    def alone(slowdown: float, queue: bool) -> Run:
        method = MeasuredMethod(name="none")
        return Run(method=method, slowdown=slowdown, steps=many, queue=queue, slow=1)

    queued = [
        Run(
            method=MeasuredMethod(name=name, options=OPTIONS.get(name, {})),
            slowdown=slowdown,
            steps=many,
            queue=True,
            slow=NODE if name == "hadpsgd" else 1,
        )
        for name in ("adpsgd", "hadpsgd", "hivemind")
    ]
    shared = [
        Run(
            method=MeasuredMethod(
                name=name, options=OPTIONS.get(name, {}), adam=name == "bmuf_adam"
            ),
            slowdown=slowdown,
            steps=few,
        )
        for name in (*ALGORITHMS, *PEERS)
        if name != "hivemind"
    ]
    return [alone(1.0, False), alone(slowdown, True), *queued, *shared]

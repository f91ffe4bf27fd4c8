"""The module has the methods that average models, for claims about Adam's moments."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

from convergence.claim import Arm, Comparison
from convergence.paired import Question
from convergence.training import Training
from espnet_distopt.core.topology import LONGEST_RING

METHODS: dict[str, tuple[str, dict[str, object]]] = {
    "adpsgd, ring": ("adpsgd", {"topology": "ring"}),
    "adpsgd, random": ("adpsgd", {"topology": "random"}),
    "dpsgd, ring": ("dpsgd", {}),
    "local_sgd, period 8": ("local_sgd", {"period": 8}),
}
"""The name of a method -> its algorithm and options. H-ADPSGD comes on top: its options
depend on the number of learners."""

LARGE: dict[str, tuple[str, dict[str, object]]] = {
    "dpsgd, ring": ("dpsgd", {"topology": "ring"}),
    "dpsgd, randomized ring": ("dpsgd", {"topology": "randomized_ring"}),
}
"""Further methods for more learners than are on a ring by default."""

PER_NODE = {4: 2, 16: 4, 64: 4}
"""Learners -> the learners of a node, for H-ADPSGD."""


def comparisons(
    alone: Training,
    steps: dict[int, int],
    moment: Literal["local", "consistent"],
    question: Question,
) -> Iterator[Comparison]:
    """Yield the comparisons of all methods with all-reduce, at all numbers of learners.

    All have the settings of `alone`, so the learning rate is the same for all.

    Args:
        alone: a training of one learner.
        steps: the number of learners -> the number of steps of each.
        moment: the option `second_moment` of the methods.
        question: the question about all of them.
    """
    for learners, count in steps.items():
        samples = count * learners * alone.batch
        whole = replace(alone, learners=learners, samples=samples)
        hadpsgd = "hadpsgd", {"per_node": PER_NODE[learners]}
        name = f"hadpsgd, nodes of {PER_NODE[learners]}"
        methods = METHODS | {name: hadpsgd}
        if learners > LONGEST_RING:
            methods |= LARGE
        for method, (algorithm, options) in methods.items():
            if learners <= 4 and method == "adpsgd, random":
                continue  # The same pairs as on the ring.
            given = (*options.items(), ("second_moment", moment))
            cell = replace(whole, algorithm=algorithm, options=given)
            yield Comparison(
                name=method,
                arm=Arm(cell=cell),
                against="allreduce",
                reference=Arm(cell=whole),
                question=question,
            )

"""What the launcher (`espnet_distopt.bin.launch`) and its learners tell each other."""

import os

INCARNATION = "DISTOPT_INCARNATION"
"""The variable that says how often the launcher has started this learner before."""

RETURNS = "DISTOPT_RETURNS"
"""The variable that is 1 for a learner which the launcher starts again if it fails."""

LEARNERS = "DISTOPT_LEARNERS"
"""The variable with the number of learners on each node, with commas between them."""

LAZY_GROUP = "TORCH_GLOO_LAZY_INIT"
"""A variable of PyTorch, which the launcher sets for a replacement. With it a process
group of gloo connects its members when they first talk, and not when it is made. The
group of the others was made long ago, and nobody would answer: so a replacement's
`init_process_group` returns at once, with the true rank and size, and no collective of
that group can reach it."""

LAZY = "Y"
"""The launcher's value of that variable; a user's own setting is another one of those
that mean yes, as 1."""

LOST, FAILED = "lost", "failed"
"""The first word of what a learner says of its end (`keys.end`): whether the others go
on without it."""


def incarnation() -> int:
    """Return how often this learner was started before in this run.

    It is 0 for the first process of a learner, 1 for the one that replaces it, and
    larger for every later one. Without this package's launcher it is 0.
    """
    return int(os.environ.get(INCARNATION) or 0)

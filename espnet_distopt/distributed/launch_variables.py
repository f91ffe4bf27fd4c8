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

SURVIVES = "distopt/survives"
"""The key of the store that is set when learners go on without one that has died."""

JOINED = "distopt/joined"
"""The key of the store with the replacements that have joined the others, or wait for
one of them to do so, as 3.1 5.2: each with its rank and how often it was started
before."""

HOPELESS = "distopt/hopeless"
"""The key of the store that says why nobody can join the others any more."""


END = "distopt/end/"
"""The beginning of the keys that say why a learner has left its session by an error,
each with its rank and how often it was started before: distopt/end/3.1. The value
begins with `LOST` if the others go on without it, and with `FAILED` if they do not."""

LOST, FAILED = "lost", "failed"


def incarnation() -> int:
    """Return how often this learner was started before in this run.

    It is 0 for the first process of a learner, 1 for the one that replaces it, and
    larger for every later one. Without this package's launcher it is 0.
    """
    return int(os.environ.get(INCARNATION) or 0)

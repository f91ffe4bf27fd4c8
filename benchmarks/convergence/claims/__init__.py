"""The package has the claims; a module has one, or some that ask the same elsewhere.

A module has its `CLAIMS`, by name, and its docstring says what they are and who makes
them. A new module is found by itself. This is all that one needs:

    one = Training(algorithm="allreduce", learners=16, batch=4, samples=64_000,
                   lr=0.001, seed=0, optim="adam", problem=LABELS, schedule="constant")
    two = replace(one, algorithm="local_sgd", options=(("period", 8),))
    asked = Comparison(name="local_sgd", arm=Arm(cell=two), against="allreduce",
                       reference=Arm(cell=one), question=Question(2.0))
    CLAIMS = {"blocks": Claim(text="...", source="...", setting="...",
                              comparisons=(asked,))}

`Question(2.0)` asks whether the method is at most 2 % worse, and `Question(5.0, "at
least")` whether it is at least 5 % worse. An arm with `rates` chooses its learning rate
from a grid that grows until the best rate is not at its edge. With `tuned_on` it takes
over the best rate of another training, and `factor` multiplies it. A claim may begin
with a search for the case that it is about, as `ibm_batch_ceiling` does: its `then`
returns what to ask next.
"""

import importlib
import pkgutil

from convergence.claim import Claim


def load() -> dict[str, Claim]:
    """Return name -> claim, in alphabetical order."""
    found: dict[str, Claim] = {}
    for module in pkgutil.iter_modules(__path__):
        found |= importlib.import_module(f"{__name__}.{module.name}").CLAIMS
    return dict(sorted(found.items()))

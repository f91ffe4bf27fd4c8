"""A language model of ESPnet's, for the prefixes of a search."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from espnet2.tasks.lm import LMTask
from numpy.typing import NDArray

from espnet_distopt.errors import InputError

Prefix = tuple[int, ...]
"""Token ids."""


def load_lm(directory: Path, tokens: Sequence[str]) -> Any:
    """Load the language model of `local/lm.sh`: `config.yaml`, `valid.loss.ave.pth`.

    Raises:
        InputError: it cannot be loaded, or is not over the same tokens.
    """
    try:
        model, args = LMTask.build_model_from_file(
            directory / "config.yaml", directory / "valid.loss.ave.pth"
        )
    except Exception as error:  # of many kinds: files, keys, shapes
        problem = str(error).partition("\n")[0]
        raise InputError(
            f"{directory}: not a language model: {type(error).__name__}: {problem}"
        ) from error
    if list(args.token_list) != list(tokens):
        raise InputError(
            f"{directory}: a language model over other tokens than the recognizer's"
        )
    return model.eval().lm


class PrefixScorer:
    """Scores of an ESPnet language model for what may follow a prefix; keeps them all.

    Args:
        lm: a model as `load_lm` gives it.
        end: the token id that begins and ends a sentence.
    """

    def __init__(self, lm: Any, end: int) -> None:
        self._lm, self._end = lm, end
        self._known: dict[Prefix, tuple[NDArray[np.float64], Any]] = {}

    def __call__(self, prefix: Prefix) -> NDArray[np.float64]:
        """Return the log-probability of each token after `prefix`."""
        return self._scored(prefix)[0]

    def ending(self, prefix: Prefix) -> float:
        """Return the log-probability that nothing follows `prefix`."""
        return float(self(prefix)[self._end])

    def _scored(self, prefix: Prefix) -> tuple[NDArray[np.float64], Any]:
        if prefix not in self._known:
            nothing = torch.empty(0)  # what the model does not look at
            before = (
                self._scored(prefix[:-1])[1] if prefix else self._lm.init_state(nothing)
            )
            read = torch.tensor([self._end, *prefix])
            scores, state = self._lm.score(read, before, nothing)
            self._known[prefix] = scores.double().numpy(), state
        return self._known[prefix]

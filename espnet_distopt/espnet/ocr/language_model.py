"""The module scores the prefixes of a beam search with an ESPnet language model."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from espnet2.tasks.lm import LMTask
from numpy.typing import NDArray

from espnet_distopt.errors import InputError, in_words
from espnet_distopt.espnet.models.trained import check_whole

Prefix = tuple[int, ...]
"""The token ids with which a text begins."""


class Scorer(Protocol):
    """What a prefix beam search asks a language model or an n-gram."""

    def __call__(self, prefix: Prefix) -> NDArray[np.float64]:
        """Return the log-probability of each token after `prefix`, shape (V,)."""

    def ending(self, prefix: Prefix) -> float:
        """Return the log-probability that nothing follows `prefix`."""


def load_lm(directory: Path, tokens: Sequence[str]) -> Any:
    """Load a language model that `local/lm.sh` has trained.

    Args:
        directory: the experiment's directory, with the files `config.yaml` and
            `valid.loss.ave.pth`.
        tokens: the recognizer's token list.

    Raises:
        InputError: the model cannot be loaded, or its token list is another one.
    """
    try:
        model, args = LMTask.build_model_from_file(
            directory / "config.yaml", directory / "valid.loss.ave.pth"
        )
        check_whole(model, directory / "valid.loss.ave.pth")
    except InputError:
        raise
    # A wrong file, a missing key and a wrong shape each raise another exception.
    except Exception as error:
        raise InputError(
            f"{directory}: not a language model: {in_words(error)}"
        ) from error
    if list(args.token_list) != list(tokens):
        raise InputError(
            f"{directory}: a language model over other tokens than the recognizer's"
        )
    return model.eval().lm


class PrefixScorer:
    """The scores of an ESPnet language model for the tokens that may follow a prefix.

    The scorer keeps the scores and the state of each prefix, because a beam search asks
    for the same prefix in many frames.

    Args:
        lm: a language model from `load_lm`.
        end: the id of the token that begins and ends a sentence.
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
            # ESPnet's interface wants the encoder's output, which no model reads.
            nothing = torch.empty(0)
            before = (
                self._scored(prefix[:-1])[1] if prefix else self._lm.init_state(nothing)
            )
            read = torch.tensor([self._end, *prefix])
            scores, state = self._lm.score(read, before, nothing)
            self._known[prefix] = scores.double().numpy(), state
        return self._known[prefix]

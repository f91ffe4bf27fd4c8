"""Recurrent modules, whose weights cuDNN would move out of the learner's buffer.

cuDNN wants the weights of a module in a buffer of its own order. They stay in the
learner's, so that it copies them in each call. Of a BLSTM that takes no measurable time
(`benchmarks/gpu.py`).
"""

import re
import warnings
from collections.abc import Iterable
from weakref import WeakSet

from torch import nn

_ADVICE = "RNN module weights are not part of single"
"""What PyTorch says on a GPU: to call `flatten_parameters`, which does nothing here."""

_stopped: WeakSet[nn.Module] = WeakSet()
"""The modules that are kept from it now; meanwhile nobody shall be told."""


def keep_storage(model: nn.Module) -> list[nn.Module]:
    """Keep recurrent modules from moving their weights into a buffer of cuDNN's.

    Returns the modules that are changed so.
    """
    stopped: list[nn.Module] = []
    for module in model.modules():
        if isinstance(module, nn.RNNBase):
            module.flatten_parameters = _do_nothing  # type: ignore[method-assign]
            stopped.append(module)
    if stopped:
        _stopped.update(stopped)
        warnings.filterwarnings("ignore", _ADVICE)
    return stopped


def give_back(modules: Iterable[nn.Module]) -> None:
    """Let modules move their weights again, which `keep_storage` has kept from it."""
    for module in modules:
        module.__dict__.pop("flatten_parameters", None)
        _stopped.discard(module)
    if not _stopped:
        ours = ("ignore", re.compile(_ADVICE, re.IGNORECASE))
        for each in [each for each in warnings.filters if each[:2] == ours]:
            warnings.filters.remove(each)  # type: ignore[attr-defined]


def _do_nothing() -> None:
    """Stand in for `RNNBase.flatten_parameters`.

    This is a named function, because a model that holds a lambda cannot be pickled.
    """

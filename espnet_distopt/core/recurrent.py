"""Recurrent modules, whose weights cuDNN would move out of the learner's buffer."""

from collections.abc import Iterable

from torch import nn


def keep_storage(model: nn.Module) -> list[nn.Module]:
    """Keep recurrent modules from moving their weights into a buffer of cuDNN's.

    Returns the modules that are changed so.
    """
    stopped: list[nn.Module] = []
    for module in model.modules():
        if isinstance(module, nn.RNNBase):
            module.flatten_parameters = _do_nothing  # type: ignore[method-assign]
            stopped.append(module)
    return stopped


def give_back(modules: Iterable[nn.Module]) -> None:
    """Let modules move their weights again, which `keep_storage` has kept from it."""
    for module in modules:
        module.__dict__.pop("flatten_parameters", None)


def _do_nothing() -> None:
    """Stand in for `RNNBase.flatten_parameters`.

    This is a named function, because a model that holds a lambda cannot be pickled.
    """

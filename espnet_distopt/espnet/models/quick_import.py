"""ESPnet's import, without what most programs never use of it.

ESPnet's ASR task takes several times as long to import as PyTorch. Most of that time
goes into two things, which are put off here until somebody needs them:

- `typeguard.typechecked` parses a whole module again for each function that it is put
  on, and ESPnet has hundreds of them. Here a function is instrumented when it is called
  for the first time, so that its checks are the same.
- `g2p_en`, which converts English letters to phonemes, imports NLTK and looks for its
  data in the network. `scipy.signal` and `scipy.stats` are for other tasks.

PyTorch imports its compiler, `torch._dynamo`, for every optimizer, only to keep the
compiler away from it. That doubles PyTorch's own time, and ESPnet compiles nothing.
"""

import functools
import importlib
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from types import FunctionType, ModuleType
from typing import Any

import torch
import typeguard

SELDOM_USED = ("g2p_en", "scipy.ndimage", "scipy.signal", "scipy.stats")
"""Modules of whose names ESPnet makes no use while it is imported."""


@contextmanager
def importing_espnet() -> Iterator[None]:
    """Make the imports of ESPnet in the `with` statement quick.

    What ESPnet prints meanwhile goes to stderr, since stdout is for results.
    """
    with ExitStack() as stack:
        stack.enter_context(redirect_stdout(sys.stderr))
        stack.enter_context(_checks_at_first_call())
        for name in SELDOM_USED:
            stack.enter_context(_loaded_at_first_use(name))
        import librosa.filters  # noqa: F401  The default frontend needs it, without these.

        _optimize_without_compiler()
        yield


def _optimize_without_compiler() -> None:
    """Let optimizers do what they do now without importing PyTorch's compiler."""
    if "torch._dynamo" in sys.modules:
        return
    # `torch._disable_dynamo` finds here what it would ask the compiler for.
    for name in ("add_param_group", "load_state_dict", "state_dict", "zero_grad"):
        plain: Any = getattr(getattr(torch.optim.Optimizer, name), "__wrapped__", None)
        if plain is not None:
            plain.__dynamo_disable = plain
    for kind in vars(torch.optim).values():
        step: Any = getattr(kind, "step", None)
        # This wrapper does what `_step_of` does, and calls the compiler twice.
        if isinstance(step, FunctionType) and step.__code__.co_name == "_use_grad":
            kind.step = _step_of(step.__wrapped__)  # type: ignore[attr-defined]


def _step_of(plain: Any) -> Any:
    @functools.wraps(plain)
    def step(self: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        with torch.set_grad_enabled(self.defaults["differentiable"]):
            return plain(self, *args, **kwargs)

    return step


@contextmanager
def _checks_at_first_call() -> Iterator[None]:
    stock: Any = typeguard.typechecked

    def typechecked(target: Any = None, **options: Any) -> Any:
        if options or not isinstance(target, FunctionType):
            return stock(target, **options)
        checked: Any = None

        @functools.wraps(target)
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal checked
            if checked is None:
                checked = stock(target)
            return checked(*args, **kwargs)

        return call

    typeguard.typechecked = typechecked
    try:
        yield
    finally:
        typeguard.typechecked = stock


@contextmanager
def _loaded_at_first_use(name: str) -> Iterator[None]:
    """Let imports of a module bind stand-ins, which load it when they are used.

    A module that is loaded already, or that is not installed, stays as it is.
    """
    if name in sys.modules or importlib.util.find_spec(name) is None:
        yield
        return
    stand_in = _Module(name)
    sys.modules[name] = stand_in
    try:
        yield
    finally:
        stand_in.importing = False
        if sys.modules.get(name) is stand_in:
            del sys.modules[name]


class _Module(ModuleType):
    """Stands in for a module in those that import it.

    Attributes:
        importing: Whether the others are still being imported, so that names of the
            module are bound and not used.
    """

    importing = True

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__"):  # as tools ask that only list modules
            raise AttributeError(attribute)
        if self.importing:
            return _Name(self, attribute)
        return getattr(importlib.import_module(self.__name__), attribute)


class _Name:
    """Stands in for a function or an object that is imported from a module."""

    def __init__(self, module: ModuleType, name: str) -> None:
        self._module, self._name = module, name

    def _find(self) -> Any:
        return getattr(importlib.import_module(self._module.__name__), self._name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._find()(*args, **kwargs)

    def __getattr__(self, attribute: str) -> Any:
        return getattr(self._find(), attribute)

"""Passes over vectors that numba compiles, where it can be imported.

A pass that computes several things of each element is several operations of PyTorch,
each of which reads and writes all elements, if only in the cache. Compiled, it is one
loop, which takes as long as the memory does. A package that has such passes keeps them
in its module `compiled_passes`, beside the operations of PyTorch for tensors on a GPU,
of other types, and without numba.

numba compiles a function at its first call, in about a second, and keeps the result on
disk. To import it takes half a second.
"""

import importlib
import logging
from collections.abc import Callable, Sequence
from functools import cache
from types import ModuleType
from typing import Any, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_log = logging.getLogger(__name__)
_Function = TypeVar("_Function", bound=Callable[..., Any])
Floats = NDArray[np.float32]

LEAST = 1 << 17
"""The least elements for which a compiled pass is used, so that small models, whose
passes take no time, do not wait for numba."""

THREADS = 2
"""The most threads of PyTorch beside which it is used: a compiled pass has one."""


def compiled(function: _Function, *permitted: str) -> _Function:
    """Compile on the first call, and keep the result on disk where that is possible.

    Args:
        function: the function.
        permitted: what the compiler may do with floating-point numbers: `reassoc` lets
            it change the order of sums, and `contract` lets it fuse a product and a
            sum.
    """
    numba, fast = importlib.import_module("numba"), set(permitted)
    try:
        kept = numba.njit(cache=True, nogil=True, fastmath=fast)(function)
        return cast(_Function, kept)
    except RuntimeError:  # neither the package nor the user's cache is writable
        return cast(_Function, numba.njit(nogil=True, fastmath=fast)(function))


@cache
def passes_of(package: str) -> ModuleType | None:
    """Return the compiled passes of a package; None where numba cannot be imported."""
    try:
        importlib.import_module("numba")
    except ImportError as error:
        # It is installed, but refuses a NumPy that is newer than itself, for example.
        if not (isinstance(error, ModuleNotFoundError) and error.name == "numba"):
            _log.warning(f"numba cannot be used, so that passes take longer: {error}")
        return None
    return importlib.import_module(f"{package}.compiled_passes")


def prepare_compiled(package: str, tensor: Tensor) -> None:
    """Import the passes of a package now, if it will use them for such a tensor.

    The first use would import numba, during which Python's other threads hardly run. In
    a thread that communicates beside the training, this would hold up a training step.
    """
    if tensor.numel() >= LEAST and can_be_compiled(tensor):
        passes_of(package)


def run_compiled(
    package: str, name: str, tensors: Sequence[Tensor], *numbers: float
) -> bool:
    """Carry out a compiled pass, or return False if there is none for these tensors.

    Args:
        package: the package that has the pass.
        name: the name of the function.
        tensors: the tensors that it is called with.
        numbers: its other arguments.
    """
    if tensors[0].numel() < LEAST or not all(map(can_be_compiled, tensors)):
        return False
    passes = passes_of(package)
    if passes is None:
        return False
    arrays = [tensor.detach().view(-1).numpy() for tensor in tensors]
    getattr(passes, name)(*arrays, *numbers)
    return True


def can_be_compiled(tensor: Tensor) -> bool:
    """Return whether a compiled pass is for this tensor, in this process.

    It is for contiguous tensors of float32 on a CPU, and for few threads.
    """
    single, on_cpu = tensor.dtype == torch.float32, tensor.device.type == "cpu"
    few = torch.get_num_threads() <= THREADS
    return single and on_cpu and few and tensor.is_contiguous()

"""Tells how much memory a graph will take, before it is built."""

import math
from pathlib import Path

from espnet_distopt.errors import InputError

_ARC_BYTES = 200
"""What an arc takes while a graph is built: its line of text, kaldifst's arc, and its
share of a state. Graphs of a million arcs took 164 (HMM states) to 218 (CTC)."""
_MEMORY = Path("/proc/meminfo")


def check_memory(arcs: int) -> str:
    """Return a line that tells how much memory a graph of so many arcs will take.

    Raises:
        InputError: This machine has not as much left.
    """
    needed, left = arcs * _ARC_BYTES / 1e9, _left() / 1e9
    graph = f"a graph of about {arcs:,} arcs takes {needed:.1f} GB in each process"
    if needed > left:
        raise InputError(
            f"{graph}, but this machine has {left:.1f} GB left: take an n-gram of a "
            "lower order (in a recipe: --ngram_order), or a pruned one"
        )
    return graph


def _left() -> float:
    """Return how many bytes of memory are left; infinity where nobody tells."""
    try:
        lines = _MEMORY.read_text().splitlines()
    except OSError:  # This is not Linux.
        return math.inf
    found = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return 1024 * int(found[0]) if found else math.inf

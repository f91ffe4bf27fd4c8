"""The module times what runs on a device, where calls return before it has run."""

import time
from collections.abc import Callable

import torch


def wait(device: torch.device) -> None:
    """Wait until the device has done all it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds(
    run: Callable[[], object], device: torch.device, repeats: int, calls: int = 1
) -> list[float]:
    """Return the seconds of a call of `run`, in each repeat after a first one.

    Args:
        run: what is timed.
        device: the device on which it runs.
        repeats: the number of repeats.
        calls: the number of calls of a repeat, whose mean counts.
    """
    found = []
    for repeat in range(repeats + 1):
        wait(device)
        begun = time.perf_counter()
        for _ in range(calls):
            run()
        wait(device)
        if repeat:
            found.append((time.perf_counter() - begun) / calls)
    return found

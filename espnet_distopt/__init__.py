"""Asynchronous and communication-efficient data-parallel trainers for ESPnet.

The algorithms as a library: see `Session` and `WorkQueue`. The trainer for ESPnet: see
`espnet_distopt.espnet`.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from espnet_distopt.session import Session
    from espnet_distopt.work_queue import WorkQueue

__all__ = ["Session", "WorkQueue"]


def __getattr__(name: str) -> Any:
    # Data preparation imports this package too, and should not wait for torch.
    if name == "Session":
        from espnet_distopt.session import Session

        return Session
    if name == "WorkQueue":
        from espnet_distopt.work_queue import WorkQueue

        return WorkQueue
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""Asynchronous and communication-efficient data-parallel trainers for ESPnet.

The algorithms as a library: see `Session`. The trainer for ESPnet: see
`espnet_distopt.espnet`.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from espnet_distopt.session import Session

__all__ = ["Session"]


def __getattr__(name: str) -> Any:
    # Data preparation imports this package too, and should not wait for torch.
    if name == "Session":
        from espnet_distopt.session import Session

        return Session
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

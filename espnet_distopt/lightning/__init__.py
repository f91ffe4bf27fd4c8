"""Lightning's trainer, with an algorithm of this package in the place of DDP.

`Trainer(strategy=DistoptStrategy("adpsgd"), devices=4)` trains any `LightningModule`
with automatic optimization and one optimizer. It is for the package `lightning`, which
ESPnet3 uses; to Python, the classes of `pytorch_lightning` are others.
"""

try:
    import lightning.pytorch  # noqa: F401
except ImportError as error:
    raise ImportError(
        "espnet_distopt.lightning needs Lightning 2.4 or later: pip install lightning "
        "(pytorch_lightning is another package to Python, and does not do)"
    ) from error

from espnet_distopt.lightning.strategy import DistoptStrategy

__all__ = ["DistoptStrategy"]

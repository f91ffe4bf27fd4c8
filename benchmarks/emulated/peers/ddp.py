"""The peer is torch's DistributedDataParallel.

It averages gradients by an all-reduce during the backward pass.
"""

from torch.nn.parallel import DistributedDataParallel

from emulated.emulated import Emulated
from emulated.methods import MeasuredMethod, MeasuredTraining, plain


def begin(method: MeasuredMethod, model: Emulated) -> MeasuredTraining:
    """Begin to train with the peer's defaults."""
    parallel = DistributedDataParallel(model)
    return MeasuredTraining(plain(parallel, method.optimizer(model.parameters())))

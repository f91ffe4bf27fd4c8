"""torch's DistributedDataParallel: gradients all-reduced beside the backward pass."""

from torch.nn.parallel import DistributedDataParallel

from emulated.emulated import Emulated
from emulated.methods import MeasuredMethod, MeasuredTraining, plain


def begin(method: MeasuredMethod, model: Emulated) -> MeasuredTraining:
    """With its defaults."""
    parallel = DistributedDataParallel(model)
    return MeasuredTraining(plain(parallel, method.optimizer(model.parameters())))

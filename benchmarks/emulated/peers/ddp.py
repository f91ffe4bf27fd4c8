"""torch's DistributedDataParallel: gradients all-reduced beside the backward pass."""

from torch.nn.parallel import DistributedDataParallel

from emulated.emulated import Emulated
from emulated.methods import Method, Training, plain


def begin(method: Method, model: Emulated) -> Training:
    """With its defaults."""
    parallel = DistributedDataParallel(model)
    return Training(plain(parallel, method.optimizer(model.parameters())))

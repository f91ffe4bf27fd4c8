"""torch's DistributedDataParallel: gradients all-reduced beside the backward pass."""

from emulated import Emulated
from methods import Method, Training, plain
from torch.nn.parallel import DistributedDataParallel


def begin(method: Method, model: Emulated) -> Training:
    """With its defaults."""
    parallel = DistributedDataParallel(model)
    return Training(plain(parallel, method.optimizer(model.parameters())))

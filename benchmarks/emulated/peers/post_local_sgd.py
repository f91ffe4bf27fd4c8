"""torch's PostLocalSGDOptimizer: parameters averaged every `period` steps."""

from torch.distributed.algorithms.model_averaging.averagers import (
    PeriodicModelAverager,
)
from torch.distributed.optim import PostLocalSGDOptimizer

from emulated.emulated import Emulated
from emulated.methods import Method, Training, plain


def begin(method: Method, model: Emulated) -> Training:
    """From the first step on."""
    averager = PeriodicModelAverager(period=method.options["period"], warmup_steps=0)
    optimizer = PostLocalSGDOptimizer(method.optimizer(model.parameters()), averager)
    return Training(plain(model, optimizer))

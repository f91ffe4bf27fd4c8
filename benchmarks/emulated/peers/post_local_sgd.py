"""torch's PostLocalSGDOptimizer: parameters averaged every `period` steps."""

from torch.distributed.algorithms.model_averaging.averagers import (
    PeriodicModelAverager,
)
from torch.distributed.optim import PostLocalSGDOptimizer

from emulated.emulated import Emulated
from emulated.methods import MeasuredMethod, MeasuredTraining, plain


def begin(method: MeasuredMethod, model: Emulated) -> MeasuredTraining:
    """From the first step on."""
    averager = PeriodicModelAverager(period=method.options["period"], warmup_steps=0)
    optimizer = PostLocalSGDOptimizer(method.optimizer(model.parameters()), averager)
    return MeasuredTraining(plain(model, optimizer))

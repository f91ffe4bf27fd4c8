"""The peer is torch's PostLocalSGDOptimizer, which averages every `period` steps."""

from torch.distributed.algorithms.model_averaging.averagers import (
    PeriodicModelAverager,
)
from torch.distributed.optim import PostLocalSGDOptimizer

from emulated.emulated import Emulated
from emulated.methods import MeasuredMethod, MeasuredTraining, plain


def begin(method: MeasuredMethod, model: Emulated) -> MeasuredTraining:
    """Begin to train; the averages begin with the first step."""
    averager = PeriodicModelAverager(period=method.options["period"], warmup_steps=0)
    optimizer = PostLocalSGDOptimizer(method.optimizer(model.parameters()), averager)
    return MeasuredTraining(plain(model, optimizer))

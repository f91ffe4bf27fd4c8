"""The peer is decent-dp: neighbours on a ring average during the next step."""

from decent_dp.ddp import DecentralizedDataParallel
from loguru import logger

from emulated.emulated import Emulated, batch
from emulated.methods import MeasuredMethod, MeasuredTraining


def begin(method: MeasuredMethod, model: Emulated) -> MeasuredTraining:
    """Begin to train; each step averages with one neighbour.

    The peer calls its optimizers itself, in the backward pass.
    """
    logger.remove()
    parallel = DecentralizedDataParallel(
        model, lambda named: method.optimizer([p for _, p in named]), topology="ring"
    )

    def step() -> None:
        parallel(batch()).backward()

    return MeasuredTraining(step)

"""decent-dp: neighbours on a ring average beside the next step (delay by one)."""

from decent_dp.ddp import DecentralizedDataParallel
from loguru import logger

from emulated.emulated import Emulated, batch
from emulated.methods import MeasuredMethod, MeasuredTraining


def begin(method: MeasuredMethod, model: Emulated) -> MeasuredTraining:
    """One peer a step. It steps its optimizers itself, in the backward pass."""
    logger.remove()
    parallel = DecentralizedDataParallel(
        model, lambda named: method.optimizer([p for _, p in named]), topology="ring"
    )

    def step() -> None:
        parallel(batch()).backward()

    return MeasuredTraining(step)

"""The module has the rows about schedulers of the learning rate."""

from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import (
    LambdaLR,
    LRScheduler,
    OneCycleLR,
    ReduceLROnPlateau,
    StepLR,
)

from tests.uses.use import STEPS, Turn, Use


class Scheduled(Use):
    made = SGD, {"lr": 0.05, "momentum": 0.9}

    def __init__(self, rank: int) -> None:
        super().__init__(rank)
        self.scheduler = self.schedule()

    def schedule(self) -> LRScheduler:
        return StepLR(self.optimizer, 4, gamma=0.3)

    def step(self, turn: Turn) -> None:
        super().step(turn)
        self.scheduler.step()


class Steps(Scheduled):
    title = "scheduler `StepLR`"


class OneCycle(Scheduled):
    title = "scheduler `OneCycleLR`, which changes `beta1` too"
    made = Adam, {"lr": 0.05}

    def schedule(self) -> LRScheduler:
        return OneCycleLR(self.optimizer, max_lr=0.05, total_steps=STEPS + 1)


class Warmup(Scheduled):
    title = "scheduler `LambdaLR` (warm-up)"

    def schedule(self) -> LRScheduler:
        return LambdaLR(self.optimizer, lambda k: min(1.0, (k + 1) / 5))


class Plateau(Use):
    title = "scheduler `ReduceLROnPlateau`"
    note = "Give it `session.mean(loss)`, so that all learners do the same."

    def __init__(self, rank: int) -> None:
        super().__init__(rank)
        self.scheduler = ReduceLROnPlateau(self.optimizer, factor=0.5, patience=0)

    def step(self, turn: Turn) -> None:
        super().step(turn)
        if turn.k % 4 == 3:
            loss = float(turn.k)  # The loss never falls.
            self.scheduler.step(turn.session.mean(loss) if turn.session else loss)

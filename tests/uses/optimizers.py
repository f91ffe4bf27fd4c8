"""The module has the rows about optimizers."""

import copy
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import (
    LBFGS,
    SGD,
    Adagrad,
    Adam,
    NAdam,
    Optimizer,
    RAdam,
    RMSprop,
    Rprop,
)

from espnet_distopt.optimizers.lamb import Lamb
from tests.uses.use import GRADIENTS, MOMENTS, ONE_PASS, Turn, Use, refused

LOCAL = "`moments: local` (`bmuf`, `slowmo`) leaves its state alone."


def unknown(name: str) -> dict[str, str]:
    """Return the refusals of algorithms that would average or reset the moments."""
    return refused(f"moments of {name} are not known", MOMENTS)


class Momentum(Use):
    title = "SGD with momentum"

    def optimize(self, model: nn.Module) -> Optimizer:
        return SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)


class Foreach(Use):
    title = "`foreach=True`"

    def optimize(self, model: nn.Module) -> Optimizer:
        return Adam(model.parameters(), lr=0.01, foreach=True)


class Fused(Use):
    title = "`fused=True`"

    def optimize(self, model: nn.Module) -> Optimizer:
        return Adam(model.parameters(), lr=0.01, fused=True)


class Amsgrad(Use):
    title = "Adam with `amsgrad=True`"
    note = LOCAL
    refused = refused("amsgrad: false", MOMENTS)

    def optimize(self, model: nn.Module) -> Optimizer:
        return Adam(model.parameters(), lr=0.01, amsgrad=True)


class TheNAdam(Use):
    title = "NAdam"
    note = LOCAL
    refused = unknown("NAdam")

    def optimize(self, model: nn.Module) -> Optimizer:
        return NAdam(model.parameters(), lr=0.01, weight_decay=0.1)


class TheRAdam(Use):
    title = "RAdam"
    note = LOCAL
    refused = unknown("RAdam")

    def optimize(self, model: nn.Module) -> Optimizer:
        return RAdam(model.parameters(), lr=0.01)


class TheMuon(Use):
    title = "Muon"
    known = hasattr(torch.optim, "Muon")  # Torch has it since 2.9.
    note = LOCAL
    refused = unknown("Muon")

    def net(self) -> nn.Module:
        first, last = nn.Linear(3, 4, bias=False), nn.Linear(4, 2, bias=False)
        return nn.Sequential(first, nn.Tanh(), last)

    def optimize(self, model: nn.Module) -> Optimizer:
        return torch.optim.Muon(model.parameters(), lr=0.02)


class TheAdafactor(Use):
    title = "Adafactor"
    known = hasattr(torch.optim, "Adafactor")  # Torch has it since 2.5.
    note = LOCAL
    refused = unknown("Adafactor")

    def optimize(self, model: nn.Module) -> Optimizer:
        return torch.optim.Adafactor(model.parameters(), lr=0.05)


class TheRprop(Use):
    title = "Rprop"
    note = LOCAL
    refused = unknown("Rprop")

    def optimize(self, model: nn.Module) -> Optimizer:
        return Rprop(model.parameters(), lr=0.01)


class TheAdagrad(Use):
    title = "Adagrad"
    note = LOCAL
    refused = unknown("Adagrad")

    def optimize(self, model: nn.Module) -> Optimizer:
        return Adagrad(model.parameters(), lr=0.03)


class TheRMSprop(Use):
    title = "RMSprop"
    note = LOCAL
    refused = unknown("RMSprop")

    def optimize(self, model: nn.Module) -> Optimizer:
        return RMSprop(model.parameters(), lr=0.005)


class TheLamb(Use):
    title = "LAMB (`espnet_distopt.optimizers.lamb`)"
    note = LOCAL
    refused = unknown("Lamb")

    def optimize(self, model: nn.Module) -> Optimizer:
        return Lamb(model.parameters(), lr=0.02)


class TheLBFGS(Use):
    title = "LBFGS, which evaluates a closure as often as it likes"
    note = "Where gradients are averaged, learners would wait for each other in vain."
    refused = unknown("LBFGS") | refused("LBFGS", GRADIENTS)

    def optimize(self, model: nn.Module) -> Optimizer:
        return LBFGS(model.parameters(), lr=0.1, max_iter=3)

    def step(self, turn: Turn) -> None:
        def closure() -> Tensor:
            self.optimizer.zero_grad()
            loss = self.loss(turn)
            turn.backward(loss)
            return loss

        self.optimizer.step(closure)
        turn.stepped()


class Closure(Use):
    title = "an optimizer's `step(closure)`"

    def step(self, turn: Turn) -> None:
        def closure() -> float:
            self.optimizer.zero_grad()
            loss = self.loss(turn)
            turn.backward(loss)
            return loss.item()

        self.optimizer.step(closure)
        turn.stepped()


class SamOptimizer(Optimizer):
    """SAM as it is often written: it has two methods for its steps, and no `step`."""

    def __init__(self, parameters: Any, base: Callable[..., Optimizer]) -> None:
        super().__init__(parameters, {"lr": 0.01})
        self.base = base(self.param_groups, lr=0.01)
        self.param_groups = self.base.param_groups

    @torch.no_grad()
    def first_step(self) -> None:
        """Move the parameters up the gradient."""
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["old"] = p.detach().clone()
                p.add_(0.05 * p.grad / p.grad.norm())
        self.zero_grad()

    @torch.no_grad()
    def second_step(self) -> None:
        """Move the parameters back, and make the base optimizer's step from there."""
        for group in self.param_groups:
            for p in group["params"]:
                p.copy_(self.state[p]["old"])
        self.base.step()
        self.zero_grad()


class SamItself(Use):
    title = "SAM as an optimizer that is never asked for a `step`"
    note = "Give `bmuf`, `bmuf_adam` and `slowmo` the base optimizer."
    refused = unknown("SamOptimizer") | ONE_PASS

    def optimize(self, model: nn.Module) -> Optimizer:
        return SamOptimizer(model.parameters(), Adam)

    def step(self, turn: Turn) -> None:
        assert isinstance(self.optimizer, SamOptimizer)
        turn.backward(self.loss(turn))
        self.optimizer.first_step()
        turn.backward(self.loss(turn))
        self.optimizer.second_step()
        turn.stepped()


class StateLoaded(Use):
    title = "`optimizer.load_state_dict` in the middle"

    def step(self, turn: Turn) -> None:
        if turn.k == 2:
            self.saved = copy.deepcopy(self.optimizer.state_dict())
        if turn.k == 7:
            self.optimizer.load_state_dict(self.saved)
        super().step(turn)


class SecondOptimizer(Use):
    title = "a second optimizer over other parameters of the same model"
    note = "Give it a session of its own: `Session(model, second, ...)`."
    refused = refused("is updated, but not by the optimizer of this session")

    def optimize(self, model: nn.Module) -> Optimizer:
        first, _, last = model.children()
        self.second = Adam(last.parameters(), lr=0.01)
        return Adam(first.parameters(), lr=0.01)

    def step(self, turn: Turn) -> None:
        self.second.zero_grad()
        self.optimizer.zero_grad()
        turn.backward(self.loss(turn))
        self.optimizer.step()
        self.second.step()
        turn.stepped()


class TwoSessions(SecondOptimizer):
    title = "two optimizers over parts of a model, with a session each"
    note = ""
    refused: ClassVar[dict[str, str]] = {}

    def __init__(self, rank: int) -> None:
        super().__init__(rank)
        self.pairs.append((self.model, self.second))

    def step(self, turn: Turn) -> None:
        super().step(turn)
        turn.stepped(1)


ROWS: list[type[Use]] = [
    Momentum,
    Foreach,
    Fused,
    Amsgrad,
    TheNAdam,
    TheRAdam,
    TheMuon,
    TheAdafactor,
    TheRprop,
    TheAdagrad,
    TheRMSprop,
    TheLamb,
    TheLBFGS,
    Closure,
    SamItself,
    StateLoaded,
    SecondOptimizer,
    TwoSessions,
]

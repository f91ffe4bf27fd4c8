"""The module has the rows about optimizers."""

import copy
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import nn
from torch.optim import LBFGS, SGD, Adam, Optimizer

from espnet_distopt.optimizers.lamb import Lamb
from tests.uses.use import GRADIENTS, MOMENTS, ONE_PASS, Turn, Use, refused

LOCAL = "`moments: local` (`bmuf`) leaves its state alone."


def unknown(name: str) -> dict[str, str]:
    """Return the refusals of algorithms that would average the moments."""
    return refused(f"moments of {name} are not known", MOMENTS)


class Momentum(Use):
    title = "SGD with momentum"
    made = SGD, {"lr": 0.05, "momentum": 0.9, "nesterov": True}


class Foreach(Use):
    title = "`foreach=True`"
    made = Adam, {"lr": 0.01, "foreach": True}


class Fused(Use):
    title = "`fused=True`"
    made = Adam, {"lr": 0.01, "fused": True}


class Amsgrad(Use):
    title = "Adam with `amsgrad=True`"
    note = LOCAL
    refused = refused("amsgrad: false", MOMENTS)
    made = Adam, {"lr": 0.01, "amsgrad": True}


def row(name: str, title: str = "", **options: Any) -> type[Use]:
    """Return the row of an optimizer that only some algorithms can handle."""
    kind = {"Lamb": Lamb}.get(name) or getattr(torch.optim, name, None)
    found = {"note": LOCAL, "refused": unknown(name), "known": kind is not None}
    found |= {"title": title or name, "made": (kind, options), "__module__": __name__}
    return type(f"The{name}", (Use,), found)


TheNAdam = row("NAdam", lr=0.01, weight_decay=0.1)
TheRAdam = row("RAdam", lr=0.01)


class TheMuon(row("Muon", lr=0.02)):  # type: ignore[misc]
    def net(self) -> nn.Module:
        first, last = nn.Linear(3, 4, bias=False), nn.Linear(4, 2, bias=False)
        return nn.Sequential(first, nn.Tanh(), last)


TheAdafactor = row("Adafactor", lr=0.05)
TheRprop = row("Rprop", lr=0.01)
TheAdagrad = row("Adagrad", lr=0.03)
TheRMSprop = row("RMSprop", lr=0.005)
TheLamb = row("Lamb", "LAMB (`espnet_distopt.optimizers.lamb`)", lr=0.02)


class Closed(Use):
    def step(self, turn: Turn) -> None:
        def closure() -> float:
            self.optimizer.zero_grad()
            loss = self.loss(turn)
            turn.backward(loss)
            return loss.item()

        self.optimizer.step(closure)
        turn.stepped()


class TheLBFGS(Closed):
    title = "LBFGS, which evaluates a closure as often as it likes"
    note = "Where gradients are averaged, learners would wait for each other in vain."
    refused = unknown("LBFGS") | refused("LBFGS", GRADIENTS)
    made = LBFGS, {"lr": 0.1, "max_iter": 3}


class Closure(Closed):
    title = "an optimizer's `step(closure)`"


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
    note = "Give `bmuf` and `bmuf_adam` the base optimizer."
    refused = unknown("SamOptimizer") | ONE_PASS
    made = SamOptimizer, {"base": Adam}

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

"""The module has the rows about what happens in a step."""

import torch
from torch import Tensor, nn
from torch._dynamo import compiled_autograd
from torch.optim import SGD, Adam, Optimizer
from torch.utils.checkpoint import checkpoint

from tests.uses.use import GRADIENTS, ONE_PASS, Turn, Use, refused


class Accumulation(Use):
    title = "several backward passes an update (gradient accumulation)"
    note = (
        "Have all passes but the last within `session.no_sync()`: then gradients are "
        "averaged once, and `d1d_grad` takes several, too."
    )
    refused = ONE_PASS

    def fill(self, turn: Turn) -> None:
        for number in range(3):
            turn.backward(self.loss(turn, number) / 3)


class ZerosKept(Use):
    title = "`zero_grad(set_to_none=False)`"

    def step(self, turn: Turn) -> None:
        self.optimizer.zero_grad(set_to_none=False)
        turn.backward(self.loss(turn))
        self.optimizer.step()
        turn.stepped()


class Autocast(Use):
    title = "AMP: autocast to bfloat16"
    rounding = 1e-3

    def loss(self, turn: Turn, number: int = 0) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return super().loss(turn, number)


class Scaler(Use):
    title = "AMP: `GradScaler`, and a step that one learner skips"
    note = "Where gradients are averaged, all learners skip it."

    def __init__(self, rank: int) -> None:
        super().__init__(rank)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=8.0)

    def step(self, turn: Turn) -> None:
        self.optimizer.zero_grad()
        loss = self.scaler.scale(self.loss(turn))
        if turn.k == 4 + turn.rank:
            loss = loss * float("inf")
        self.backward(turn, loss)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        turn.stepped()

    def skipped(self, column: str) -> int:
        return 2 if column in GRADIENTS else 1


class FusedScaler(Scaler):
    title = "`GradScaler` with a fused optimizer, which skips by itself"
    made = Adam, {"lr": 0.01, "fused": True}


class Given(Use):
    title = "gradients by `torch.autograd.grad`, written to `.grad`"
    note = (
        "Call `session.average_gradients()` once `.grad` has them, before they are "
        "clipped or used; without that, an algorithm that averages gradients refuses "
        "the step."
    )

    def give(self, turn: Turn, loss: Tensor) -> None:
        parameters = list(self.model.parameters())
        found = torch.autograd.grad(loss, parameters, retain_graph=True)
        for p, gradient in zip(parameters, found, strict=True):
            p.grad = gradient

    def backward(self, turn: Turn, loss: Tensor) -> None:
        def by() -> None:
            self.give(turn, loss)
            turn.average()

        turn.backward(loss, by=by)

    def fill(self, turn: Turn) -> None:
        super().fill(turn)
        nn.utils.clip_grad_norm_(self.model.parameters(), 0.3)


class ScaledGiven(Given, Scaler):
    title = "the same, times the scale of a `GradScaler`"
    note = "All learners skip a step that is not finite on one of them."


class PerSample(Given):
    title = "each sample's gradient by `torch.func.vmap`, clipped and averaged"
    note = "As for `torch.autograd.grad`."

    def give(self, turn: Turn, loss: Tensor) -> None:
        x, y = turn.batch()

        def of_one(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
            output = torch.func.functional_call(self.model, parameters, (x[None],))
            return (output[0] - y).square().mean()

        named = {n: p.detach() for n, p in self.model.named_parameters()}
        every = torch.func.vmap(torch.func.grad(of_one), (None, 0, 0))(named, x, y)
        for name, p in self.model.named_parameters():
            p.grad = every[name].clamp(-50, 50).mean(0)


class ByHand(Given):
    title = "gradients by hand (`p.grad = ...`), without `average_gradients()`"
    note = "Where gradients are averaged, the step is refused: nobody has averaged."
    refused = refused("average_gradients", GRADIENTS)

    def step(self, turn: Turn) -> None:
        self.optimizer.zero_grad()
        self.give(turn, self.loss(turn))
        self.optimizer.step()
        self.optimizer.zero_grad()
        turn.stepped()


class Functional(ByHand):
    title = "updates by hand by gradients that `.grad` never has"
    note = "Where gradients are averaged, write them to `.grad` and average them."
    made = SGD, {"lr": 0.05}

    def step(self, turn: Turn) -> None:
        parameters = list(self.model.parameters())
        found = torch.autograd.grad(self.loss(turn), parameters)
        for p, gradient in zip(parameters, found, strict=True):
            p.data -= 0.05 * gradient
        turn.stepped()


class SparseByHand(ByHand):
    title = "gradients that are sparse in all dimensions (`to_sparse()`)"
    note = "Make them dense: PyTorch adds them to the wrong place of a flat buffer."
    refused = refused("sparse")
    made = SGD, {"lr": 0.05}

    def step(self, turn: Turn) -> None:
        self.give(turn, self.loss(turn))
        for p in self.model.parameters():
            p.grad = p.grad.to_sparse()
        turn.average()
        self.optimizer.step()
        turn.stepped()


class Compiled(Given):
    title = "compiled autograd"
    note = "Its backward pass cannot be watched: as for `torch.autograd.grad`."

    def give(self, turn: Turn, loss: Tensor) -> None:
        with compiled_autograd._enable(lambda graph: graph):
            loss.backward(retain_graph=True)


class Inputs(Use):
    title = "`loss.backward(inputs=...)`"

    def backward(self, turn: Turn, loss: Tensor) -> None:
        some = list(self.model.parameters())
        turn.backward(loss, by=lambda: loss.backward(inputs=some))


class Clipping(Use):
    title = "clipping of gradients by norm and by value"

    def fill(self, turn: Turn) -> None:
        super().fill(turn)
        nn.utils.clip_grad_norm_(self.model.parameters(), 0.3)
        nn.utils.clip_grad_value_(self.model.parameters(), 0.1)


class Sam(Use):
    title = "SAM, whose base optimizer the session has"
    note = "SAM makes two backward passes a step, and `d1d_grad` takes one."
    refused = ONE_PASS

    def fill(self, turn: Turn) -> None:
        super().fill(turn)
        parameters = [p for p in self.model.parameters() if p.grad is not None]
        with torch.no_grad():
            norm = torch.stack([p.grad.norm() for p in parameters]).norm()
            climbs = [0.05 * p.grad / norm for p in parameters]
            for p, climb in zip(parameters, climbs, strict=True):
                p.add_(climb)
        self.optimizer.zero_grad()
        turn.backward(self.loss(turn))
        with torch.no_grad():
            for p, climb in zip(parameters, climbs, strict=True):
                p.sub_(climb)


class Surgery(Use):
    title = "gradients kept across backward passes (gradient surgery)"
    note = "A `.grad` that is kept does not change in later backward passes."
    refused = ONE_PASS

    def fill(self, turn: Turn) -> None:
        parameters = list(self.model.parameters())
        kept = []
        for task in range(2):
            self.optimizer.zero_grad()
            turn.backward(self.loss(turn, task))
            kept.append([p.grad for p in parameters])
            if task == 0:
                copies = [p.grad.clone() for p in parameters]
        for grad, copy in zip(kept[0], copies, strict=True):
            assert torch.equal(grad, copy), "a kept gradient has changed"
        for p, a, b in zip(parameters, *kept, strict=True):
            dot = (a * b).sum()
            p.grad = a + b - (dot / a.square().sum() * a if dot < 0 else 0)


class Penalty(Use):
    title = "a second derivative in the loss (gradient penalty)"

    def loss(self, turn: Turn, number: int = 0) -> Tensor:
        x, y = turn.batch(number)
        x.requires_grad_(True)
        output = self.model(x)
        (slope,) = torch.autograd.grad(output.sum(), x, create_graph=True)
        return (output - y).square().mean() + slope.square().mean()


class ByData(Use):
    title = "updates by hand: `p.data -= lr * p.grad`"
    made = SGD, {"lr": 0.05}

    def step(self, turn: Turn) -> None:
        self.model.zero_grad()
        turn.backward(self.loss(turn))
        for p in self.model.parameters():
            self.update(p)
        turn.stepped()

    def update(self, p: nn.Parameter) -> None:
        p.data -= 0.05 * p.grad

    def skipped(self, column: str) -> int:
        """`d1d_grad` has no gradient in its first step, so the update does nothing."""
        return int(column == "d1d_grad")


class InPlace(ByData):
    title = "updates by hand: `with torch.no_grad(): p.sub_(lr * p.grad)`"

    def update(self, p: nn.Parameter) -> None:
        with torch.no_grad():
            p.sub_(0.05 * p.grad)

    def skipped(self, column: str) -> int:
        return 0


class NewData(ByData):
    title = "updates by hand: `p.data = p.data - lr * p.grad`"
    note = "A session needs parameters to stay in their storage: update in place."
    refused = refused("flat buffer")

    def update(self, p: nn.Parameter) -> None:
        p.data = p.data - 0.05 * p.grad


class InBackward(Use):
    title = "the optimizer's step in the backward pass (hooks that free `.grad`)"
    note = "Where gradients are averaged there is then nothing to average."
    refused = refused("(?i)backward", GRADIENTS)

    def optimize(self, model: nn.Module) -> Optimizer:
        for p in model.parameters():
            p.register_post_accumulate_grad_hook(self.update)
        return SGD(model.parameters(), lr=0.05)

    def update(self, p: Tensor) -> None:
        with torch.no_grad():
            p.sub_(0.05 * p.grad)
        p.grad = None

    def step(self, turn: Turn) -> None:
        turn.backward(self.loss(turn))
        turn.stepped()


class Checkpointing(Use):
    title = "activation checkpointing (`use_reentrant=False`)"
    reentrant = False

    def output(self, turn: Turn, x: Tensor) -> Tensor:
        hidden = x.requires_grad_(True)
        for layer in self.model.children():
            hidden = checkpoint(layer, hidden, use_reentrant=self.reentrant)
        return hidden


class Reentrant(Checkpointing):
    title = "activation checkpointing (`use_reentrant=True`)"
    note = "Each checkpoint makes a backward pass, and `d1d_grad` takes one a step."
    refused = ONE_PASS
    reentrant = True

    def backward(self, turn: Turn, loss: Tensor) -> None:
        x, y = turn.batch()
        turn.backward(loss, like=(self.model(x) - y).square().mean())

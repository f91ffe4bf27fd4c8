"""The module has the rows about parameters and buffers."""

import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from tests.uses.use import GRADIENTS, Turn, Use, others, refused


class Plain(Use):
    title = "one parameter group, `zero_grad`, `backward`, `step`"


class Groups(Use):
    title = "parameter groups with their own rates"

    def optimize(self, model: nn.Module) -> Optimizer:
        first, _, last = model.children()
        slow = {"params": first.parameters(), "lr": 0.002, "weight_decay": 0.1}
        return AdamW([slow, {"params": last.parameters()}], lr=0.02)


class TiedModules(Use):
    title = "a parameter in two modules (tied)"

    def net(self) -> nn.Module:
        model = nn.Sequential(
            nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3), nn.Linear(3, 2)
        )
        model[2].weight = model[0].weight
        return model


class TiedByData(Use):
    title = "parameters tied by `.data`"
    note = "Make them one `Parameter`."
    refused = refused(r"(?i)\b(share|tied|overlap)")

    def net(self) -> nn.Module:
        model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 2))
        model[1].weight.data = model[0].weight.data
        return model


class Frozen(Use):
    title = "parameters frozen from the start"
    still = ("0.weight", "0.bias")

    def net(self) -> nn.Module:
        model = super().net()
        next(model.children()).requires_grad_(False)
        return model


class Unfrozen(Use):
    title = "parameters unfrozen later"
    note = "Begin a new session when parameters join the training."
    refused = refused(r"0\.weight")

    def net(self) -> nn.Module:
        model = super().net()
        next(model.children()).requires_grad_(False)
        return model

    def step(self, turn: Turn) -> None:
        if turn.k == 4:
            self.model.requires_grad_(True)
        super().step(turn)


class FrozenLater(Use):
    title = "parameters frozen later"
    note = "`allreduce` leaves them where they are; with others, begin a new session."
    refused = refused(r"0\.weight", others("allreduce"))

    def step(self, turn: Turn) -> None:
        if turn.k == 4:
            next(self.model.children()).requires_grad_(False)
        super().step(turn)


class Adapted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(3, 2)
        self.adapter: nn.Module | None = None

    def forward(self, x: Tensor) -> Tensor:
        extra = self.adapter(x) if self.adapter is not None else 0
        output: Tensor = self.base(x) + extra
        return output


class LateGroup(Use):
    title = "`add_param_group` later (adapters, LoRA)"
    note = "Begin a new session when parameters join the training."
    refused = refused("adapter")

    def net(self) -> nn.Module:
        return Adapted()

    def step(self, turn: Turn) -> None:
        if turn.k == 4:
            self.model.adapter = nn.Linear(3, 2)
            self.optimizer.add_param_group({"params": self.model.adapter.parameters()})
        super().step(turn)


class MixedTypes(Use):
    title = "parameters of several dtypes"
    note = "Keep parameters in float32 and use autocast."
    refused = refused("share one dtype")

    def net(self) -> nn.Module:
        model = super().net()
        list(model.children())[2].double()
        return model


class Complex(Use):
    title = "complex parameters"
    note = (
        "Keep real and imaginary parts in one real parameter, and use "
        "`torch.view_as_complex` in `forward`."
    )
    refused = refused("view_as_complex")
    everybody = True

    def net(self) -> nn.Module:
        return nn.Linear(3, 2, dtype=torch.complex64)

    def loss(self, turn: Turn, number: int = 0) -> Tensor:
        x, y = turn.batch(number)
        return (self.model(x + 0j) - y).abs().square().mean()


class Rotations(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 2, 2))

    def forward(self, x: Tensor) -> Tensor:
        return ((x + 0j) @ torch.view_as_complex(self.weight)).abs()


class RealViews(Use):
    title = "real parameters that the model uses as complex ones (`view_as_complex`)"

    def net(self) -> nn.Module:
        return Rotations()


class HalfAdam(Use):
    title = "float16 parameters with Adam's `eps` of 1e-8"
    note = "`eps` is 0 in float16: keep parameters in float32 and use autocast."
    refused = refused("eps")

    def net(self) -> nn.Module:
        return super().net().half()

    def output(self, turn: Turn, x: Tensor) -> Tensor:
        return super().output(turn, x.half())


class HalfSgd(Use):
    title = "bfloat16 parameters with SGD"
    rounding = 0.05
    made = SGD, {"lr": 0.3}

    def net(self) -> nn.Module:
        return super().net().bfloat16()

    def output(self, turn: Turn, x: Tensor) -> Tensor:
        return super().output(turn, x.bfloat16())


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(6, 3, sparse=True)
        self.last = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        words = self.words(x[:, 0].abs().mul(3).long().clamp(max=5))
        output: Tensor = self.last(words + x)
        return output


class Sparse(Use):
    title = "sparse gradients (`Embedding(sparse=True)`)"
    note = "Use `sparse=False` where gradients are averaged."
    refused = refused("(?i)sparse", GRADIENTS)
    made = SGD, {"lr": 0.1}

    def net(self) -> nn.Module:
        return Words()


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(3, 2)
        self.branch = nn.Linear(3, 2)

    def forward(self, x: Tensor, branch: bool) -> Tensor:
        output: Tensor = self.base(x) + (self.branch(x) if branch else 0)
        return output


class Branch(Use):
    title = "a branch of the model that some batches use"

    def net(self) -> nn.Module:
        return Branches()

    def output(self, turn: Turn, x: Tensor) -> Tensor:
        output: Tensor = self.model(x, (turn.k + turn.rank) % 3 == 0)
        return output


class OddShapes(Use):
    title = "scalar, empty, transposed and channels-last parameters"
    still = ("empty",)
    # A session makes layouts dense, which changes the order of sums.
    exact_alone = False

    def net(self) -> nn.Module:
        return Odd()


class Odd(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(()) + 0.5)
        self.empty = nn.Parameter(torch.zeros(0, 3))
        self.turned = nn.Parameter(torch.randn(2, 12).t())
        self.conv = nn.Conv2d(3, 3, 2).to(memory_format=torch.channels_last)

    def forward(self, x: Tensor) -> Tensor:
        image = x[:, :, None, None] * torch.ones(3, 3)
        hidden = self.conv(image).flatten(1) * self.scale
        output: Tensor = hidden @ self.turned + self.empty.sum()
        return output


class Buffers(Use):
    title = "strided, expanded, int16 and bool buffers"

    def net(self) -> nn.Module:
        model = super().net()
        model.register_buffer("strided", torch.randn(4, 6)[:, ::2])
        model.register_buffer("turned", torch.randn(4, 6).t())
        model.register_buffer("expanded", torch.randn(4, 1).expand(4, 3))
        model.register_buffer("short", torch.randint(100, (5,), dtype=torch.int16))
        model.register_buffer("flags", torch.rand(9) < 0.5)
        model.register_buffer("count", torch.randint(100, ()))
        return model


class SparseBuffer(Use):
    title = "sparse buffers"
    note = "Keep them dense, or outside of the model."
    refused = refused("(?i)sparse")

    def net(self) -> nn.Module:
        model = super().net()
        model.register_buffer("links", torch.eye(3).to_sparse())
        return model


class Unequal(Use):
    title = "models of unequal shapes"
    note = "All learners raise the error at once."
    refused = refused("(?i)learner")
    everybody = True

    def net(self) -> nn.Module:
        return nn.Sequential(nn.Linear(3, 4 + self.rank), nn.Linear(4 + self.rank, 2))

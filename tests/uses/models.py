"""The module has the rows about models and about what wraps them."""

import copy
import io
import pickle
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parametrizations
from torch.optim import Adam, Optimizer
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from tests.uses.use import GRADIENTS, Turn, Use, others, refused


class Compiled(Use):
    title = "`torch.compile`"

    def output(self, turn: Turn, x: Tensor) -> Tensor:
        if not hasattr(self, "compiled"):
            self.compiled = torch.compile(self.model, backend="eager")
        output: Tensor = self.compiled(x)
        return output


class CompiledFirst(Use):
    title = "`torch.compile` before the session"

    def net(self) -> nn.Module:
        model: Any = torch.compile(super().net(), backend="eager")
        return model


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(3, 4, bidirectional=True, num_layers=2)
        self.last = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.last(self.rnn(x[:, None])[0][:, 0])
        return output


class Rnn(Use):
    title = "recurrent modules (LSTM, GRU, RNN)"

    def net(self) -> nn.Module:
        return Recurrent()


class BatchNorm(Use):
    title = "BatchNorm"
    note = "Each learner has its own statistics; the consensus model has their mean."

    def net(self) -> nn.Module:
        return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


class SyncBatchNorm(Use):
    title = "SyncBatchNorm"
    note = (
        "It needs learners that meet in every step; elsewhere use BatchNorm. (PyTorch "
        "trains it on a GPU only; the test has its statistics frozen.)"
    )
    refused = refused(
        "SyncBatchNorm",
        others(*GRADIENTS, "dpsgd", "d1d_model"),
    )

    def net(self) -> nn.Module:
        norm = nn.SyncBatchNorm(4)
        return nn.Sequential(nn.Linear(3, 4), norm.eval(), nn.Linear(4, 2))


class Parametrized(Use):
    title = "parametrizations (weight and spectral norm)"

    def net(self) -> nn.Module:
        first = parametrizations.weight_norm(nn.Linear(3, 4))
        last = parametrizations.spectral_norm(nn.Linear(4, 2))
        return nn.Sequential(first, nn.Tanh(), last)


class Ema(Use):
    title = "an EMA by `AveragedModel`, swapped in for evaluation and out again"
    note = "Swap back before `session.step()`."

    def __init__(self, rank: int) -> None:
        super().__init__(rank)
        self.average: AveragedModel | None = None
        self.expected: list[Tensor] = []

    def step(self, turn: Turn) -> None:
        super().step(turn)
        self.follow()
        if turn.k in (4, 8):
            own = [p.detach().clone() for p in self.model.parameters()]
            self.swap(turn.k == 4)
            self.loss(turn)
            self.swap(turn.k == 4)
            for p, before in zip(self.model.parameters(), own, strict=True):
                assert torch.equal(p, before), "the swap has changed the model"

    def follow(self) -> None:
        parameters = [p.detach().clone() for p in self.model.parameters()]
        if self.average is None:
            rule = get_ema_multi_avg_fn(0.5)
            self.average = AveragedModel(self.model, multi_avg_fn=rule)
            self.expected = parameters
        else:
            self.expected = [
                (a + b) / 2 for a, b in zip(self.expected, parameters, strict=True)
            ]
        self.average.update_parameters(self.model)
        for p, e in zip(self.average.parameters(), self.expected, strict=True):
            torch.testing.assert_close(p.detach(), e)

    def swap(self, by_data: bool) -> None:
        assert self.average is not None
        for p, q in zip(
            self.model.parameters(), self.average.parameters(), strict=True
        ):
            if by_data:
                p.data, q.data = q.data, p.data
            else:
                kept = p.detach().clone()
                with torch.no_grad():
                    p.copy_(q)
                    q.copy_(kept)


class Copies(Use):
    title = "`deepcopy`, `pickle` and `torch.save` of the model in a session"

    def net(self) -> nn.Module:
        return Recurrent()

    def step(self, turn: Turn) -> None:
        super().step(turn)
        if turn.k != 5:
            return
        file = io.BytesIO()
        torch.save(self.model, file)
        file.seek(0)
        copies = [
            copy.deepcopy(self.model),
            pickle.loads(pickle.dumps(self.model)),
            torch.load(file, weights_only=False),
        ]
        own = [p.detach().clone() for p in self.model.parameters()]
        for copied in copies:
            for p, mine in zip(copied.parameters(), own, strict=True):
                assert torch.equal(p, mine), "a copy differs"
            train(copied)
        for p, mine in zip(self.model.parameters(), own, strict=True):
            assert torch.equal(p, mine), "a copy's training has changed the model"


def train(model: nn.Module) -> None:
    """Train a copy of a model for a step; it has no session, so it waits for nobody."""
    optimizer = Adam(model.parameters())
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()


class Ddp(Use):
    title = "`DistributedDataParallel`"
    note = "Give the session the module itself: `allreduce` is what DDP does."
    refused = refused("DistributedDataParallel|DDP")

    def net(self) -> nn.Module:
        # Earlier rows may have broken the default group: a lost learner ends its waits.
        return DistributedDataParallel(super().net(), process_group=dist.new_group())


class Fsdp(Use):
    title = "FSDP (`fully_shard`), DTensor"
    note = "A session needs whole parameters."
    refused = refused("FSDP|DTensor")

    def net(self) -> nn.Module:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        model = super().net()
        fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
        return model


class Moved(Use):
    title = "`model.to(...)`, `model.double()` in the middle"
    note = "Move the model before the session begins."
    refused = refused("flat buffer")

    def step(self, turn: Turn) -> None:
        if turn.k == 4:
            self.model.double().float()
        super().step(turn)


class ModelLoaded(Use):
    title = "`model.load_state_dict` in the middle"
    note = "Call `session.restart_from_model()` after it."
    refused = refused("restart_from_model")

    def step(self, turn: Turn) -> None:
        if turn.k == 2:
            self.saved = copy.deepcopy(self.model.state_dict())
        if turn.k == 7:
            self.model.load_state_dict(self.saved)
        super().step(turn)


class Restarted(Use):
    title = "`model.load_state_dict`, then `session.restart_from_model()`"
    note = "Do so between epochs. All learners go on from learner 0's model."

    def step(self, turn: Turn) -> None:
        if turn.k == 2:
            self.saved = copy.deepcopy(self.model.state_dict())
        if turn.k == 6:
            if turn.session is None:
                self.model.load_state_dict(self.saved)
            else:
                with turn.session.consensus():
                    pass
                self.model.load_state_dict(self.saved)
                turn.session.restart_from_model()
                turn.began_anew()
        super().step(turn)


class Gan(Use):
    title = "two models with a session each, and `requires_grad` toggled (GAN)"

    def __init__(self, rank: int) -> None:
        super().__init__(rank)
        self.critic = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))
        self.rival: Optimizer = Adam(self.critic.parameters(), lr=0.01)
        self.pairs.append((self.critic, self.rival))

    def step(self, turn: Turn) -> None:
        self.critic.requires_grad_(True)
        noise, real = turn.batch()
        self.rival.zero_grad()
        false = self.model(noise).detach()
        margins = self.critic(false) + 1, 1 - self.critic(real)
        turn.backward(sum(margin.square().mean() for margin in margins))
        self.rival.step()
        turn.stepped(1)
        self.critic.requires_grad_(False)
        self.optimizer.zero_grad()
        turn.backward(-self.critic(self.model(noise)).mean())
        self.optimizer.step()
        turn.stepped(0)
        self.critic.requires_grad_(True)


class Again(Use):
    title = "a session after another one has ended, on the same model"
    note = "It is refused if a learner has died in the one before and was not replaced."

    def step(self, turn: Turn) -> None:
        if turn.k == 6:
            turn.reopen()
        super().step(turn)

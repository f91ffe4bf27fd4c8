"""What is captured reads the parameters' own memory."""

from types import SimpleNamespace

import torch
from torch import nn

from espnet_distopt.espnet.models.captured import _Graphs, _Replay, _twin


class Scores(nn.Module):
    """An LSTM, which keeps its parameters in lists of its own, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(5, 4, 2, batch_first=True, bidirectional=True)
        self.scores = nn.Linear(8, 3)
        self.register_buffer("scale", torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scores(self.rnn(x)[0]).sum() * self.scale


def test_a_twin_shares_the_memory_and_not_the_parameters() -> None:
    model, x = Scores(), torch.randn(2, 3, 5)
    twin = _twin(model)
    assert twin.scale is model.scale
    pairs = list(zip(twin.parameters(), model.parameters(), strict=True))
    for _ in range(2):
        assert all(one.data_ptr() == other.data_ptr() for one, other in pairs)
        assert not any(one is other for one, other in pairs)
        twin(x).backward()
        assert all(other.grad is None for _, other in pairs)
        with torch.no_grad():
            for _, other in pairs:
                other.add_(0.1)
        torch.testing.assert_close(twin(x), model(x), rtol=0, atol=0)


def test_an_lstm_keeps_its_own_parameters_and_its_twin_the_others() -> None:
    model = Scores()
    twin = _twin(model)
    for module in (model, twin):
        own = {id(p) for p in module.rnn.parameters()}
        assert {id(p) for p in module.rnn._flat_weights} == own
        assert not module.rnn._weights_have_changed()  # Nothing is laid out anew.


class Replaying:
    """Graphs in a linear layer's place, which use memory as captured ones do."""

    def __init__(self, model: nn.Linear) -> None:
        self.model, self.loss = _twin(model), torch.zeros(())
        self.x, self.found = torch.zeros(4, 3), torch.zeros(())
        self.gradients = tuple(torch.zeros_like(p) for p in model.parameters())

    def forward(self) -> None:
        for each in self.gradients:  # Activations have this memory, too.
            each.fill_(torch.nan)
        with torch.enable_grad():
            self.loss = self.model(self.x).square().mean()
        self.found.copy_(self.loss.detach())

    def backward(self) -> None:
        new = torch.autograd.grad(self.loss, list(self.model.parameters()))
        for gradient, each in zip(self.gradients, new, strict=True):
            gradient.copy_(each)


def test_gradients_add_up_though_graphs_use_their_memory_again() -> None:
    model = nn.Linear(3, 2)
    ours = Replaying(model)
    forward, backward = (
        SimpleNamespace(replay=f) for f in (ours.forward, ours.backward)
    )
    outputs, one = (ours.found,), torch.ones(())
    graphs = _Graphs(
        (), ours.x, ours.x, forward, outputs, backward, one, ours.gradients
    )
    expected = [torch.zeros_like(p) for p in model.parameters()]
    for _ in range(3):
        x = torch.randn(4, 3)
        ours.x.copy_(x)
        new = torch.autograd.grad(model(x).square().mean(), list(model.parameters()))
        for total, each in zip(expected, new, strict=True):
            total += each
        _Replay.apply(graphs, *model.parameters())[0].backward()
        for parameter, total in zip(model.parameters(), expected, strict=True):
            torch.testing.assert_close(parameter.grad, total)

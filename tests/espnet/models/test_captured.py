"""What is captured reads the parameters' own memory."""

import torch
from torch import nn

from espnet_distopt.espnet.models.captured import _twin


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

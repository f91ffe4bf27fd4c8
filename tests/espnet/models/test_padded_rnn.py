"""The padded encoder is the stock encoder, with gradients, for every shape."""

import pytest
import torch
from espnet2.asr.encoder.rnn_encoder import RNNEncoder
from hypothesis import given
from hypothesis import strategies as st

from espnet_distopt.core.plain import PLAIN
from espnet_distopt.espnet.models.padded_rnn import (
    FullLength,
    PaddedRNNEncoder,
    pad_rnn_encoders,
    reversal_index,
    stacks_lstms,
)

SHAPES = {
    "ibm": {"use_projection": False, "num_layers": 3},
    "one layer": {"use_projection": False, "num_layers": 1},
    "one way": {"use_projection": False, "bidirectional": False, "num_layers": 2},
    "projected": {"use_projection": True, "num_layers": 3, "subsample": (1, 1, 1)},
    "halved": {"use_projection": True, "num_layers": 3, "subsample": (2, 1, 1)},
    "thirded": {"use_projection": True, "num_layers": 2, "subsample": (3, 2)},
    "gru": {"use_projection": False, "rnn_type": "gru", "num_layers": 2},
}


THREE_GROUPS = [9, 9, 9, 8, 8, 7, 7, 6, 6, 5, 5, 5, 4, 4, 4, 3, 3, 3, 3]


def pair(**shape: object) -> tuple[RNNEncoder, PaddedRNNEncoder]:
    torch.manual_seed(0)
    stock = RNNEncoder(5, hidden_size=4, output_size=3, **shape)
    padded = PaddedRNNEncoder(5, hidden_size=4, output_size=3, **shape)
    padded.load_state_dict(stock.state_dict())
    return stock, padded


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("lengths", [[9], [9, 7, 4, 4], [12, 6], THREE_GROUPS])
def test_outputs_and_gradients_are_stock(shape: str, lengths: list[int]) -> None:
    stock, padded = pair(**SHAPES[shape])
    x = torch.randn(len(lengths), max(lengths), 5)
    results = []
    for encoder in (stock, padded):
        y, n, _ = encoder(x.clone(), torch.tensor(lengths))
        y.square().sum().backward()
        results.append((y, n, [p.grad for p in encoder.parameters()]))
    (y, n, grads), (y2, n2, grads2) = results
    assert torch.equal(n, n2)
    torch.testing.assert_close(y2, y, rtol=0, atol=1e-6)
    for one, other in zip(grads, grads2, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-6)


def test_the_order_of_a_batch_does_not_matter() -> None:
    _, padded = pair(**SHAPES["ibm"])
    lengths = torch.tensor(THREE_GROUPS)
    x, order = torch.randn(len(lengths), 9, 5), torch.randperm(len(lengths))
    y, n, _ = padded(x, lengths)
    y2, n2, _ = padded(x[order], lengths[order])
    assert torch.equal(n2, n[order])
    torch.testing.assert_close(y2, y[order], rtol=0, atol=1e-6)


def test_what_lies_in_the_padding_does_not_matter() -> None:
    _, padded = pair(**SHAPES["ibm"])
    x = torch.randn(2, 8, 5)
    lengths = torch.tensor([8, 5])
    before = padded(x, lengths)[0]
    x[1, 5:] = 1e6
    assert torch.equal(padded(x, lengths)[0], before)


def test_input_longer_than_the_longest_length_is_cut() -> None:
    stock, padded = pair(**SHAPES["ibm"])
    x, lengths = torch.randn(2, 10, 5), torch.tensor([7, 5])
    y, y2 = stock(x, lengths)[0], padded(x, lengths)[0]
    assert y2.shape == y.shape
    torch.testing.assert_close(y2, y, rtol=0, atol=1e-6)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.integers(0, 4))
def test_reversing_twice_is_the_identity(lengths: list[int], extra: int) -> None:
    n = torch.tensor(lengths)
    index = reversal_index(n, max(lengths) + extra)
    assert torch.equal(index[index], torch.arange(len(index)))
    rows = torch.div(index, len(lengths), rounding_mode="floor").view(-1, len(lengths))
    for column, length in zip(rows.T, lengths, strict=True):
        assert column[:length].tolist() == list(range(length - 1, -1, -1))
    columns = (index % len(lengths)).view(-1, len(lengths))
    assert (columns == torch.arange(len(lengths))).all()


@pytest.mark.parametrize("shape", ["ibm", "projected", "halved"])
def test_gradient_of_the_padding_is_zero_and_of_the_input_stock(shape: str) -> None:
    lengths = torch.tensor([8, 5, 2])
    inputs = []
    for encoder in pair(**SHAPES[shape]):
        torch.manual_seed(1)
        x = torch.randn(3, 8, 5, requires_grad=True)
        encoder(x.clone(), lengths)[0].square().sum().backward()
        inputs.append(x.grad)
    stock, padded = inputs
    torch.testing.assert_close(padded, stock, rtol=1e-4, atol=1e-6)
    for row, length in zip(padded, lengths, strict=True):
        assert not row[length:].any()


def test_dropout_acts_between_layers_in_training_only() -> None:
    shape = {**SHAPES["ibm"], "dropout": 0.5}
    stock, padded = pair(**shape)
    x, lengths = torch.randn(2, 6, 5), torch.tensor([6, 4])
    stock.eval(), padded.eval()
    torch.testing.assert_close(padded(x, lengths)[0], stock(x, lengths)[0])
    padded.train()
    assert not torch.equal(padded(x, lengths)[0], padded(x, lengths)[0])


def test_encoders_inside_a_model_are_turned_in_place() -> None:
    stock, _ = pair(**SHAPES["ibm"])
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), stock)
    names = list(model.state_dict())
    pad_rnn_encoders(model)
    assert type(model[1]) is PaddedRNNEncoder
    assert list(model.state_dict()) == names


@pytest.mark.parametrize(("shape", "gone"), [("ibm", "nbrnn"), ("projected", "bt1")])
def test_an_encoder_with_other_layers_stays_espnets(
    shape: str, gone: str, caplog: pytest.LogCaptureFixture
) -> None:
    stock, _ = pair(**SHAPES[shape])
    delattr(stock.enc[0], gone)
    pad_rnn_encoders(stock)
    assert type(stock) is RNNEncoder
    assert "ESPnet's RNN encoder: done the plain way" in caplog.text


def test_one_variable_leaves_encoders_as_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(PLAIN, "1")
    stock, _ = pair(**SHAPES["ibm"])
    pad_rnn_encoders(stock)
    assert type(stock) is RNNEncoder
    pad_rnn_encoders(stock, any_order=True)
    assert type(stock) is PaddedRNNEncoder


@pytest.mark.parametrize("shape", ["ibm", "one layer", "one way"])
def test_sequences_of_one_length_need_no_packing(shape: str) -> None:
    stock, padded = pair(**SHAPES[shape])
    assert stacks_lstms(padded)
    x = torch.randn(4, 9, 5)
    expected, _, _ = stock(x, torch.full((4,), 9))
    torch.testing.assert_close(FullLength(padded)(x), expected)


@pytest.mark.parametrize("shape", [*{**SHAPES, "dropout": {}}][3:])
def test_other_encoders_are_packed(shape: str) -> None:
    chosen = SHAPES.get(shape, {**SHAPES["ibm"], "dropout": 0.1})
    assert not stacks_lstms(pair(**chosen)[0])

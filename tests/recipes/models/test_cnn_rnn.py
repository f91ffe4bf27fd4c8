"""The encoder of text lines: a line's output is its own, whatever batch it is in."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from espnet_distopt.errors import InputError
from espnet_distopt.recipes.models.cnn_rnn import CNNRNNEncoder

HEIGHT = 12
SHAPES = [(cnn, subsample) for cnn in ("compact", "vgg") for subsample in (2, 4)]


def encoder(
    cnn: str, subsample: int, height: int = HEIGHT, **more: object
) -> CNNRNNEncoder:
    torch.manual_seed(0)
    made = CNNRNNEncoder(
        height,
        cnn=cnn,
        channels=3,
        subsample=subsample,
        num_layers=2,
        hidden_size=5,
        output_size=4,
        **more,
    )
    # BatchNorm as after some training: in a fresh one 0 stays 0 even without masks
    for module in made.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.uniform_(-1, 1)
            module.bias.data.uniform_(-1, 1)
    return made.eval()


@pytest.mark.parametrize(("cnn", "subsample"), SHAPES)
@given(lengths=st.lists(st.integers(1, 23), min_size=1, max_size=4))
@settings(max_examples=25)
def test_a_line_is_encoded_as_if_it_were_alone(
    cnn: str, subsample: int, lengths: list[int]
) -> None:
    model = encoder(cnn, subsample)
    x = torch.rand(len(lengths), max(lengths) + 2, HEIGHT)  # not 0 in the padding
    with torch.no_grad():
        together, n, _ = model(x, torch.tensor(lengths))
        assert n.tolist() == [-(-length // subsample) for length in lengths]
        assert together.shape == (len(lengths), int(n.max()), model.output_size())
        for row, line, length in zip(together, x, lengths, strict=True):
            alone, one, _ = model(line[None, :length], torch.tensor([length]))
            frames = int(one[0])
            torch.testing.assert_close(row[:frames], alone[0], rtol=0, atol=1e-5)
            assert not row[frames:].any()


@pytest.mark.parametrize(("cnn", "subsample"), SHAPES)
def test_a_frame_sees_the_columns_that_it_stands_for(cnn: str, subsample: int) -> None:
    model = encoder(cnn, subsample)
    x = torch.rand(1, 80, HEIGHT, requires_grad=True)
    frames = x[:, None]
    lengths = torch.tensor([80])
    for layer in model.cnn:
        frames, lengths = layer(frames, lengths)
    frames[0, :, 8].sum().backward()
    assert x.grad is not None
    seen = x.grad[0].abs().sum(1).nonzero().ravel().tolist()
    assert seen[0] <= 8 * subsample < 9 * subsample - 1 <= seen[-1]
    assert seen[-1] - seen[0] < 32  # a letter and its neighbours


@pytest.mark.parametrize(("cnn", "subsample"), SHAPES)
def test_every_parameter_learns(cnn: str, subsample: int) -> None:
    model = encoder(cnn, subsample).train()
    y, _, _ = model(torch.rand(3, 17, HEIGHT), torch.tensor([17, 9, 4]))
    y.square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


def test_the_shortcut_is_there_in_training_only() -> None:
    model = encoder("compact", 2, shortcut=True).train()
    x, lengths = torch.rand(3, 17, HEIGHT), torch.tensor([17, 9, 4])
    output, n, _ = model(x, lengths)
    y, [(layer, direct)] = output
    assert (layer, direct.shape, n.tolist()) == (0, y.shape, [9, 5, 2])
    direct.square().sum().backward()
    learnt = {
        name.partition(".")[0]
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }
    assert learnt == {"cnn", "shortcut"}
    assert isinstance(model.eval()(x, lengths)[0], torch.Tensor)


def test_maxima_of_columns_do_not_depend_on_the_height_of_a_stroke() -> None:
    x = torch.zeros(1, 24, 48)
    x[0, 8:12, 16:20] = 1
    lowered = x.roll(8, 2)  # That is a pixel of the CNN's output.
    for columns, same in (("max", True), ("flat", False)):
        model = encoder("compact", 4, 48, columns=columns)
        with torch.no_grad():
            one, other = (model(each, torch.tensor([24]))[0] for each in (x, lowered))
        assert torch.allclose(one, other, atol=1e-6) == same


@pytest.mark.parametrize("height", [1, 7, 8, 33])
def test_any_height(height: int) -> None:
    y, _, _ = encoder("vgg", 4, height)(torch.rand(1, 9, height), torch.tensor([9]))
    assert y.shape == (1, 3, 4)


@pytest.mark.parametrize(
    ("conf", "expected"),
    [
        ({"cnn": "resnet"}, "cnn must be compact or vgg, not 'resnet'"),
        ({"subsample": 3}, "subsample must be 2 or 4, not 3"),
        ({"columns": "mean"}, "columns must be flat or max, not 'mean'"),
    ],
)
def test_bad_options(conf: dict[str, object], expected: str) -> None:
    with pytest.raises(InputError, match=expected):
        CNNRNNEncoder(HEIGHT, **conf)


def test_lines_of_another_height() -> None:
    with pytest.raises(InputError, match="9 pixels high, but input_size is 12"):
        encoder("compact", 4)(torch.rand(1, 9, 9), torch.tensor([9]))

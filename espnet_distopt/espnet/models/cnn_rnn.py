"""Encoder for text lines: convolutions, then a BLSTM over the columns (`cnn_rnn`).

The CNN-DBLSTM shape of OCR models. A line comes as (columns, height) of ink, 0 where
there is paper. The convolutions halve the height several times and the width once or
twice; what is left of a column is one frame of the BLSTM.

The output of a line does not depend on the batch it is in: before and behind each
convolution all that lies beyond a line's own end is set back to 0, which is what the
zero padding of a convolution at the end of an unpadded line is. In training BatchNorm
counts the padding, which looks to it like paper.
"""

from typing import NamedTuple

import torch
from espnet2.asr.encoder.abs_encoder import AbsEncoder
from torch import Tensor, nn
from torch.nn import functional

from espnet_distopt.errors import InputError
from espnet_distopt.espnet.models.padded_rnn import PaddedRNNEncoder

WIDTHS = 32
"""Batches are padded to a multiple of so many columns."""


class Block(NamedTuple):
    """Convolutions of 3x3, each with BatchNorm and ReLU, then a maximum over a window.

    Attributes:
        channels: of each convolution.
        convolutions: how many.
        stride: (width, height) of the first convolution.
        pool: (width, height) of the window and its stride; (1, 1): none.
    """

    channels: int
    convolutions: int = 1
    stride: tuple[int, int] = (1, 1)
    pool: tuple[int, int] = (1, 1)


def blocks(cnn: str, subsample: int, channels: int) -> list[Block]:
    """Return the blocks of a kind of CNN.

    Args:
        cnn: `compact`: three strided convolutions, cheap enough for CPUs, height
            divided by 8; `vgg`: three blocks with pooling, as in VGG, height
            divided by 8.
        subsample: 2 or 4, columns of a frame.
        channels: of the first block; the second and third have twice and four times as
            many.

    Raises:
        InputError: another kind or another subsampling.
    """
    if cnn not in ("compact", "vgg"):
        raise InputError(f"encoder_conf: cnn must be compact or vgg, not {cnn!r}")
    if subsample not in (2, 4):
        raise InputError(f"encoder_conf: subsample must be 2 or 4, not {subsample!r}")
    widths = (2, subsample // 2, 1)
    if cnn == "compact":
        return [Block(channels << i, stride=(w, 2)) for i, w in enumerate(widths)]
    return [Block(channels << i, 2, pool=(w, 2)) for i, w in enumerate(widths)]


class CNNRNNEncoder(AbsEncoder):
    """The encoder; `encoder: cnn_rnn` in a training's configuration.

    Args:
        input_size: height of the lines in pixels.
        cnn: `compact` or `vgg`.
        channels: of the first convolution; the others follow.
        subsample: 2 or 4, columns of a frame.
        num_layers: of the BLSTM.
        hidden_size: cells of the BLSTM in each direction.
        output_size: width of the bottleneck behind the BLSTM.
        dropout: before it and between its layers.
    """

    def __init__(
        self,
        input_size: int,
        cnn: str = "vgg",
        channels: int = 64,
        subsample: int = 4,
        num_layers: int = 3,
        hidden_size: int = 256,
        output_size: int = 256,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.input_size = input_size
        self.dropout = nn.Dropout(dropout)
        layers, height, width = [], input_size, 1
        for block in blocks(cnn, subsample, channels):
            for number in range(block.convolutions):
                last = number == block.convolutions - 1
                layer = _Convolution(
                    width,
                    block.channels,
                    block.stride if number == 0 else (1, 1),
                    block.pool if last else (1, 1),
                )
                layers.append(layer)
                width, height = block.channels, layer.reduced(height, 1)
        self.cnn = nn.ModuleList(layers)
        self.rnn = PaddedRNNEncoder(
            width * height,
            use_projection=False,
            num_layers=num_layers,
            hidden_size=hidden_size,
            output_size=output_size,
            dropout=dropout,
        )

    def output_size(self) -> int:
        """Return the width of the output."""
        size: int = self.rnn.output_size()
        return size

    def forward(
        self, xs_pad: Tensor, ilens: Tensor, prev_states: Tensor | None = None
    ) -> tuple[Tensor, Tensor, None]:
        """Encode a batch of lines.

        Args:
            xs_pad: (B, T, height); what is beyond a line's end does not matter.
            ilens: (B,), columns of each.
            prev_states: not used: no streaming.

        Returns:
            (B, T / subsample, output_size) rounded up, lengths (B,), no states.

        Raises:
            InputError: the lines are of another height.
        """
        if xs_pad.size(2) != self.input_size:
            raise InputError(
                f"the lines are {xs_pad.size(2)} pixels high, but input_size is "
                f"{self.input_size}"
            )
        x = xs_pad[:, None, : int(ilens.max())]  # as an image of one channel
        x = _masked(x, ilens)
        # oneDNN and cuDNN keep a plan for each shape that they meet: let them be few.
        x = functional.pad(x, (0, 0, 0, -x.size(2) % WIDTHS))
        # On CPU, oneDNN is faster with the channels inside.
        x = x.contiguous(memory_format=torch.channels_last)
        for layer in self.cnn:
            x, ilens = layer(x, ilens)
        x = x[:, :, : int(ilens.max())]
        batch, channels, columns, height = x.shape
        x = x.permute(0, 2, 3, 1).reshape(batch, columns, height * channels)
        y, ilens, _ = self.rnn(self.dropout(x), ilens)
        return y, ilens, None


class _Convolution(nn.Module):
    def __init__(
        self,
        inputs: int,
        outputs: int,
        stride: tuple[int, int],
        pool: tuple[int, int],
    ) -> None:
        super().__init__()
        # BatchNorm brings the bias
        self.conv = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(outputs)
        self.stride, self.pool = stride, pool

    def reduced(self, size: int, axis: int) -> int:
        """Return what is left of a width (axis 0) or a height (axis 1)."""
        return -(-size // (self.stride[axis] * self.pool[axis]))

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        x = torch.relu(self.norm(self.conv(x)))
        lengths = _ceil_div(lengths, self.stride[0])
        x = _masked(x, lengths)
        if self.pool != (1, 1):
            # All is >= 0, so that padding never is the maximum.
            x = functional.max_pool2d(x, self.pool, ceil_mode=True)
            lengths = _ceil_div(lengths, self.pool[0])
        return x, lengths


def _masked(x: Tensor, lengths: Tensor) -> Tensor:
    """Set (B, C, T, H) to 0 beyond each length."""
    t = torch.arange(x.size(2), device=x.device)
    return x * (t < lengths[:, None])[:, None, :, None]


def _ceil_div(lengths: Tensor, step: int) -> Tensor:
    return torch.div(lengths + step - 1, step, rounding_mode="floor")

"""The module has an encoder for text lines, `cnn_rnn`: a CNN followed by a BLSTM.

OCR models with this shape are known as CNN-DBLSTM. A line is an array of ink of shape
(columns, height); paper is 0. The convolutions halve the height three times and the
width once or twice. Each column that remains is one frame of the BLSTM.

In evaluation the output for a line does not depend on the other lines of its batch. A
convolution pads an unpadded line with zeros at its end; so the encoder sets everything
beyond a line's end to 0 before and after each convolution, and a line in a batch sees
the same zeros. In training, BatchNorm's statistics include the padding, which looks
like paper.

Two options come from Retsinas et al., "Best practices for a handwritten text
recognition system", 2022. With `columns: max` a frame holds the greatest value of each
channel over the height, so that the height at which a stroke is does not matter. With
`shortcut: true` a second CTC output reads the columns directly, without the BLSTM,
while the model is trained. Its gradient reaches the convolutions on a short way.
"""

from typing import NamedTuple

import torch
from espnet2.asr.encoder.abs_encoder import AbsEncoder
from torch import Tensor, nn
from torch.nn import functional

from espnet_distopt.errors import InputError
from espnet_distopt.espnet.models.padded_rnn import PaddedRNNEncoder

WithShortcut = tuple[Tensor, list[tuple[int, Tensor]]]
"""An encoder's output, and the outputs of layers in between with their numbers, which
is the form that ESPnet's models read."""

WIDTHS = 32
"""The width of a batch, in columns, is padded to a multiple of this number."""


class Block(NamedTuple):
    """A block is some 3x3 convolutions, each with BatchNorm and ReLU, and a max-pool.

    Attributes:
        stride: the stride of the first convolution, as (width, height); the others have
            stride 1.
        pool: the size and the stride of the pooling window, as (width, height); (1, 1)
            means that there is no pooling.
    """

    channels: int
    convolutions: int = 1
    stride: tuple[int, int] = (1, 1)
    pool: tuple[int, int] = (1, 1)


def blocks(cnn: str, subsample: int, channels: int) -> list[Block]:
    """Return the blocks of a CNN.

    Args:
        cnn: the kind of CNN. `compact` has three strided convolutions and is cheap
            enough for CPUs; `vgg` has three blocks of two convolutions with pooling, as
            in VGG. Both divide the height by 8.
        subsample: the number of columns that become one frame, 2 or 4.
        channels: the number of channels of the first block; the second block has twice
            as many and the third four times as many.

    Raises:
        InputError: `cnn` or `subsample` has another value.
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
    """The CNN-BLSTM encoder, which a configuration selects by `encoder: cnn_rnn`.

    Args:
        input_size: the height of the lines, in pixels.
        subsample: the number of columns that become one frame, 2 or 4.
        output_size: the width of the bottleneck behind the BLSTM.
        dropout: the probability of dropout before the BLSTM and between its layers.
        columns: `flat` if a frame holds all values of its column, `max` if it holds the
            greatest value of each channel over the height.
        shortcut: whether a convolution over three frames maps the columns to vectors of
            `output_size`. In training these are the output of a layer 0 for ESPnet's
            intermediate CTC, whose weight is `interctc_weight` of `model_conf`; the CTC
            output layer is the one behind the BLSTM. In evaluation nothing reads them.

    Raises:
        InputError: `cnn`, `subsample` or `columns` has an unknown value.
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
        columns: str = "flat",
        shortcut: bool = False,
    ) -> None:
        super().__init__()
        if columns not in ("flat", "max"):
            raise InputError(
                f"encoder_conf: columns must be flat or max, not {columns!r}"
            )
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
        self.columns = columns
        frame = width if columns == "max" else width * height
        self.shortcut = (
            nn.Conv1d(frame, output_size, 3, padding=1) if shortcut else None
        )
        self.rnn = PaddedRNNEncoder(
            frame,
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
    ) -> tuple[Tensor | WithShortcut, Tensor, None]:
        """Encode a batch of lines.

        Args:
            xs_pad: the lines, shape (B, T, height); the values beyond a line's end do
                not matter.
            ilens: the number of columns of each line, shape (B,).
            prev_states: ESPnet's argument for streaming; it is ignored.

        Returns:
            The encoder's output, shape (B, ceil(T / subsample), output_size); the
            number of frames of each line, shape (B,); and None, as there are no states.
            In the training of a model with a shortcut, the output comes together with
            that of the shortcut, which has the same shape, as layer 0.

        Raises:
            InputError: the height of the lines is not `input_size`.
        """
        if xs_pad.size(2) != self.input_size:
            raise InputError(
                f"the lines are {xs_pad.size(2)} pixels high, but input_size is "
                f"{self.input_size}"
            )
        x = xs_pad[:, None, : int(ilens.max())]  # The second axis is the channel.
        x = _masked(x, ilens)
        # oneDNN and cuDNN prepare a plan for each new shape, so shapes should be few.
        x = functional.pad(x, (0, 0, 0, -x.size(2) % WIDTHS))
        # On CPU, oneDNN is faster when the channels are the innermost axis.
        x = x.contiguous(memory_format=torch.channels_last)
        for layer in self.cnn:
            x, ilens = layer(x, ilens)
        x = x[:, :, : int(ilens.max())]
        x = self.dropout(self._frames(x))
        y, ilens, _ = self.rnn(x, ilens)
        if self.shortcut is None or not self.training:
            return y, ilens, None
        direct = self.shortcut(x.transpose(1, 2)).transpose(1, 2)
        return (y, [(0, direct)]), ilens, None

    def _frames(self, x: Tensor) -> Tensor:
        """Return a frame (B, T, F) for each column of the CNN's output (B, C, T, H)."""
        if self.columns == "max":
            return x.amax(3).transpose(1, 2)
        batch, channels, columns, height = x.shape
        return x.permute(0, 2, 3, 1).reshape(batch, columns, height * channels)


class _Convolution(nn.Module):
    def __init__(
        self, inputs: int, outputs: int, stride: tuple[int, int], pool: tuple[int, int]
    ) -> None:
        super().__init__()
        # BatchNorm adds a bias, so the convolution needs none.
        self.conv = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(outputs)
        self.stride, self.pool = stride, pool

    def reduced(self, size: int, axis: int) -> int:
        """Return the size of the output along the width (axis 0) or height (axis 1)."""
        return -(-size // (self.stride[axis] * self.pool[axis]))

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        x = torch.relu(self.norm(self.conv(x)))
        lengths = _ceil_div(lengths, self.stride[0])
        x = _masked(x, lengths)
        if self.pool != (1, 1):
            # ReLU has left no value below 0, so zeros of the padding never win.
            x = functional.max_pool2d(x, self.pool, ceil_mode=True)
            lengths = _ceil_div(lengths, self.pool[0])
        return x, lengths


def _masked(x: Tensor, lengths: Tensor) -> Tensor:
    """Return x (B, C, T, H) with zeros beyond the length of each line in the batch."""
    t = torch.arange(x.size(2), device=x.device)
    return x * (t < lengths[:, None])[:, None, :, None]


def _ceil_div(lengths: Tensor, step: int) -> Tensor:
    return torch.div(lengths + step - 1, step, rounding_mode="floor")

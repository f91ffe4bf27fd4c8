"""ESPnet's RNN encoder, computed on padded batches: the same function, faster on CPU.

Stock `RNNEncoder` packs its input. On CPU the backward pass of a packed LSTM costs
several times the padded one. Here each layer and direction runs as one unidirectional
LSTM over a padded batch; the backward direction reads each sequence reversed within
its own length, so that it never starts in the padding. Sequences of similar lengths go
together, a few at a time: that costs no more than all at once, and leaves less padding.
Parameters, their names and the results are those of the stock encoder (to float
rounding), so a checkpoint is exchangeable both ways, and decodes in stock ESPnet.

In IBM's shape (`use_projection: false`): N bidirectional layers, then a bottleneck
before the output layer. The stock encoder passes the bottleneck through a tanh; so does
this one. With `use_projection: true` each layer has a projection; the last is linear.
"""

from typing import Any

import torch
from espnet2.asr.encoder.rnn_encoder import RNNEncoder
from torch import Tensor, nn
from torch.nn import functional

GROUP = 8
"""Sequences that are padded to one length: fewer make smaller, slower products."""


def reversal_index(lengths: Tensor, frames: int) -> Tensor:
    """Return (T * B,) rows of (T, B, F) that reverse each sequence within its length.

    Rows beyond the length point at themselves. Applying them twice is the identity.

    Example:
        >>> reversal_index(torch.tensor([3, 1]), 3).view(3, 2).tolist()
        [[4, 1], [2, 3], [0, 5]]
    """
    t = torch.arange(frames, device=lengths.device)[:, None]
    last = lengths - 1
    source = torch.where(t <= last, last - t, t)
    batch = len(lengths)
    return (source * batch + torch.arange(batch, device=lengths.device)).flatten()


class _Reversal(torch.autograd.Function):
    """Reordering by a reversal index, which is its own inverse: so is the gradient.

    Autograd of a gather adds the gradient up row by row: several times as slow.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor) -> Tensor:
        ctx.save_for_backward(index)
        return x.flatten(0, 1).index_select(0, index).view(x.shape)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _reorder(gradient, *ctx.saved_tensors), None


def _reorder(x: Tensor, index: Tensor) -> Tensor:
    reordered: Tensor = _Reversal.apply(x, index)
    return reordered


def padded_lstm(lstm: nn.LSTM, x: Tensor, lengths: Tensor, training: bool) -> Tensor:
    """Run a stock (bidirectional, multi-layer) LSTM over a padded batch, time first.

    Time first is how oneDNN computes; batch first, it would copy each layer's input.
    A step costs little more than its matrix products (`benchmarks/blstm.py`).

    Args:
        lstm: LSTM without projection.
        x: (T, B, F), T >= lengths.max().
        lengths: (B,), on x's device.
        training: apply the module's dropout between layers.

    Returns:
        (T, B, H * directions); beyond each length it means nothing, and neither
        direction carries it back into the sequence.
    """
    index = reversal_index(lengths, x.size(0))
    for layer in range(lstm.num_layers):
        y = _run(lstm, x, f"l{layer}")
        if lstm.bidirectional:
            backward = _run(lstm, _reorder(x, index), f"l{layer}_reverse")
            y = torch.cat([y, _reorder(backward, index)], -1)
        if lstm.dropout and layer < lstm.num_layers - 1:
            y = functional.dropout(y, lstm.dropout, training)
        x = y
    return x


def _run(lstm: nn.LSTM, x: Tensor, suffix: str) -> Tensor:
    """Run one layer in one direction over (T, B, F)."""
    names = ["weight_ih", "weight_hh"] + (["bias_ih", "bias_hh"] if lstm.bias else [])
    weights = [getattr(lstm, f"{name}_{suffix}") for name in names]
    zeros = x.new_zeros(1, x.size(1), lstm.hidden_size)
    output: Tensor = torch._VF.lstm(
        x, (zeros, zeros), weights, lstm.bias, 1, 0.0, False, False, False
    )[0]
    return output


class PaddedRNNEncoder(RNNEncoder):
    """Drop-in for `espnet2.asr.encoder.rnn_encoder.RNNEncoder` (`encoder: rnn`).

    The padded path is taken for LSTMs on CPU; elsewhere, and when states are carried
    over (streaming), the stock path is.
    """

    def forward(
        self, xs_pad: Tensor, ilens: Tensor, prev_states: Tensor | None = None
    ) -> tuple[Tensor, Tensor, list[None]]:
        """Encode (B, T, F) of lengths (B,) into (B, T', D), lengths (B,), no states."""
        if xs_pad.is_cuda or prev_states is not None or self.rnn_type != "lstm":
            return super().forward(xs_pad, ilens, prev_states)  # type: ignore[no-any-return]
        order = ilens.argsort(descending=True)
        groups = [self._encode(xs_pad[g], ilens[g]) for g in order.split(GROUP)]
        encoded, lengths = zip(*groups, strict=True)
        frames = encoded[0].size(1)  # of the longest
        padded = [functional.pad(y, (0, 0, 0, frames - y.size(1))) for y in encoded]
        back = order.argsort()
        y = torch.cat(padded).index_select(0, back)
        return y, torch.cat(lengths)[back], [None] * len(self.enc)

    def _encode(self, xs_pad: Tensor, ilens: Tensor) -> tuple[Tensor, Tensor]:
        """Encode (B, T, F) of lengths (B,) into (B, T', D) of lengths (B,)."""
        x = xs_pad[:, : int(ilens.max())].transpose(0, 1).contiguous()
        run = self._run_projected if self.use_projection else self._run_plain
        for module in self.enc:
            x, ilens = run(module, x, ilens)
        mask = torch.arange(x.size(0))[:, None] < ilens
        return (x * mask[..., None]).transpose(0, 1), ilens

    def _run_plain(self, rnn: Any, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        y = padded_lstm(rnn.nbrnn, x, lengths, self.training)
        return torch.tanh(rnn.l_last(y)), lengths

    def _run_projected(
        self, rnn: Any, x: Tensor, lengths: Tensor
    ) -> tuple[Tensor, Tensor]:
        prefix = "birnn" if rnn.bidir else "rnn"
        for layer in range(rnn.elayers):
            lstm = getattr(rnn, f"{prefix}{layer}")
            y = padded_lstm(lstm, x, lengths, self.training)
            step = int(rnn.subsample[layer + 1])
            if step > 1:
                y, lengths = y[::step], (lengths + 1) // step
                y = y[: int(lengths.max())]
            x = getattr(rnn, f"bt{layer}")(y)
            if layer < rnn.elayers - 1:
                # stock ESPnet drops units in evaluation too; kept, to be the same model
                x = torch.tanh(functional.dropout(x, rnn.dropout))
        return x, lengths


def pad_rnn_encoders(model: nn.Module) -> None:
    """Turn every stock `RNNEncoder` inside `model` into a `PaddedRNNEncoder`.

    Changes only how they are computed: parameters and configuration stay stock.
    """
    for module in model.modules():
        if type(module) is RNNEncoder:
            module.__class__ = PaddedRNNEncoder

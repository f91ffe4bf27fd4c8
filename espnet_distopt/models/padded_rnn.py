"""ESPnet's RNN encoder, computed on padded batches: the same function, faster on CPU.

Stock `RNNEncoder` packs its input. On CPU the backward pass of a packed LSTM costs
several times the padded one. Here each layer and direction runs as one unidirectional
LSTM over the padded batch; the backward direction reads each sequence reversed within
its own length, so that it never starts in the padding. Parameters, their names and the
results are those of the stock encoder (to float rounding), so a checkpoint is
exchangeable both ways, and decodes in stock ESPnet.

In IBM's shape (`use_projection: false`): N bidirectional layers, then a bottleneck
before the output layer. The stock encoder passes the bottleneck through a tanh; so does
this one. With `use_projection: true` each layer has a projection; the last is linear.
"""

from typing import Any

import torch
from espnet2.asr.encoder.rnn_encoder import RNNEncoder
from torch import Tensor, nn
from torch.nn import functional


def reversal_index(lengths: Tensor, frames: int) -> Tensor:
    """Return (B, T) indices that reverse each sequence within its length.

    Indices beyond the length point at themselves. Applying them twice is the identity.

    Example:
        >>> reversal_index(torch.tensor([3, 1]), 3).tolist()
        [[2, 1, 0], [0, 1, 2]]
    """
    t = torch.arange(frames, device=lengths.device)[None]
    last = lengths[:, None] - 1
    return torch.where(t <= last, last - t, t)


def _reorder(x: Tensor, index: Tensor) -> Tensor:
    return x.gather(1, index[..., None].expand(-1, -1, x.size(2)))


def padded_lstm(lstm: nn.LSTM, x: Tensor, lengths: Tensor, training: bool) -> Tensor:
    """Run a stock (bidirectional, multi-layer) LSTM over a padded batch.

    Args:
        lstm: `batch_first` LSTM without projection.
        x: (B, T, F), T >= lengths.max().
        lengths: (B,), on x's device.
        training: apply the module's dropout between layers.

    Returns:
        (B, T, H * directions), zero beyond each length.
    """
    index = reversal_index(lengths, x.size(1))
    mask = torch.arange(x.size(1), device=x.device)[None] < lengths[:, None]
    for layer in range(lstm.num_layers):
        outputs = [_run(lstm, x, f"l{layer}")]
        if lstm.bidirectional:
            reversed_output = _run(lstm, _reorder(x, index), f"l{layer}_reverse")
            outputs.append(_reorder(reversed_output, index))
        x = torch.cat(outputs, -1) * mask[..., None]
        if lstm.dropout and layer < lstm.num_layers - 1:
            x = functional.dropout(x, lstm.dropout, training)
    return x


def _run(lstm: nn.LSTM, x: Tensor, suffix: str) -> Tensor:
    """Run one layer in one direction over (B, T, F)."""
    names = ["weight_ih", "weight_hh"] + (["bias_ih", "bias_hh"] if lstm.bias else [])
    weights = [getattr(lstm, f"{name}_{suffix}") for name in names]
    zeros = x.new_zeros(1, x.size(0), lstm.hidden_size)
    output: Tensor = torch._VF.lstm(
        x, (zeros, zeros), weights, lstm.bias, 1, 0.0, False, False, True
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
        xs_pad = xs_pad[:, : int(ilens.max())]
        run = self._run_projected if self.use_projection else self._run_plain
        for module in self.enc:
            xs_pad, ilens = run(module, xs_pad, ilens)
        mask = torch.arange(xs_pad.size(1))[None] < ilens[:, None]
        return xs_pad * mask[..., None], ilens, [None] * len(self.enc)

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
                y, lengths = y[:, ::step], (lengths + 1) // step
                y = y[:, : int(lengths.max())]
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

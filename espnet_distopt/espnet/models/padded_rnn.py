"""The module computes ESPnet's RNN encoder on padded batches, which is faster on CPU.

ESPnet's own `RNNEncoder` packs its input, and on CPU the backward pass of a packed LSTM
takes several times as long as that of a padded one. Here each layer and direction runs
as one unidirectional LSTM over a padded batch. The backward direction reads each
sequence reversed within its own length, so it never starts in the padding. A batch is
split into groups of sequences with similar lengths; this leaves less padding and takes
no longer than the whole batch at once.

The parameters, their names and (up to rounding) the results are those of ESPnet's
encoder, so each encoder loads the other's checkpoints.

With `use_projection: false` the encoder has N bidirectional layers and a bottleneck in
front of the output layer, as IBM's Switchboard models do. The bottleneck passes through
a tanh, as it does in ESPnet. With `use_projection: true` a projection follows each
layer; the last projection is linear.
"""

from typing import Any

import torch
from espnet2.asr.encoder.rnn_encoder import RNNEncoder
from torch import Tensor, nn
from torch.nn import functional

from espnet_distopt.core.plain import fall_back, is_plain

GROUP = 8
"""The number of sequences that are padded to one length.

With fewer sequences there is less padding, but the matrix products become smaller and
therefore slower per frame.
"""


def reversal_index(lengths: Tensor, frames: int) -> Tensor:
    """Return an index that reverses each sequence of a batch within its own length.

    The index has shape (T * B,) and holds rows of a batch (T, B, F) that is flattened
    to (T * B, F). A row beyond the length of its sequence stays where it is. Applying
    the index twice gives the batch back.

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
    """The reordering of a batch by a reversal index.

    The index is its own inverse, so the gradient is reordered by the same index.
    Autograd does not know this: for a gather it adds gradients up row by row, which is
    several times as slow.
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
    """Run a PyTorch LSTM of any depth, in one or both directions, over a padded batch.

    Time is the first axis, because oneDNN computes so: if the batch were first, it
    would copy each layer's input. A step takes little longer than its matrix products.

    Args:
        lstm: an LSTM without projection.
        x: the batch, shape (T, B, F), where T >= lengths.max().
        lengths: the frames of each sequence, shape (B,), on x's device.
        training: whether the LSTM's dropout is applied between its layers.

    Returns:
        The output, shape (T, B, H * directions), arbitrary beyond a sequence's length.
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
    """Run one layer in one direction over a batch (T, B, F)."""
    names = ["weight_ih", "weight_hh"] + (["bias_ih", "bias_hh"] if lstm.bias else [])
    weights = [getattr(lstm, f"{name}_{suffix}") for name in names]
    zeros = x.new_zeros(1, x.size(1), lstm.hidden_size)
    output: Tensor = torch.lstm(
        x, (zeros, zeros), weights, lstm.bias, 1, 0.0, False, False, False
    )[0]
    return output


class PaddedRNNEncoder(RNNEncoder):
    """A drop-in replacement for ESPnet's `RNNEncoder` (`encoder: rnn`).

    It computes LSTMs on CPU over padded batches. On GPU, for other recurrent layers,
    and when states are carried over (streaming), it leaves the work to ESPnet's code.
    """

    def forward(
        self, xs_pad: Tensor, ilens: Tensor, prev_states: Tensor | None = None
    ) -> tuple[Tensor, Tensor, list[None]]:
        """Encode a batch (B, T, F) of lengths (B,).

        Returns:
            The output (B, T', D), its lengths (B,), and None for each layer's states.
        """
        if xs_pad.is_cuda or prev_states is not None or self.rnn_type != "lstm":
            return super().forward(xs_pad, ilens, prev_states)  # type: ignore[no-any-return]
        order = ilens.argsort(descending=True)
        groups = [self._encode(xs_pad[g], ilens[g]) for g in order.split(GROUP)]
        encoded, lengths = zip(*groups, strict=True)
        frames = encoded[0].size(1)  # The first group has the longest sequence.
        padded = [functional.pad(y, (0, 0, 0, frames - y.size(1))) for y in encoded]
        back = order.argsort()
        y = torch.cat(padded).index_select(0, back)
        return y, torch.cat(lengths)[back], [None] * len(self.enc)

    def _encode(self, xs_pad: Tensor, ilens: Tensor) -> tuple[Tensor, Tensor]:
        """Encode one group (B, T, F) of lengths (B,) into (B, T', D) and lengths."""
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
                # ESPnet applies this dropout in evaluation too. This encoder must be
                # the same function, so it does the same.
                x = torch.tanh(functional.dropout(x, rnn.dropout))
        return x, lengths


class FullLength(nn.Module):
    """What encodes batches whose sequences all have the same length, on a GPU.

    Packing, for which ESPnet's encoder waits for the GPU, would change nothing there.
    The layers are those of an encoder that `stacks_lstms`, and so are the results, up
    to rounding.
    """

    def __init__(self, encoder: RNNEncoder) -> None:
        super().__init__()
        self.enc = encoder.enc

    def forward(self, x: Tensor) -> Tensor:
        """Encode a batch (B, T, F) into (B, T, D)."""
        for each in self.enc:
            x = torch.tanh(each.l_last(each.nbrnn(x)[0]))
        return x


def stacks_lstms(encoder: Any) -> bool:
    """Return whether an encoder is ESPnet's stack of LSTMs, without dropout."""
    return (
        isinstance(encoder, RNNEncoder)
        and encoder.rnn_type == "lstm"
        and not encoder.use_projection
        and _is_known(encoder)
        and not any(each.nbrnn.dropout for each in encoder.enc)
    )


def pad_rnn_encoders(model: nn.Module, any_order: bool = False) -> None:
    """Turn every `RNNEncoder` of ESPnet inside `model` into a `PaddedRNNEncoder`.

    This changes only the computation; parameters and configuration stay the same. An
    encoder that is not as it is expected stays ESPnet's own, and so do all if
    DISTOPT_PLAIN is 1. With batches in `any_order`, not sorted by length, ESPnet's own
    would not do; then DISTOPT_PLAIN changes nothing.
    """
    if is_plain() and not any_order:
        return
    for module in model.modules():
        if type(module) is not RNNEncoder:
            continue
        if _is_known(module):
            module.__class__ = PaddedRNNEncoder
        else:
            fall_back("ESPnet's RNN encoder", "its layers have other names")


def _is_known(encoder: RNNEncoder) -> bool:
    """Return whether an encoder has all that `PaddedRNNEncoder` computes with."""
    try:
        if encoder.rnn_type != "lstm":
            return True  # ESPnet's code computes it.
        if not encoder.use_projection:
            return all(
                isinstance(each.nbrnn, nn.LSTM) and isinstance(each.l_last, nn.Linear)
                for each in encoder.enc
            )
        return all(
            isinstance(getattr(each, f"{'bi' * each.bidir}rnn{layer}"), nn.LSTM)
            and isinstance(getattr(each, f"bt{layer}"), nn.Linear)
            and int(each.subsample[layer + 1]) > 0
            and each.dropout >= 0
            for each in encoder.enc
            for layer in range(each.elayers)
        )
    except (AttributeError, IndexError, TypeError, ValueError):
        return False

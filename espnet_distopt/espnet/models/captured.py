"""A loss and its gradients as CUDA graphs, which one launch each replays.

A step of a BLSTM on a GPU is some 1,500 short kernels, and in eager mode the processor
takes longer to launch them than the GPU to run them. Captured once as a graph, they run
back to back. The kernels are the same, so the results are.

A graph has fixed addresses and shapes. So a batch is copied into the graph's own input,
and a smaller one is filled up with sequences whose labels do not count. If the shape is
another one, or the parameters have moved, the graph is captured anew.
"""

import copy
import logging
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

IGNORED = -1
"""The label of frames that do not count in the loss. ESPnet pads labels by it, too."""

WARM_UP = 3
"""Passes before a capture, in which libraries allocate and choose their kernels."""

CAPTURES = 8
"""How often a graph is captured before steps stay eager: each takes half a second."""


@dataclass(frozen=True)
class _Graphs:
    """A captured forward and backward pass, and the tensors that they read and write.

    `key` is what they were captured for. The forward pass computes the outputs (a loss
    and figures) of `x` and `labels`. The backward pass starts from `gradient`, that of
    the loss, and computes the gradients, which the next forward pass may overwrite.
    """

    key: tuple[Any, ...]
    x: Tensor
    labels: Tensor
    forward: torch.cuda.CUDAGraph
    outputs: tuple[Tensor, ...]
    backward: torch.cuda.CUDAGraph
    gradient: Tensor
    gradients: tuple[Tensor, ...]


class CapturedLoss:
    """Computes a loss by CUDA graphs, or eagerly where that cannot be.

    It captures at the first call with a gradient, and then again for a larger batch. A
    capture takes half a second, and as much memory as the activations of a batch. If it
    fails, a line in the log says so, and all steps are eager.

    Args:
        loss: Returns, of features (B, T, D) and labels (B, T), a loss, and figures
            without a gradient. It neither draws random numbers nor waits for the GPU,
            and all its parameters have a gradient.
    """

    def __init__(self, loss: nn.Module) -> None:
        self._loss, self._parameters = loss, tuple(loss.parameters())
        self._graphs: _Graphs | None = None
        self._captures = 0

    def __call__(self, x: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
        """Return the loss and the figures of features (B, T, D) and labels (B, T)."""
        if not (x.is_cuda and torch.is_grad_enabled()):
            return self._eagerly(x, labels)
        graphs = self._graphs
        if graphs is None or graphs.key != self._key(x) or len(graphs.x) < len(x):
            graphs = self._captured(x, labels)
        if graphs is None:
            return self._eagerly(x, labels)
        graphs.x[: len(x)].copy_(x)
        graphs.labels[: len(x)].copy_(labels)
        graphs.labels[len(x) :].fill_(IGNORED)
        results: tuple[Tensor, ...] = _Replay.apply(graphs, *self._parameters)
        return results

    def _eagerly(self, x: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
        results: tuple[Tensor, ...] = self._loss(x, labels)
        return results

    def _key(self, x: Tensor) -> tuple[Any, ...]:
        """Return all that a graph is captured for, but the number of sequences."""
        casts = torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda")
        return (x.shape[1:], x.dtype, casts, *(p.data_ptr() for p in self._parameters))

    def _captured(self, x: Tensor, labels: Tensor) -> _Graphs | None:
        """Capture graphs for batches as large as this one; None if that cannot be."""
        self._graphs = None  # Its memory is free for the next one.
        if self._captures == CAPTURES or not all(
            p.requires_grad and p.is_cuda for p in self._parameters
        ):
            return None
        self._captures += 1
        try:
            self._graphs = _capture(self._loss, x, labels, self._key(x))
        except RuntimeError as error:
            self._captures = CAPTURES
            line = str(error).strip().splitlines()[0]
            logging.warning(f"steps are not captured as CUDA graphs, but eager: {line}")
            return None
        sizes = " x ".join(str(size) for size in x.shape)
        logging.info(f"steps are captured as CUDA graphs, for batches of {sizes}")
        if self._captures == CAPTURES:
            logging.warning(
                f"batches have changed {CAPTURES} times: not captured again"
            )
        return self._graphs


def _twin(loss: nn.Module) -> nn.Module:
    """Return a copy of a module that reads the module's own memory by other parameters.

    Whoever holds the autograd graph of an earlier step, as DDP does, holds nodes that
    accumulate the parameters' own gradients on the stream of that step, where nothing
    can be captured. (`functional_call` would not do: an LSTM that finds other tensors
    in its parameters' place copies them into memory of their own for cuDNN.)
    """
    memo = {id(b): b for b in loss.buffers()}
    memo |= {id(p): nn.Parameter(p.detach()) for p in loss.parameters()}
    return copy.deepcopy(loss, memo)


def _capture(
    loss: nn.Module, x: Tensor, labels: Tensor, key: tuple[Any, ...]
) -> _Graphs:
    """Capture a loss and its gradients on a batch like this one."""
    loss = _twin(loss)
    parameters = tuple(loss.parameters())
    x, labels = x.detach().clone(), labels.clone()
    casts, dtype = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")

    def outputs() -> tuple[Tensor, ...]:
        # What is cast once outside the graph would not be cast again by a replay.
        with torch.autocast("cuda", dtype, casts, cache_enabled=False):
            results: tuple[Tensor, ...] = loss(x, labels)
            return results

    stream = torch.cuda.Stream()

    def capturing(graph: torch.cuda.CUDAGraph, pool: Any) -> torch.cuda.graph:
        # Other threads (of gossip, of data loaders) may go on meanwhile.
        return torch.cuda.graph(graph, pool, stream, capture_error_mode="thread_local")

    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UP):
            torch.autograd.grad(outputs()[0], parameters)
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    forward, backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with capturing(forward, None):
        found = outputs()
    gradient = torch.ones_like(found[0])
    with capturing(backward, forward.pool()):
        gradients = torch.autograd.grad(found[0], parameters, gradient)
    # Without the autograd graph: that would keep its nodes on the capture's stream.
    results = tuple(each.detach() for each in found)
    return _Graphs(key, x, labels, forward, results, backward, gradient, gradients)


class _Replay(torch.autograd.Function):
    """Replays the graphs: the first one forward, the second one backward."""

    @staticmethod
    def forward(ctx: Any, graphs: _Graphs, *parameters: Tensor) -> tuple[Tensor, ...]:
        ctx.graphs = graphs
        for parameter, own in zip(parameters, graphs.gradients, strict=True):
            # Autograd has taken the graph's own tensor for the parameter's gradient.
            # It is to add to that, whose memory a replay writes, forward ones too.
            held = parameter.grad
            if held is not None and held.data_ptr() == own.data_ptr():
                parameter.grad = held.clone()
        graphs.forward.replay()
        outputs = tuple(each.clone() for each in graphs.outputs)
        ctx.mark_non_differentiable(*outputs[1:])
        return outputs

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        graphs: _Graphs = ctx.graphs
        graphs.gradient.copy_(gradient)
        graphs.backward.replay()
        return None, *(each.detach() for each in graphs.gradients)

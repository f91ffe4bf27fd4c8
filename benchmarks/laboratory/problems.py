"""The problems of the laboratory: models of which many are computed at once.

A model is a row of a matrix (n, P). Its parameter tensors lie side by side in the order
of the module's in `convergence.stream_problems`. So a training here begins at the same
model as one of the simulation, and sees the same samples.
"""

import itertools
from collections.abc import Callable, Sequence

import torch
from convergence.stream_problems import Samples, StreamProblem
from torch import Tensor, nn

Shapes = Sequence[tuple[int, ...]]


def cut(x: Tensor, shapes: Shapes) -> list[Tensor]:
    """Return the parameter tensors (n, ...) of n models (n, P), as views of them."""
    sizes = [torch.Size(shape).numel() for shape in shapes]
    parts = zip(torch.split(x, sizes, 1), shapes, strict=True)
    return [torch.unflatten(part, 1, shape) for part, shape in parts]


class Perceptron:
    """Linear layers with tanh between them, and cross-entropy.

    Attributes:
        shapes: the shapes of the parameter tensors: weights and bias of each layer.

    Args:
        sizes: the number of inputs, of the units of each hidden layer, and of classes.
    """

    def __init__(self, *sizes: int) -> None:
        self.shapes: list[tuple[int, ...]] = []
        for inputs, outputs in itertools.pairwise(sizes):
            self.shapes += [(outputs, inputs), (outputs,)]

    def _layers(self, x: Tensor) -> list[tuple[Tensor, Tensor]]:
        tensors = cut(x, self.shapes)
        return list(zip(tensors[::2], tensors[1::2], strict=True))

    def _forward(self, x: Tensor, inputs: Tensor) -> tuple[list[Tensor], Tensor]:
        """Return what enters each layer, and the logarithms of the probabilities."""
        entering: list[Tensor] = []
        layer = inputs
        for weight, bias in self._layers(x):
            entering.append(layer.tanh() if entering else layer)
            layer = torch.baddbmm(bias[:, None], entering[-1], weight.mT)
        return entering, layer.log_softmax(2)

    def loss(self, x: Tensor, samples: Samples) -> Tensor:
        """Return the mean loss (n,) of n models (n, P), each over its own samples."""
        inputs, labels = samples
        _, scores = self._forward(x, inputs.flatten(2))
        return -scores.gather(2, labels[..., None]).mean((1, 2))

    def gradients(self, x: Tensor, samples: Samples, out: Tensor) -> Tensor:
        """Return the losses (n,) of n models, and write their gradients to `out`.

        Args:
            x: the models (n, P).
            samples: those of each model, (n, b, ...).
            out: a tensor (n, P).
        """
        inputs, labels = samples
        entering, scores = self._forward(x, inputs.flatten(2))
        losses = -scores.gather(2, labels[..., None]).mean((1, 2))
        # The gradient with respect to the scores, and then to what enters each layer.
        back = (scores.exp() - nn.functional.one_hot(labels, scores.shape[2])).div_(
            labels.shape[1]
        )
        layers = zip(self._layers(x), self._layers(out), entering, strict=True)
        for number, ((weight, _), into, layer) in reversed(list(enumerate(layers))):
            torch.bmm(back.mT, layer, out=into[0])
            torch.sum(back, 1, out=into[1])
            if number > 0:
                back = torch.bmm(back, weight).mul_(1 - layer.square())
        return losses


class Streamed:
    """A stream of `convergence.stream_problems`, whose models are computed at once.

    Args:
        model: the model, batched.
        stream: function that returns the stream of a seed.
    """

    def __init__(
        self, model: Perceptron, stream: Callable[[int], StreamProblem]
    ) -> None:
        self.shapes = model.shapes
        self.gradients = model.gradients
        self._model, self._stream = model, stream

    def start(self, seed: int) -> Tensor:
        """Return the model (P,) at which a training begins."""
        module, _ = self._stream(seed).replica(0, 1)
        return nn.utils.parameters_to_vector(module.parameters()).detach()

    def samples(self, seed: int, first: int, count: int) -> Samples:
        """Return samples of a training, from number `first` on."""
        return self._stream(seed).read(first, count)

    def held_out_loss(self, x: Tensor) -> Tensor:
        """Return the loss of n models (n, P) over the samples held out, (n,)."""
        samples = tuple(each[None] for each in self._stream(0).held_out)
        return torch.cat([self._model.loss(row[None], samples) for row in x])

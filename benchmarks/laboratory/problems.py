"""The problems of the laboratory: models of which many are computed at once.

A model is a row of a matrix (n, P). Its parameter tensors lie side by side in the order
of the module's in `convergence.stream_problems`. So a training here begins at the same
model as one of the simulation, and sees the same samples.

Models are computed one after another by functions that Numba compiles: with batches of
a few samples that is twice as fast as batched products, because a model that is in the
processor's cache stays there until its gradient is complete.
"""

import itertools
from collections.abc import Callable

import numba
import numpy as np
from convergence.stream_problems import Samples, StreamProblem
from torch import Tensor, nn

from laboratory.kernels import Matrix, Numbers, Vector, arrays

compiled = numba.njit(
    cache=True, error_model="numpy", fastmath={"contract", "nsz", "reassoc"}
)
"""Sums may be in any order, as in a library's products."""


@compiled
def linear(weight: Matrix, bias: Vector, x: Matrix) -> Matrix:
    """Return x weight^T + bias (n, O); weight is (O, I) and x (n, I).

    Four samples share each element of the weight that is read.
    """
    n, zero = len(x), weight.dtype.type(0)
    out = np.empty((n, len(weight)), weight.dtype)
    for s in range(0, n - 3, 4):
        x0, x1, x2, x3 = x[s], x[s + 1], x[s + 2], x[s + 3]
        for o in range(len(weight)):
            row = weight[o]
            y0 = y1 = y2 = y3 = zero
            for i in range(len(row)):
                y0 += row[i] * x0[i]
                y1 += row[i] * x1[i]
                y2 += row[i] * x2[i]
                y3 += row[i] * x3[i]
            out[s, o], out[s + 1, o] = y0 + bias[o], y1 + bias[o]
            out[s + 2, o], out[s + 3, o] = y2 + bias[o], y3 + bias[o]
    for s in range(n - n % 4, n):
        for o in range(len(weight)):
            row, own, y0 = weight[o], x[s], zero
            for i in range(len(row)):
                y0 += row[i] * own[i]
            out[s, o] = y0 + bias[o]
    return out


@compiled
def linear_gradients(back: Matrix, x: Matrix, weight: Matrix, bias: Vector) -> None:
    """Write back^T x to weight (O, I), and the sums of back (n, O) to bias (O,)."""
    n = len(x)
    weight[:] = 0
    bias[:] = 0
    for s in range(0, n - 3, 4):
        x0, x1, x2, x3 = x[s], x[s + 1], x[s + 2], x[s + 3]
        for o in range(len(weight)):
            row = weight[o]
            b0, b1, b2, b3 = back[s, o], back[s + 1, o], back[s + 2, o], back[s + 3, o]
            bias[o] += b0 + b1 + b2 + b3
            for i in range(len(row)):
                row[i] += b0 * x0[i] + b1 * x1[i] + b2 * x2[i] + b3 * x3[i]
    for s in range(n - n % 4, n):
        own = x[s]
        for o in range(len(weight)):
            row, b0 = weight[o], back[s, o]
            bias[o] += b0
            for i in range(len(row)):
                row[i] += b0 * own[i]


@compiled
def layers(model: Vector, sizes: Numbers) -> list[tuple[Matrix, Vector]]:
    """Return the weight (O, I) and the bias (O,) of each layer of a model (P,)."""
    found, start = [], 0
    for inputs, outputs in zip(sizes[:-1], sizes[1:]):  # noqa: B905, RUF007
        end = start + inputs * outputs
        weight = model[start:end].reshape(outputs, inputs)
        start = end + outputs
        found.append((weight, model[end:start]))
    return found


@compiled
def forward(
    model: list[tuple[Matrix, Vector]], x: Matrix, labels: Numbers
) -> tuple[list[Matrix], float]:
    """Return what enters each layer, then the probabilities, and the mean loss.

    Args:
        model: the layers of the model.
        x: the inputs (b, I).
        labels: the classes (b,).
    """
    units = [x]
    for number, (weight, bias) in enumerate(model):
        out = linear(weight, bias, units[number])
        units.append(np.tanh(out) if number < len(model) - 1 else out)
    loss = 0.0
    for s in range(len(x)):
        scores = units[-1][s]
        scores -= scores.max()
        loss -= scores[labels[s]]
        scores[:] = np.exp(scores)
        total = scores.sum()
        loss += np.log(total)
        scores /= total
    return units, loss / len(x)


@compiled
def through_tanh(back: Matrix, weight: Matrix, x: Matrix) -> Matrix:
    """Return (back weight) (1 - x^2), what back (n, O) is before a layer (n, I)."""
    found = np.zeros_like(x)
    for s in range(len(x)):
        own = found[s]
        for o in range(len(weight)):
            row, b = weight[o], back[s, o]
            for i in range(len(row)):
                own[i] += b * row[i]
        for i in range(len(own)):
            own[i] *= 1 - x[s, i] * x[s, i]
    return found


@compiled
def losses(
    models: Matrix, sizes: Numbers, x: Matrix, labels: Numbers, out: Vector
) -> None:
    """Write the mean losses (n,) of models (n, P) over the same samples."""
    for k in range(len(models)):
        _, out[k] = forward(layers(models[k], sizes), x, labels)


@compiled
def gradients(
    rows: Numbers,
    models: Matrix,
    sizes: Numbers,
    x: Matrix,
    labels: Numbers,
    into: Matrix,
    losses: Vector,
) -> None:
    """Write the gradients (n, P) and the mean losses (n,) of models.

    Args:
        rows: which of the models (n,).
        models: the models (R, P).
        sizes: the numbers of inputs, of units of each hidden layer, and of classes.
        x: the inputs of each of them (n, b, I).
        labels: the classes (n, b).
        into: where their gradients go (n, P).
        losses: where their losses go (n,).
    """
    for k, r in enumerate(rows):
        of_model, of_gradient = layers(models[r], sizes), layers(into[k], sizes)
        units, losses[k] = forward(of_model, x[k], labels[k])
        # The gradient with respect to the scores, and then to each layer's sums.
        back = units[-1]
        for s, label in enumerate(labels[k]):
            back[s, label] -= 1
        back /= len(back)
        for number in range(len(of_model) - 1, -1, -1):
            linear_gradients(back, units[number], *of_gradient[number])
            if number > 0:
                back = through_tanh(back, of_model[number][0], units[number])


class Perceptron:
    """Linear layers with tanh between them, and cross-entropy.

    Attributes:
        shapes: the shapes of the parameter tensors: weights and bias of each layer.

    Args:
        sizes: the numbers of inputs, of units of each hidden layer, and of classes.
    """

    def __init__(self, *sizes: int) -> None:
        self._sizes = np.array(sizes)
        self.shapes: list[tuple[int, ...]] = []
        for inputs, outputs in itertools.pairwise(sizes):
            self.shapes += [(outputs, inputs), (outputs,)]

    def loss(self, x: Tensor, samples: Samples) -> Tensor:
        """Return the mean losses (n,) of models (n, P) over the same samples."""
        inputs, labels = samples
        found = x.new_empty(len(x))
        models, *read = arrays(x, inputs.flatten(1), labels, found)
        losses(models, self._sizes, *read)
        return found

    def gradients(
        self, rows: Tensor, x: Tensor, samples: Samples, out: Tensor
    ) -> Tensor:
        """Return the losses (n,) of models, and write their gradients to `out`.

        Args:
            rows: which of the models (n,).
            x: the models (R, P).
            samples: those of each of them, (n, b, ...).
            out: a tensor (n, P).
        """
        inputs, labels = samples
        found = x.new_empty(len(rows))
        numbers, models, *read = arrays(rows, x, inputs.flatten(2), labels, out, found)
        gradients(numbers, models, self._sizes, *read)
        return found


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
        return self._model.loss(x, self._stream(0).held_out)

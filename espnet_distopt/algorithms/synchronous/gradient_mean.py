"""The gradient of several learners' batches together, as one message of a collective.

    g = sum_i w_i g_i / sum_i w_i

w_i is the number of samples in learner i's batch, so that uneven batches give the
gradient of the whole batch. The message is `learner.gradient_buffer`, (P + 2 + K,) for
K parameters. Behind the P weighted gradients (`learner.grads`) come three things:

    1           1 if the learner has come to the end of its epoch, else 0
    1           the samples of its batch, w_i
    K           for each parameter, 1 if the backward pass has reached it, else 0

An algorithm that averages gradients calls `reserve` when it is built.
"""

from torch import Tensor

from espnet_distopt.algorithms.base import UnequalStepsError
from espnet_distopt.core.effects import AllReduceMean, Program, Ranks
from espnet_distopt.core.learner import Learner


def reserve(learner: Learner) -> None:
    """Ask for the room that the message needs behind `learner.grads`."""
    learner.reserve(2 + len(learner.parameters))


def average(learner: Learner, ranks: Ranks = None, ended: bool = False) -> Program:
    """Average the gradients of `ranks`, or agree that all of them have `ended`.

    Raises:
        UnequalStepsError: some learners have ended their epoch, and others have not.
    """
    mean = yield AllReduceMean(pack(learner, ended), ranks)
    unpack(learner, mean, ended)


def pack(learner: Learner, ended: bool = False) -> Tensor:
    """Fill `learner.gradient_buffer` and return it, for learners to average.

    Args:
        learner: whose gradients; they are multiplied by its samples.
        ended: the learner has no more batches in this epoch.
    """
    message, size = learner.gradient_buffer, learner.params.numel()
    used = [float(use) for use in learner.used]
    message[:size].mul_(learner.samples)
    message[size:] = message.new_tensor([float(ended), learner.samples, *used])
    return message


def unpack(learner: Learner, mean: Tensor, ended: bool = False) -> None:
    """Write the gradient of all batches to `learner.grads`, from the mean message.

    Raises:
        UnequalStepsError: some learners have ended their epoch, and others have not.
    """
    size = learner.params.numel()
    share_ended, samples, *used = mean[size:].tolist()
    if share_ended != float(ended):
        raise UnequalStepsError(learner, ended)
    if ended:
        return
    gradients = learner.gradient_buffer[:size]
    if mean is not learner.gradient_buffer:
        gradients.copy_(mean[:size])
    if samples > 0:
        gradients.div_(samples)
    learner.use_gradients([use > 0 for use in used])

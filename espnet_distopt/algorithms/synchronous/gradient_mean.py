"""The gradient of several learners' batches together, from one message of each.

    g = sum_i w_i g_i / sum_i w_i

w_i is the number of samples in learner i's batch, so that batches of unequal sizes give
the gradient of the whole batch. The message is `learner.gradient_buffer`, of P + 2 + K
elements for K parameters. Behind the P weighted gradients (`learner.grads`) stand:

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
    """Average the gradients of several learners, or agree that their epoch has ended.

    Args:
        learner: this learner.
        ranks: the learners whose gradients are averaged; None means all.
        ended: whether this learner has no more batches in this epoch.

    Raises:
        UnequalStepsError: some learners have ended their epoch, and others have not.
    """
    mean = yield AllReduceMean(pack(learner, ended), ranks)
    unpack(learner, mean, ended)


def pack(learner: Learner, ended: bool = False) -> Tensor:
    """Fill `learner.gradient_buffer` and return it, for learners to average.

    Args:
        learner: the learner whose gradients are sent, times its number of samples.
        ended: whether the learner has no more batches in this epoch.
    """
    message, size = learner.gradient_buffer, learner.params.numel()
    used = [float(use) for use in learner.used]
    message[:size].mul_(learner.samples)
    message[size:] = message.new_tensor([float(ended), learner.samples, *used])
    return message


def unpack(learner: Learner, mean: Tensor, ended: bool = False) -> None:
    """Write the gradient of all batches to `learner.grads` and to each `.grad`.

    Args:
        learner: this learner.
        mean: the mean of the learners' messages.
        ended: whether this learner has no more batches; the mean then has no gradient.

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

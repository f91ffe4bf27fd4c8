"""What a model holds besides the parameters that an optimizer trains."""

from torch import Tensor, nn

from espnet_distopt.effects import AllReduceMean, Broadcast, Program
from espnet_distopt.learner import Learner


def not_trained(model: nn.Module, learner: Learner) -> list[Tensor]:
    """Return buffers and frozen parameters, which must begin equal everywhere, too."""
    trained = {id(parameter) for parameter in learner.parameters}
    frozen = [p.detach() for p in model.parameters() if id(p) not in trained]
    return [*model.buffers(), *frozen]


def share_untrained(model: nn.Module, learner: Learner) -> Program:
    """Overwrite what is not trained by learner 0's."""
    for tensor in not_trained(model, learner):
        yield Broadcast(tensor)


def average_statistics(model: nn.Module) -> Program:
    """Average what BatchNorm has learnt over all learners."""
    for statistics in running_statistics(model):
        yield AllReduceMean(statistics)


def running_statistics(model: nn.Module) -> list[Tensor]:
    """Return what BatchNorm has learnt of the data, which no derivation covers.

    The consensus model, and each learner after it, gets their mean.
    """
    norms = [
        m for m in model.modules() if isinstance(m, nn.modules.batchnorm._NormBase)
    ]
    named = [s for m in norms for s in (m.running_mean, m.running_var)]
    return [statistics for statistics in named if statistics is not None]

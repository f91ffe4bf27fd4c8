"""The tensors of a model that no session trains: its buffers and frozen parameters.

Learners begin with learner 0's values of these tensors. Those that another open session
trains belong to that one, whose learners may be apart. The running statistics of
BatchNorm are averaged over the learners at each consensus.
"""

from torch import Tensor, nn

from espnet_distopt.core.changes import in_session
from espnet_distopt.core.effects import AllReduceMean, Broadcast, Program
from espnet_distopt.core.learner import Learner
from espnet_distopt.core.memory import distinct, is_dense, overlaps_itself
from espnet_distopt.errors import InputError


def named_untrained(model: nn.Module, learner: Learner) -> dict[str, Tensor]:
    """Return the buffers and frozen parameters, name -> tensor.

    Expanded dimensions are left out, so that each element stands in a tensor once.

    Raises:
        InputError: a tensor cannot be sent, because it is sparse or quantized, or
            because several of its elements have one address.
    """
    trained = {id(parameter) for parameter in learner.parameters}
    named = dict(model.named_buffers())
    for name, parameter in model.named_parameters():
        if id(parameter) not in trained and not in_session(parameter):
            named[name] = parameter.detach()
    for name, tensor in named.items():
        if not is_dense(tensor):
            kind = "quantized" if tensor.is_quantized else str(tensor.layout)
            raise InputError(
                f"'{name}', which is not trained, is {kind} and cannot be sent to the "
                "other learners: keep it outside of the model, or make it dense"
            )
        named[name] = distinct(tensor)
        if overlaps_itself(named[name]):
            raise InputError(
                f"elements of '{name}', which is not trained, share memory "
                "(as_strided?): make it of its own elements (tensor.clone())"
            )
    return named


def model_buffers(model: nn.Module, learner: Learner) -> list[Tensor]:
    """Return the buffers and frozen parameters, which must begin equal everywhere."""
    return list(named_untrained(model, learner).values())


def share_model_buffers(model: nn.Module, learner: Learner) -> Program:
    """Overwrite the buffers and frozen parameters by learner 0's."""
    for tensor in model_buffers(model, learner):
        yield Broadcast(tensor)


def average_statistics(model: nn.Module) -> Program:
    """Average the running statistics of BatchNorm over all learners."""
    for statistics in running_statistics(model):
        yield AllReduceMean(statistics)


def running_statistics(model: nn.Module) -> list[Tensor]:
    """Return the running means and variances of BatchNorm layers.

    No gradient trains them: each learner has estimated them from its own batches. The
    consensus model, and each learner after it, gets their mean over the learners. None
    of the algorithms' papers derives that rule.
    """
    norms = [
        m for m in model.modules() if isinstance(m, nn.modules.batchnorm._NormBase)
    ]
    named = [s for m in norms for s in (m.running_mean, m.running_var)]
    return [statistics for statistics in named if statistics is not None]

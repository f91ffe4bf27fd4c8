"""NCCL's failures at the start of a training, as one line that says what to do.

NCCL sets up its connections in the first collective, and what it says of a failure
there is a page. What it says later, when a learner has died, is for `watch.explain`.
"""

import logging
import re
from collections.abc import Generator
from contextlib import contextmanager

from espnet_distopt.errors import InputError, message

_ADVICE = (
    (
        r"Duplicate GPU detected.*",
        "NCCL needs a GPU for each learner: start as many learners on a machine as it "
        "has GPUs (in a loop of your own, call torch.cuda.set_device with LOCAL_RANK "
        "first), or let learners share one, to try things, by --share_gpu true or "
        "gloo (--dist_backend gloo, init_process_group('gloo'))",
    ),
    (
        r".*(?:[Nn]o GPUs found|No CUDA GPUs are available|invalid device ordinal).*",
        "NCCL needs a GPU for each learner, and PyTorch does not see it: look at "
        "nvidia-smi, CUDA_VISIBLE_DEVICES and torch.version.cuda, or train on CPUs "
        "(--ngpu 0, init_process_group('gloo'))",
    ),
    (
        r"[^\n]*(?:socket\w*Connect\b|[Cc]onnect to \S+ (?:failed|returned)"
        r"|[Nn]o (?:socket )?interface found|failed to find .*interface).*",
        "NCCL cannot connect the learners: set NCCL_SOCKET_IFNAME to the network "
        "interface by which the machines reach each other (`ip -brief address` lists "
        "them), and see that no firewall closes its ports",
    ),
)
"""What an error of NCCL's says (a line), and what to do about it."""


def advice(text: str) -> str | None:
    """Return what to do about an error of NCCL's, in one line; None if unknown.

    Args:
        text: the error's message.
    """
    for pattern, what in _ADVICE:
        if found := re.search(pattern, text):
            return f"{what}. NCCL said: {found[0].strip()}"
    return None


@contextmanager
def advised() -> Generator[None, None, None]:
    """Inside, a learner meets the others by NCCL for the first time.

    Raises:
        InputError: that has failed, and it is known what to do. NCCL's own error is its
            cause, and is in the log.
    """
    try:
        yield
    except RuntimeError as error:
        what = advice(message(error))
        if what is None:
            raise
        logging.getLogger(__name__).info(message(error))
        raise InputError(what) from error

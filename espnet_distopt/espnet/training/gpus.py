"""The GPUs of a machine, of which each learner has one."""

import os

import torch

from espnet_distopt.errors import InputError


def gpus_needed(learners: int, local_rank: int | None) -> int:
    """Return how many GPUs a machine must have.

    Args:
        learners: the number of learners on it, of which each takes the next GPU.
        local_rank: the number, from 0, of the GPU that all of them share; None: they do
            not.
    """
    return learners if local_rank is None else int(local_rank) + 1


def check_gpus(needed: int) -> None:
    """Refuse learners without a GPU, of which CUDA says that an ordinal is invalid.

    Args:
        needed: the number of GPUs that this machine must have.

    Raises:
        InputError: it has fewer.
    """
    there = torch.cuda.device_count()
    if there == 0:
        raise InputError(
            "--ngpu asks for a GPU, and PyTorch sees none. nvidia-smi says whether "
            "there is one, and python -c 'import torch; print(torch.version.cuda)' "
            "whether PyTorch was built for it; --ngpu 0 trains on the CPU"
        )
    if needed > there:
        own = ""
        if there == 1 and "SLURM_PROCID" in os.environ:
            own = "if each task of the Slurm step has a GPU of its own (srun "
            own += "--gpus-per-task=1), add --local_rank 0; if not, "
        raise InputError(
            f"{needed} learners on this machine need a GPU each, and PyTorch sees "
            f"{there}: {own}start "
            "fewer, or let all share the first, to try things, by --share_gpu true "
            "(of a recipe or `distopt launch`) or --local_rank 0 --dist_backend gloo"
        )

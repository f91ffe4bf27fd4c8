"""A machine has a GPU for each of its learners, or the training is refused."""

import pytest

from espnet_distopt.errors import InputError
from espnet_distopt.espnet.training.gpus import check_gpus


@pytest.mark.parametrize(
    ("there", "learners", "message"),
    [
        (0, 1, "PyTorch sees none"),
        (2, 3, "3 learners on this machine need a GPU each, and PyTorch sees 2"),
        (2, 2, None),
        (8, 1, None),
    ],
)
def test_learners_need_a_gpu_each(
    there: int, learners: int, message: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLURM_PROCID", raising=False)
    monkeypatch.setattr("torch.cuda.device_count", lambda: there)
    if message is None:
        check_gpus(learners)
    else:
        with pytest.raises(InputError, match=message):
            check_gpus(learners)


def test_tasks_of_slurm_that_have_a_gpu_each_need_no_gloo(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With --gpus-per-task=1 each task sees one GPU, whatever its number."""
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    monkeypatch.setenv("SLURM_PROCID", "3")
    with pytest.raises(InputError) as caught:
        check_gpus(4)
    assert (
        "has a GPU of its own (srun --gpus-per-task=1), add --local_rank 0; if not"
        in str(caught.value)
    )

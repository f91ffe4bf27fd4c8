"""Trainings of ESPnet on a GPU. Learners share it, and communicate by gloo or NCCL."""

from pathlib import Path

import pytest
import torch

from espnet_distopt.espnet.training.tasks import DistoptASRTask
from espnet_distopt.monitoring import lines
from tests.espnet.toy import arguments
from tests.espnet.training.learners import kill_at_step, read, train
from tests.espnet.training.test_training import (
    Apart,
    assert_mean_of_two,
    assert_same,
    load,
)
from tests.processes import share_a_gpu

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="this machine has no GPU"
)
ON_GPU = ["--ngpu", "1", "--local_rank", "0"]
BACKENDS = ["gloo", "nccl"]
MIXED = ["--use_amp", "true"]


class Sharing:
    """An injection: NCCL connects learners on one GPU; and another one after that."""

    def __init__(self, then: object = None) -> None:
        self.then = then

    def __call__(self, rank: int) -> None:
        share_a_gpu(rank)
        if callable(self.then):
            self.then(rank)


def gpu_options(data: Path, exp: Path, algorithm: str, *more: str) -> list[str]:
    options = arguments(data, exp, "--distopt", algorithm, *ON_GPU, *more)
    if algorithm == "bmuf_adam":
        options += ["--distopt_conf", "period=4"]
    return options


def test_one_learner_is_stock_training_bit_for_bit(data: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    plain = arguments(data, tmp_path / "plain", *ON_GPU)
    assert train(plain, 1, tmp_path / "meet", log) == [0], read(log)
    for algorithm in ("adpsgd", "bmuf_adam", "allreduce"):
        options = gpu_options(data, tmp_path / algorithm, algorithm)
        assert train(options, 1, tmp_path / f"meet.{algorithm}", log) == [0], read(log)
        assert_same(tmp_path / "plain/2epoch.pth", tmp_path / algorithm / "2epoch.pth")


def test_plain_training_equals_the_stock_entry_point(
    data: Path, tmp_path: Path
) -> None:
    from espnet2.tasks.asr import ASRTask

    found, log = [], tmp_path / "log"
    for name, task in (("ours", DistoptASRTask), ("stock", ASRTask)):
        options = arguments(data, tmp_path / name, *ON_GPU)
        codes = train(options, 1, tmp_path / f"meet.{name}", log, task=task)
        assert codes == [0], read(log)
        found.append(load(tmp_path / name / "2epoch.pth"))
    for name, tensor in found[1].items():
        # the padded encoder computes the same function in another order
        torch.testing.assert_close(found[0][name], tensor, rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
def test_two_learners_write_their_mean(
    backend: str, mixed: bool, data: Path, tmp_path: Path
) -> None:
    more = ["--dist_backend", backend, *(MIXED if mixed else [])]
    log = tmp_path / "log"
    options = gpu_options(data, tmp_path / "exp", "adpsgd", *more)
    codes = train(options, 2, tmp_path / "meet", log, Sharing(Apart()))
    assert codes == [0, 0], read(log)
    assert_mean_of_two(tmp_path / "exp", 2)
    told = lines.read(tmp_path / "exp" / "distopt" / "learner0.jsonl")
    assert any(line.gpu_memory for line in told)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("algorithm", ["allreduce", "bmuf_adam"])
def test_killed_in_an_epoch_a_synchronous_run_ends_the_same(
    algorithm: str, backend: str, data: Path, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    more = ["--dist_backend", backend]
    if algorithm == "allreduce":
        more += MIXED
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
    options = gpu_options(data, tmp_path / "whole", algorithm, *more)
    assert train(options, 2, tmp_path / "meet1", log, Sharing()) == [0, 0], read(log)
    options = gpu_options(data, tmp_path / "killed", algorithm, *more)
    codes = train(options, 2, tmp_path / "meet2", log, Sharing(kill_at_step(9)))
    assert codes == [-9, -9]
    assert train(options, 2, tmp_path / "meet3", log, Sharing()) == [0, 0], read(log)
    assert "goes on from its own state after epoch 1" in read(log)
    assert_same(tmp_path / "whole" / "2epoch.pth", tmp_path / "killed" / "2epoch.pth")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("algorithm", ["adpsgd", "bmuf_adam"])
def test_the_others_train_on_without_a_learner_that_died(
    algorithm: str, backend: str, data: Path, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    options = gpu_options(data, tmp_path, algorithm, "--dist_backend", backend)
    killing = Sharing(kill_at_step(3, victim=1))
    codes = train(options, 3, tmp_path / "meet", log, killing)
    assert codes == [0, -9, 0], read(log)
    assert all(t.isfinite().all() for t in load(tmp_path / "2epoch.pth").values())


def test_a_checkpoint_of_a_gpu_decodes_in_stock_espnet_on_a_cpu(
    data: Path, tmp_path: Path
) -> None:
    import kaldiio
    from espnet2.bin.asr_inference import Speech2Text

    log = tmp_path / "log"
    options = gpu_options(data, tmp_path / "exp", "allreduce")
    assert train(options, 2, tmp_path / "meet", log, Sharing()) == [0, 0], read(log)
    files = tmp_path / "exp/config.yaml", tmp_path / "exp/2epoch.pth"
    _, speech = next(iter(kaldiio.load_scp(str(data / "valid/wav.scp")).values()))
    for device in ("cpu", "cuda"):
        decoder = Speech2Text(*files, ctc_weight=1.0, beam_size=2, device=device)
        assert isinstance(decoder(speech)[0][0], str)

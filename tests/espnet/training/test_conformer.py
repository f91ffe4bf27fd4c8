"""Conformers with attention: several losses, BatchNorm, dropout, and SpecAug."""

import signal
from pathlib import Path

import pytest
import torch

from espnet_distopt.espnet.training.tasks import DistoptASRTask
from tests.espnet.toy import arguments, conformer
from tests.espnet.training.learners import Apart, read, train
from tests.espnet.training.test_stop import SignalAt
from tests.espnet.training.test_training import (
    assert_mean_of_two,
    assert_same,
    load,
)

ENCODERS = ["conformer", "e_branchformer"]


@pytest.mark.parametrize("encoder", ENCODERS)
def test_one_learner_is_stock_training_bit_for_bit(
    encoder: str, data: Path, tmp_path: Path
) -> None:
    from espnet2.tasks.asr import ASRTask

    ours, stock = tmp_path / "ours", tmp_path / "stock"
    model = conformer(encoder)
    ASRTask.main(cmd=arguments(data, stock, model=model))
    adpsgd = ["--distopt", "adpsgd"]
    DistoptASRTask.main(cmd=arguments(data, ours, *adpsgd, model=model))
    assert_same(stock / "2epoch.pth", ours / "2epoch.pth")


@pytest.mark.parametrize("encoder", ENCODERS)
def test_the_mean_of_two_learners_decodes_in_stock_espnet(
    encoder: str, data: Path, tmp_path: Path
) -> None:
    import kaldiio
    from espnet2.bin.asr_inference import Speech2Text

    exp, log = tmp_path / "exp", tmp_path / "log"
    options = arguments(data, exp, "--distopt", "adpsgd", model=conformer(encoder))
    assert train(options, 2, tmp_path / "meet", log, Apart()) == [0, 0], read(log)
    assert_mean_of_two(exp, 2)
    for figure in ("acc=", "loss_ctc=", "loss_att=", "cer_ctc=", "consensus_distance="):
        assert figure in read(log)
    saved = load(exp / "2epoch.pth")
    if encoder == "conformer":  # The other one has no BatchNorm.
        (name,) = (each for each in saved if each.endswith("running_mean"))
        assert saved[name].ne(0).all()
    decoder = Speech2Text(exp / "config.yaml", exp / "2epoch.pth", beam_size=2)
    _, speech = next(iter(kaldiio.load_scp(str(data / "valid/wav.scp")).values()))
    text, *_ = decoder(speech)[0]
    assert isinstance(text, str)


@pytest.mark.parametrize("algorithm", ["allreduce", "bmuf_adam"])
def test_stopped_in_an_epoch_it_ends_the_same(
    algorithm: str, data: Path, tmp_path: Path
) -> None:
    more = ["--distopt", algorithm]
    more += ["--distopt_conf", "period=3"] if algorithm == "bmuf_adam" else []
    log = tmp_path / "log"
    whole, stopped = (
        arguments(data, tmp_path / name, *more, model=conformer())
        for name in ("whole", "stopped")
    )
    assert train(whole, 2, tmp_path / "meet1", log) == [0, 0], read(log)
    stop = SignalAt(8, 1, signal.SIGUSR1)  # 6 steps make an epoch.
    codes = train(stopped, 2, tmp_path / "meet2", log, stop)
    assert codes == [75, 75], read(log)
    assert not (tmp_path / "stopped/2epoch.pth").exists()
    assert train(stopped, 2, tmp_path / "meet3", log) == [0, 0], read(log)
    assert_same(tmp_path / "whole/2epoch.pth", tmp_path / "stopped/2epoch.pth")
    statistics = load(tmp_path / "whole/2epoch.pth")
    assert any("running_var" in name for name in statistics)
    assert all(torch.isfinite(each).all() for each in statistics.values())

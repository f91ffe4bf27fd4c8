"""Trainings of one and of several learners, through ESPnet's own loop."""

import json
from pathlib import Path

import pytest
import torch

from espnet_distopt.algorithms import ALGORITHMS
from espnet_distopt.espnet.training.saving import load_learner
from espnet_distopt.espnet.training.tasks import DistoptASRTask
from tests.espnet.toy import arguments
from tests.espnet.training.learners import Apart, NanLoss, kill_at_step, read, train
from tests.virtual import STEPS_ALONE


def load(path: Path) -> dict[str, torch.Tensor]:
    """Load a model to the CPU, where the learners' own states are, too."""
    return torch.load(path, map_location="cpu", weights_only=True)


def assert_same(one: Path, other: Path) -> None:
    left, right = load(one), load(other)
    assert left.keys() == right.keys()
    for name, tensor in left.items():
        assert torch.equal(tensor, right[name]), name


def assert_mean_of_two(exp: Path, epoch: int) -> None:
    """The saved model is the mean of two learners, which differ."""
    own = []
    for rank in (0, 1):
        state = load_learner(exp, rank, epoch)
        assert state is not None
        own.append(state["session"]["learner"]["params"])
    assert not torch.equal(own[0], own[1])
    saved = load(exp / f"{epoch}epoch.pth")
    names = trained_names(exp)
    flat = torch.cat([saved[name].flatten() for name in names])
    torch.testing.assert_close(flat, (own[0] + own[1]) / 2, rtol=0, atol=1e-7)


def trained_names(exp: Path) -> list[str]:
    """Return the names of the parameters in the order of the model."""
    from espnet2.tasks.asr import ASRTask

    model, _ = ASRTask.build_model_from_file(exp / "config.yaml")
    return [name for name, _ in model.named_parameters()]


@pytest.fixture(scope="module")
def plain(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("none")
    DistoptASRTask.main(cmd=arguments(data, output))
    return output


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS.keys() - STEPS_ALONE))
def test_one_learner_is_stock_training_bit_for_bit(
    algorithm: str, data: Path, plain: Path, tmp_path: Path
) -> None:
    DistoptASRTask.main(cmd=arguments(data, tmp_path, "--distopt", algorithm))
    assert_same(plain / "2epoch.pth", tmp_path / "2epoch.pth")


def test_plain_training_equals_the_stock_entry_point(
    data: Path, plain: Path, tmp_path: Path
) -> None:
    from espnet2.tasks.asr import ASRTask

    ASRTask.main(cmd=arguments(data, tmp_path))
    stock, ours = load(tmp_path / "2epoch.pth"), load(plain / "2epoch.pth")
    for name, tensor in stock.items():
        # the padded encoder computes the same function in another order
        torch.testing.assert_close(tensor, ours[name], rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize("algorithm", ["allreduce", "bmuf_adam"])
def test_killed_in_an_epoch_a_synchronous_run_ends_the_same(
    algorithm: str, data: Path, tmp_path: Path
) -> None:
    more = ["--distopt", algorithm, "--distopt_conf"]
    more += ["period=4"] if algorithm == "bmuf_adam" else ["{}"]
    more = more[:2] if algorithm == "allreduce" else more
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
    options = arguments(data, tmp_path / "whole", *more)
    log = tmp_path / "log"
    assert train(options, 2, tmp_path / "meet1", log) == [0, 0], read(log)

    options = arguments(data, tmp_path / "killed", *more)
    codes = train(options, 2, tmp_path / "meet2", log, kill_at_step(9))
    assert codes == [-9, -9]
    assert not (tmp_path / "killed" / "2epoch.pth").exists()
    assert train(options, 2, tmp_path / "meet3", log) == [0, 0], read(log)
    assert "goes on from its own state after epoch 1" in read(log)
    assert_same(tmp_path / "whole" / "2epoch.pth", tmp_path / "killed" / "2epoch.pth")


@pytest.fixture(scope="module")
def gossiped(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("adpsgd")
    log = output / "log"
    options = arguments(data, output / "exp", "--distopt", "adpsgd")
    assert train(options, 2, output / "meet", log, Apart()) == [0, 0], read(log)
    return output


def test_adpsgd_writes_stock_files_with_the_consensus_model(gossiped: Path) -> None:
    exp = gossiped / "exp"
    assert {path.name for path in exp.glob("*epoch.pth")} == {
        "1epoch.pth",
        "2epoch.pth",
    }
    assert_mean_of_two(exp, 2)
    summary = json.loads((exp / "distopt" / "summary.json").read_text())
    assert (summary["learners"], summary["epochs"]) == (2, 2)
    assert summary["samples"] == 48


def test_adpsgd_reports_its_figures_in_espnets_log(gossiped: Path) -> None:
    log = read(gossiped / "log")
    for figure in ("comm_time=", "staleness=", "exchanges=", "consensus_distance="):
        assert figure in log


def test_adpsgd_resumes_from_the_saved_learners(
    data: Path, gossiped: Path, tmp_path: Path
) -> None:
    exp = gossiped / "exp"
    options = arguments(data, exp, "--distopt", "adpsgd", "--max_epoch", "3")
    log = tmp_path / "log"
    assert train(options, 2, tmp_path / "meet", log) == [0, 0], read(log)
    assert read(log).count("goes on from its own state after epoch 2") >= 1
    assert not (exp / "distopt" / "learner0.1epoch.pth").exists()
    assert (exp / "3epoch.pth").exists()


def test_a_checkpoint_loads_and_decodes_in_stock_espnet(
    gossiped: Path, data: Path
) -> None:
    import kaldiio
    from espnet2.bin.asr_inference import Speech2Text
    from espnet2.tasks.asr import ASRTask

    exp = gossiped / "exp"
    model, _ = ASRTask.build_model_from_file(exp / "config.yaml", exp / "2epoch.pth")
    assert type(model.encoder).__module__ == "espnet2.asr.encoder.rnn_encoder"
    decoder = Speech2Text(
        exp / "config.yaml", exp / "2epoch.pth", ctc_weight=1.0, beam_size=2
    )
    _, speech = next(iter(kaldiio.load_scp(str(data / "valid/wav.scp")).values()))
    text, *_ = decoder(speech)[0]
    assert isinstance(text, str)


def steps_of(exp: Path, rank: int) -> dict[str, int]:
    state = load_learner(exp, rank, epoch=1)
    assert state is not None
    learner: dict[str, int] = state["session"]["learner"]
    return learner


def test_a_nan_on_one_learner_skips_its_step_and_hangs_nobody(
    data: Path, tmp_path: Path
) -> None:
    for number, algorithm in enumerate(["allreduce", "adpsgd", "bmuf_adam"]):
        exp, log = tmp_path / algorithm, tmp_path / f"{algorithm}.log"
        options = arguments(data, exp, "--distopt", algorithm, "--max_epoch", "1")
        codes = train(options, 2, tmp_path / f"meet{number}", log, NanLoss())
        assert codes == [0, 0], read(log)
        assert all(t.isfinite().all() for t in load(exp / "1epoch.pth").values())
        own = [steps_of(exp, rank) for rank in range(2)]
        # attempted ones
        assert own[0]["steps"] + own[1]["steps"] == 12
        assert algorithm == "adpsgd" or own[0]["steps"] == own[1]["steps"]
        assert own[1]["updates"] == own[1]["steps"] - 1


def test_noise_of_each_learner_is_refused_where_gradients_are_averaged(
    data: Path, tmp_path: Path
) -> None:
    for number, (algorithm, code) in enumerate([("allreduce", 1), ("adpsgd", 0)]):
        log = tmp_path / f"{algorithm}.log"
        options = arguments(data, tmp_path / algorithm, "--distopt", algorithm)
        options += ["--grad_noise", "true", "--max_epoch", "1"]
        assert train(options, 2, tmp_path / f"meet{number}", log) == [code] * 2
        said = "grad_noise: each learner would draw its own" in read(log)
        assert said == (algorithm == "allreduce")


def test_a_killed_learner_is_named_by_the_other(data: Path, tmp_path: Path) -> None:
    options = arguments(data, tmp_path / "exp", "--distopt", "allreduce")
    log = tmp_path / "log"
    codes = train(options, 2, tmp_path / "meet", log, kill_at_step(3, victim=1))
    assert codes[1] == -9
    assert codes[0] == 1
    assert "learner 1 has died" in read(log)

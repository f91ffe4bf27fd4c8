"""Trainings of one and of several learners, through ESPnet's own loop."""

import argparse
import json
import signal
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from espnet2.tasks.abs_task import optim_classes
from espnet2.tasks.asr import ASRTask
from torch.nn import Linear, Parameter
from torch.nn.functional import linear

from espnet_distopt.algorithms import ALGORITHMS
from espnet_distopt.espnet.training.batches import DealingIterFactory
from espnet_distopt.espnet.training.saving import load_learner
from espnet_distopt.espnet.training.tasks import DistoptASRTask, distopt_task
from espnet_distopt.espnet.training.trainer import _join
from espnet_distopt.optimizers.lamb import Lamb
from tests.espnet.toy import arguments, conformer
from tests.espnet.training.learners import Apart, NanLoss, kill_at_step, read, train
from tests.espnet.training.test_stop import SignalAt
from tests.fork_server import PRELOAD
from tests.processes import launch
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


PRELOAD.append("espnet_distopt.espnet.training.tasks")


def test_a_recipe_can_ask_for_lamb(tmp_path: Path) -> None:
    conf = ["--optim", "lamb", "--optim_conf", "lr=0.02"]
    conf += ["--optim_conf", "weight_decay=0.01", "--optim_conf", "betas=[0.8,0.99]"]
    cmd = arguments(tmp_path, tmp_path / "exp", *conf)
    args = DistoptASRTask.get_parser().parse_args(cmd)
    model = torch.nn.Linear(3, 2)
    (optimizer,) = DistoptASRTask.build_optimizers(args, model)
    assert type(optimizer) is Lamb
    assert launch(1, without_parser, args) == [(False, Lamb)]
    group = optimizer.param_groups[0]
    assert (group["lr"], group["weight_decay"]) == (0.02, 0.01)
    assert list(group["betas"]) == [0.8, 0.99]
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()


def without_parser(args: Namespace) -> tuple[bool, type]:
    """Build the optimizer as a child process of ESPnet does, which only imports."""
    known = "lamb" in optim_classes
    (optimizer,) = DistoptASRTask.build_optimizers(args, torch.nn.Linear(3, 2))
    return known, type(optimizer)


ENCODERS = ["conformer", "e_branchformer"]


@pytest.mark.parametrize("encoder", ENCODERS)
def test_one_learner_with_a_conformer_is_stock_training(
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


class Adapted(Linear):
    """A linear layer of which `up @ down` is trained; `weight` has it if `merged`."""

    def __init__(self, size: int, tokens: int) -> None:
        self.merged = True
        super().__init__(size, tokens)
        self.weight.requires_grad = False
        torch.nn.init.constant_(self.weight, 0.25)
        self.down = Parameter(torch.ones(1, size))
        self.up = Parameter(torch.zeros(tokens, 1))

    def train(self, mode: bool = True) -> "Adapted":
        super().train(mode)
        if mode == self.merged:
            change = (self.up @ self.down).detach()
            self.weight.data += -change if mode else change
            self.merged = not mode
        return self

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = super().forward(x)
        return y if self.merged else y + linear(linear(x, self.down), self.up)


class _Task(ASRTask):
    @classmethod
    def build_model(cls, args: argparse.Namespace) -> torch.nn.Module:
        model = super().build_model(args)
        old = model.ctc.ctc_lo
        model.ctc.ctc_lo = Adapted(old.in_features, old.out_features)
        return model.eval()


AdaptedTask = distopt_task(_Task, "AdaptedTask", __name__)


def test_stopped_in_an_epoch_the_training_ends_the_same(
    data: Path, tmp_path: Path
) -> None:
    whole, stopped, log = tmp_path / "whole", tmp_path / "stopped", tmp_path / "log"
    AdaptedTask.main(cmd=arguments(data, whole, "--distopt", "allreduce"))
    options = arguments(data, stopped, "--distopt", "allreduce")
    for step in (2, 8):
        stop, meeting = SignalAt(step, None, signal.SIGUSR1), tmp_path / f"meet{step}"
        codes = train(options, 1, meeting, log, stop, task=AdaptedTask)
        assert codes == [75], read(log)
    AdaptedTask.main(cmd=options)
    assert_same(whole / "2epoch.pth", stopped / "2epoch.pth")


def test_the_frozen_weight_of_learners_that_differ_stays(
    data: Path, tmp_path: Path
) -> None:
    exp, log = tmp_path / "exp", tmp_path / "log"
    options = arguments(data, exp, "--distopt", "adpsgd", "--max_epoch", "3")
    codes = train(options, 2, tmp_path / "meet", log, Apart(), task=AdaptedTask)
    assert codes == [0, 0], read(log)
    saved = load(exp / "3epoch.pth")
    change = saved["ctc.ctc_lo.up"] @ saved["ctc.ctc_lo.down"]
    assert change.abs().max() > 0.01
    frozen = saved["ctc.ctc_lo.weight"] - change
    torch.testing.assert_close(frozen, torch.full_like(frozen, 0.25))


class Member:
    """A run whose learner takes over parameters from a member."""

    rank, options = 0, SimpleNamespace(distopt="adpsgd")

    def join(self, model: Adapted, _: object) -> int:
        model.up.data.fill_(1.0)
        return 1


class Shared(DealingIterFactory):
    """Batches that learners share, so that a training can be joined."""

    def build_iter(self, epoch: int, shuffle: bool | None = None) -> Any: ...


def test_a_replacement_has_the_frozen_weight_of_the_others() -> None:
    model: Any = Adapted(3, 2)
    run: Any = Member()
    _join(run, Shared(), model, [])
    assert torch.equal(model.train().weight, torch.full((2, 3), 0.25))

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
from tests.espnet.training.learners import (
    Apart,
    NanLoss,
    SignalAt,
    assert_same,
    kill_at_step,
    load,
    read,
    trained,
)
from tests.processes import launch
from tests.virtual import STEPS_ALONE


def of_learner(exp: Path, rank: int, epoch: int) -> dict[str, Any]:
    """Return what a learner has saved of itself."""
    state = load_learner(exp, rank, epoch)
    assert state is not None
    learner: dict[str, Any] = state["session"]["learner"]
    return learner


def assert_mean_of_two(exp: Path, epoch: int) -> None:
    """The saved model is the mean of two learners, which differ."""
    own = [of_learner(exp, rank, epoch)["params"] for rank in (0, 1)]
    assert not torch.equal(own[0], own[1])
    saved = load(exp / f"{epoch}epoch.pth")
    model, _ = ASRTask.build_model_from_file(exp / "config.yaml")
    flat = torch.cat([saved[name].flatten() for name, _ in model.named_parameters()])
    torch.testing.assert_close(flat, (own[0] + own[1]) / 2, rtol=0, atol=1e-7)


def decodes(exp: Path, data: Path, **options: Any) -> bool:
    """Return whether stock ESPnet decodes an utterance by the model of epoch 2."""
    import kaldiio
    from espnet2.bin.asr_inference import Speech2Text

    model = exp / "config.yaml", exp / "2epoch.pth"
    decoder = Speech2Text(*model, **{"beam_size": 2, **options})
    _, speech = next(iter(kaldiio.load_scp(str(data / "valid/wav.scp")).values()))
    text, *_ = decoder(speech)[0]
    return isinstance(text, str)


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
    ASRTask.main(cmd=arguments(data, tmp_path))
    stock, ours = load(tmp_path / "2epoch.pth"), load(plain / "2epoch.pth")
    for name, tensor in stock.items():
        # the padded encoder computes the same function in another order
        torch.testing.assert_close(tensor, ours[name], rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize("algorithm", ["allreduce", "bmuf_adam"])
def test_killed_in_an_epoch_a_synchronous_run_ends_the_same(
    algorithm: str, data: Path, tmp_path: Path
) -> None:
    more = ["--distopt", algorithm]
    more += ["--distopt_conf", "period=4"] if algorithm == "bmuf_adam" else []
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    trained(arguments(data, whole, *more), 2, tmp_path)

    options = arguments(data, killed, *more)
    trained(options, 2, tmp_path, kill_at_step(9), ends=-9)
    assert not (killed / "2epoch.pth").exists()
    assert "goes on from its own state after epoch 1" in trained(options, 2, tmp_path)
    assert_same(whole / "2epoch.pth", killed / "2epoch.pth")


@pytest.fixture(scope="module")
def gossiped(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("adpsgd")
    trained(arguments(data, output / "exp", "--distopt", "adpsgd"), 2, output, Apart())
    return output


def test_adpsgd_writes_stock_files_with_the_consensus_model(gossiped: Path) -> None:
    exp = gossiped / "exp"
    models = {path.name for path in exp.glob("*epoch.pth")}
    assert models == {"1epoch.pth", "2epoch.pth"}
    assert_mean_of_two(exp, 2)
    summary = json.loads((exp / "distopt" / "summary.json").read_text())
    assert (summary["learners"], summary["epochs"]) == (2, 2)
    assert summary["samples"] == 48
    for figure in ("comm_time=", "staleness=", "exchanges=", "consensus_distance="):
        assert figure in read(gossiped / "log")


def test_a_checkpoint_loads_and_decodes_in_stock_espnet(
    gossiped: Path, data: Path
) -> None:
    exp = gossiped / "exp"
    model, _ = ASRTask.build_model_from_file(exp / "config.yaml", exp / "2epoch.pth")
    assert type(model.encoder).__module__ == "espnet2.asr.encoder.rnn_encoder"
    assert decodes(exp, data, ctc_weight=1.0)


def test_a_nan_on_one_learner_skips_its_step_and_hangs_nobody(
    data: Path, tmp_path: Path
) -> None:
    for algorithm in ["allreduce", "adpsgd", "bmuf_adam"]:
        exp = tmp_path / algorithm
        options = arguments(data, exp, "--distopt", algorithm, "--max_epoch", "1")
        trained(options, 2, tmp_path, NanLoss())
        assert all(t.isfinite().all() for t in load(exp / "1epoch.pth").values())
        own = [of_learner(exp, rank, epoch=1) for rank in range(2)]
        # attempted ones
        assert own[0]["steps"] + own[1]["steps"] == 12
        assert algorithm == "adpsgd" or own[0]["steps"] == own[1]["steps"]
        assert own[1]["updates"] == own[1]["steps"] - 1


def test_noise_of_each_learner_is_refused_where_gradients_are_averaged(
    data: Path, tmp_path: Path
) -> None:
    for algorithm, code in [("adpsgd", 0), ("allreduce", 1)]:
        options = arguments(data, tmp_path / algorithm, "--distopt", algorithm)
        options += ["--grad_noise", "true", "--max_epoch", "1"]
        said = trained(options, 2, tmp_path, ends=code)
        assert ("grad_noise: each learner would draw its own" in said) == (code == 1)


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
    exp = tmp_path / "exp"
    options = arguments(data, exp, "--distopt", "adpsgd", model=conformer(encoder))
    said = trained(options, 2, tmp_path, Apart())
    assert_mean_of_two(exp, 2)
    for figure in ("acc=", "loss_ctc=", "loss_att=", "cer_ctc=", "consensus_distance="):
        assert figure in said
    saved = load(exp / "2epoch.pth")
    if encoder == "conformer":  # The other one has no BatchNorm.
        (name,) = (each for each in saved if each.endswith("running_mean"))
        assert saved[name].ne(0).all()
    assert decodes(exp, data)


def test_stopped_in_an_epoch_a_conformer_ends_the_same(
    data: Path, tmp_path: Path
) -> None:
    """It has statistics (BatchNorm), which test_stop's encoder has not."""
    more = ["--distopt", "bmuf_adam", "--distopt_conf", "period=3"]
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    trained(arguments(data, whole, *more, model=conformer()), 2, tmp_path)
    options = arguments(data, stopped, *more, model=conformer())
    # 6 steps make an epoch.
    trained(options, 2, tmp_path, SignalAt(8, 1, signal.SIGUSR1), ends=75)
    assert not (stopped / "2epoch.pth").exists()
    trained(options, 2, tmp_path)
    assert_same(whole / "2epoch.pth", stopped / "2epoch.pth")
    statistics = load(whole / "2epoch.pth")
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
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    AdaptedTask.main(cmd=arguments(data, whole, "--distopt", "allreduce"))
    options = arguments(data, stopped, "--distopt", "allreduce")
    for step in (2, 8):
        stop = SignalAt(step, None, signal.SIGUSR1)
        trained(options, 1, tmp_path, stop, ends=75, task=AdaptedTask)
    AdaptedTask.main(cmd=options)
    assert_same(whole / "2epoch.pth", stopped / "2epoch.pth")


def test_the_frozen_weight_of_learners_that_differ_stays(
    data: Path, tmp_path: Path
) -> None:
    exp = tmp_path / "exp"
    options = arguments(data, exp, "--distopt", "adpsgd", "--max_epoch", "3")
    trained(options, 2, tmp_path, Apart(), task=AdaptedTask)
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

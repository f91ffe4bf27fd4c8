"""Adapters that validation merges into a frozen weight, as loralib's do."""

import argparse
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from espnet2.tasks.asr import ASRTask
from torch.nn import Linear, Parameter
from torch.nn.functional import linear

from espnet_distopt.espnet.training.batches import DealingIterFactory
from espnet_distopt.espnet.training.tasks import distopt_task
from espnet_distopt.espnet.training.trainer import _join
from tests.espnet.toy import arguments
from tests.espnet.training.learners import Apart, read, train
from tests.espnet.training.test_stop import SignalAt
from tests.espnet.training.test_training import assert_same, load


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

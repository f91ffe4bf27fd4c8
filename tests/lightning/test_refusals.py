"""Wrong uses of the strategy: one line each, as early as Lightning allows."""

import re
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint, StochasticWeightAveraging
from lightning.pytorch.plugins import FSDPPrecision

from espnet_distopt.errors import InputError
from espnet_distopt.lightning import DistoptStrategy, refusals
from espnet_distopt.lightning.refusals import check_fit
from tests.lightning.toy import Toy, loaders, trainer


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("adpsdg", {}, "unknown algorithm 'adpsdg'"),
        ("adpsgd", {"perod": 2}, "unknown option 'perod'"),
        ("bmuf", {"find_unused_parameters": True}, "unknown option 'find_unused"),
        ("adpsgd", {"heartbeat_seconds": 0}, "heartbeat_seconds must be at least 1"),
        (["adpsgd"], {}, "must be a name"),
    ],
)
def test_when_the_strategy_is_made(
    name: Any, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(InputError, match=words):
        DistoptStrategy(name, **options)


def test_a_mistake_ends_a_program_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    own = trainer(tmp_path, DistoptStrategy("adpsgd"), 1, max_epochs=1)
    with pytest.raises(InputError) as end:
        own.fit(Manual(), **loaders())
    capsys.readouterr()
    sys.excepthook(end.type, end.value, end.tb)
    line = rf"{re.escape(__file__)}:\d+: InputError: Manual has [^\n]+\n"
    assert re.fullmatch(line, capsys.readouterr().err)


def test_a_replacement_of_a_learner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISTOPT_INCARNATION", "1")
    with pytest.raises(InputError, match="a learner cannot be replaced: start"):
        DistoptStrategy("adpsgd")


@pytest.mark.parametrize(
    ("learners", "strategy", "options", "words"),
    [
        (5, DistoptStrategy("hadpsgd", per_node=2), {}, "per_node"),
        (
            2,
            DistoptStrategy("adpsgd"),
            {"plugins": [FSDPPrecision("bf16-mixed")]},
            "FSDPPrecision: a learner needs the whole model",
        ),
    ],
)
def test_when_the_trainer_is_made(
    tmp_path: Path, learners: int, strategy: Any, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(InputError, match=words):
        trainer(tmp_path, strategy, learners, **options)


class Manual(Toy):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False


class Several(Toy):
    def configure_optimizers(self) -> Any:
        parts = self.net[0], self.net[4]
        return [torch.optim.SGD(part.parameters(), lr=0.1) for part in parts]


class Untrained(Toy):
    def configure_optimizers(self) -> None:
        return None


@pytest.mark.parametrize(
    ("module", "callback", "words"),
    [
        (Manual(), None, "Manual has automatic_optimization = False"),
        (Several(), None, "gives 2 optimizers"),
        (Untrained(), None, "gives 0 optimizers"),
        (Toy(), StochasticWeightAveraging(0.1), "StochasticWeightAveraging replaces"),
        (
            Toy(),
            ModelCheckpoint(every_n_train_steps=3),
            r"ModelCheckpoint\(every_n_train_steps=...\) saves within an epoch",
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_when_a_fit_begins(
    tmp_path: Path, module: Toy, callback: pl.Callback | None, words: str
) -> None:
    callbacks = [callback] if callback else []
    checkpoints = isinstance(callback, ModelCheckpoint)
    made = trainer(
        tmp_path,
        DistoptStrategy("adpsgd"),
        1,
        max_epochs=1,
        callbacks=callbacks,
        enable_checkpointing=checkpoints,
    )
    with pytest.raises(InputError, match=words):
        made.fit(module, **loaders())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_steps": 9}, "max_steps=9 counts a learner's own batches"),
        ({"min_steps": 9}, "min_steps=9 counts"),
        ({"fast_dev_run": True}, "fast_dev_run=True counts"),
        ({"fast_dev_run": 2}, "fast_dev_run=2 counts"),
        ({"limit_train_batches": 10}, "limit_train_batches=10 counts"),
        ({"limit_train_batches": 1}, "limit_train_batches=1 counts"),
        ({"limit_train_batches": 0.1}, "limit_train_batches=0.1 counts"),
        ({"overfit_batches": 0.1}, "overfit_batches=0.1 counts"),
        ({"val_check_interval": 0.5}, "val_check_interval=0.5 counts"),
        ({"val_check_interval": 1}, "val_check_interval=1 counts"),
        (
            {"val_check_interval": "00:01:00:00"},
            "a time as val_check_interval falls between",
        ),
        ({"check_val_every_n_epoch": None}, "check_val_every_n_epoch=None counts"),
    ],
    ids=str,
)
def test_what_counts_a_learners_batches_with_a_work_queue(
    tmp_path: Path, options: dict[str, Any], words: str
) -> None:
    made = trainer(tmp_path, "auto", 1, **options)
    with pytest.raises(InputError, match=f"^Trainer: {words}") as said:
        check_fit(made, "adpsgd", queue=True)
    assert str(said.value).endswith("or give DistoptStrategy work_queue=False")
    check_fit(made, "adpsgd", queue=False)


@pytest.mark.parametrize(
    "options",
    [
        {"limit_train_batches": 0},
        {"limit_train_batches": 1.0},
        {"overfit_batches": 1.0},
        {"limit_val_batches": 3},
        {"check_val_every_n_epoch": 2},
        {"min_epochs": 3, "max_epochs": 9},
    ],
    ids=str,
)
def test_what_counts_epochs_is_for_a_work_queue(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    check_fit(trainer(tmp_path, "auto", 1, **options), "adpsgd", queue=True)


WITHOUT = """
import sys
sys.modules["lightning"] = None
import espnet_distopt
print(espnet_distopt.Session.__name__)
try:
    import espnet_distopt.lightning
except ImportError as error:
    print(error)
"""


class Mischief(pl.Callback):
    """Does something to the module after its first step."""

    def __init__(self, what: Callable[[Toy], object]) -> None:
        self.what = what

    def on_train_batch_end(self, _: pl.Trainer, module: Any, *__: Any) -> None:
        self.what(module)


def unfreeze(module: Toy) -> None:
    module.net[0].weight.requires_grad_()


def load(module: Toy) -> None:
    module.load_state_dict(module.state_dict())


def move(module: Toy) -> None:
    weight = module.net[4].weight
    weight.data = weight.data.clone()


@pytest.mark.parametrize(
    ("what", "words"),
    [
        (unfreeze, "within a fit, .*: end this fit and begin another one"),
        (load, "load_state_dict was called within a fit.*before trainer.fit"),
        (move, "within a fit.*: end this fit and begin another one"),
    ],
)
def test_a_session_speaks_of_fits(
    tmp_path: Path, what: Callable[[Toy], None], words: str
) -> None:
    module = Toy()
    module.net[0].weight.requires_grad_(what is not unfreeze)
    own = trainer(tmp_path, DistoptStrategy("bmuf"), 1, callbacks=[Mischief(what)])
    with pytest.raises(InputError, match=words) as refused:
        own.fit(module, **loaders())
    assert "session" not in str(refused.value)


def test_a_fit_off_the_main_thread(tmp_path: Path) -> None:
    """Python lets no other thread handle signals; Ray Train's fits are on one."""
    own = trainer(tmp_path, DistoptStrategy("adpsgd"), 1, max_epochs=1)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(own.fit, Toy(), **loaders()).result()
    assert own.global_step == 12


def test_without_lightning_the_package_imports_and_says_what_to_install() -> None:
    command = [sys.executable, "-c", WITHOUT]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    name, said = done.stdout.splitlines()
    assert name == "Session"
    assert "needs Lightning 2.4 or later: pip install lightning" in said


@pytest.mark.parametrize("part", refusals.PARTS)
def test_a_version_without_a_part_is_refused(part: str) -> None:
    made = SimpleNamespace()
    for each in refusals.PARTS:
        holder = made
        *way, last = each.split(".")
        for name in way:
            holder = vars(holder).setdefault(name, SimpleNamespace())
        if each != part:
            setattr(holder, last, None)
    with pytest.raises(InputError, match=f"the trainer has no {part}") as refused:
        refusals.check_parts(cast(pl.Trainer, made))
    assert "\n" not in str(refused.value)

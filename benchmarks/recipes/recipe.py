"""The recipes whose trainings are compared, shortened so that many of them fit."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from report import ROOT


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A recipe of egs/, with the changes that shorten its training.

    Attributes:
        folder: the folder of the recipe below egs/.
        task: the kind of the model: `asr`, `ocr`, or `hybrid`, whose error rate is that
            of the frames of the validation set.
        test_set: the set that is decoded.
        halves: name -> regular expression of the ids of each part that is scored by
            itself, as in the recipe's run.sh.
        train_args: options of ESPnet that every cell gets. All algorithms have the same
            learning rate, unless a cell has its own.
        train_config: the training configuration, in the recipe's folder.
        about: what a reader of the table has to know, as whole sentences.
    """

    folder: str
    task: str
    test_set: str
    halves: dict[str, str]
    train_args: str
    train_config: str = "conf/train.yaml"
    about: str

    @property
    def path(self) -> Path:
        """The folder of the recipe."""
        return ROOT / "egs" / self.folder

    @property
    def rate(self) -> str:
        """The error rate: of words, of characters or of frames."""
        return {"asr": "wer", "ocr": "cer", "hybrid": "fer"}[self.task]

    @property
    def system(self) -> str:
        """The option `--system` of run.sh."""
        return "hybrid" if self.task == "hybrid" else "ctc"


_DIGITS: dict[str, Any] = {
    "folder": "fsdd/asr1",
    "task": "asr",
    "test_set": "test",
    "halves": {"known": "-test_known-", "unseen": "-test_unseen-"},
}

RECIPES = {
    "fsdd": Recipe(
        **_DIGITS,
        train_args="--max_epoch 3 --keep_nbest_models 1 --optim_conf lr=0.003 "
        "--scheduler_conf warmup_steps=100 --frontend_conf hop_length=400 "
        "--encoder_conf num_layers=2",
        about="Strings of spoken digits (egs/fsdd/asr1); `unseen` is a speaker who is "
        "not in training.",
    ),
    "fsdd_conformer": Recipe(
        **_DIGITS,
        train_config="conf/train_conformer.yaml",
        train_args="--max_epoch 4 --keep_nbest_models 1 "
        "--scheduler_conf warmup_steps=200 --frontend_conf hop_length=200 "
        "--encoder_conf num_blocks=3",
        about="Strings of spoken digits (egs/fsdd/asr1) by a conformer with CTC and an "
        "attention decoder; the best path is that of CTC.",
    ),
    "mini_swbd": Recipe(
        folder="mini_swbd/asr1",
        task="asr",
        test_set="eval2000",
        halves={"swbd": "^sw_", "callhome": "^en_"},
        train_args="--max_epoch 3 --scheduler_conf warmup_steps_list=[0,150,1160]",
        about="Synthetic telephone conversations (egs/mini_swbd/asr1), scored without "
        "the GLM, so that the error rates compare with nothing but each other.",
    ),
    "mini_ocr": Recipe(
        folder="mini_ocr/ocr1",
        task="ocr",
        test_set="test",
        halves={"known": "-known-", "unseen": "-unseen-", "digits": "-digits-"},
        train_args="--max_epoch 4 --keep_nbest_models 1 --scheduler_conf "
        "warmup_steps_list=[0,300,1500]",
        about="Printed lines, which are synthetic, and handwritten digits "
        "(egs/mini_ocr/ocr1).",
    ),
    "fsdd_hybrid": Recipe(
        folder="fsdd/asr1",
        task="hybrid",
        test_set="test",
        halves={},
        train_config="conf/train_hybrid.yaml",
        train_args="--max_epoch 3 --keep_nbest_models 1",
        about="States of phones, frame by frame (egs/fsdd/asr1 with --system hybrid).",
    ),
}

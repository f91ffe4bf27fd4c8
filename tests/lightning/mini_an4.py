"""Runs stages of ESPnet3's recipe mini_an4 in this process, one after the other.

    python -m tests.lightning.mini_an4 prepare NAME
    torchrun --nproc_per_node 2 -m tests.lightning.mini_an4 train NAMES...
    python -m tests.lightning.mini_an4 score NAMES...

It runs in the folder of the recipe; each NAME is that of a configuration in conf/.
"""

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning.pytorch as pl

STAGES = {
    "prepare": ["create_dataset", "train_tokenizer", "collect_stats"],
    "train": ["train"],
    "score": ["infer", "measure"],
}

AGAIN = 3
"""How often the corpus has each of its four utterances for training."""


class SlowLearner(pl.Callback):
    """Makes learner 1 slow, and writes down on which utterances each one trains.

    Args:
        path: a file to which the learner's number is added.
        seconds: how long a step of learner 1 takes at least.
    """

    def __init__(self, path: str, seconds: float = 0.0) -> None:
        self._path, self._seconds = path, seconds

    def on_train_batch_start(
        self, trainer: pl.Trainer, module: Any, batch: Any, *_: Any
    ) -> None:
        """Write down the utterances of the batch."""
        if trainer.global_rank == 1:
            time.sleep(self._seconds)
        with open(f"{self._path}.{trainer.global_rank}", "a") as file:
            print(*batch[0], sep="\n", file=file)


def _enlarge(manifest: Path) -> None:
    lines = manifest.read_text().splitlines()
    copies = [f"{n}{line}\n" for n in range(AGAIN) for line in lines]
    manifest.write_text("".join(copies))


def main(task: str, names: Sequence[str]) -> None:
    """Run the stages of a task with each configuration."""
    from espnet3.systems.esp2_asr.system import ASRSystem
    from espnet3.systems.launch import launch

    for name in names:
        roles = {"training": name, "inference": "i", "metrics": "metrics"}
        configs = [f"--{role}_config=conf/{each}.yaml" for role, each in roles.items()]
        for stage in STAGES[task]:
            launch(ASRSystem, argv=["--stages", stage, *configs])
            if stage == "create_dataset":
                _enlarge(Path("data/manifest/train.tsv"))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])

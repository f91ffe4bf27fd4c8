"""The program runs stages of ESPnet3's recipe mini_an4, one after the other.

    python -m mini_an4.stages prepare NAME COPIES
    torchrun --nproc_per_node 2 -m mini_an4.stages train NAMES...
    python -m mini_an4.stages score NAMES...

It runs in the folder of the recipe; each NAME is that of a configuration in conf/. The
corpus gets COPIES of each of its four utterances for training.
"""

import sys
from pathlib import Path

STAGES = {
    "prepare": ["create_dataset", "train_tokenizer", "collect_stats"],
    "train": ["train"],
    "score": ["infer", "measure"],
}


def _enlarge(manifest: Path, copies: int) -> None:
    lines = manifest.read_text().splitlines()
    manifest.write_text(
        "".join(f"{n}{line}\n" for n in range(copies) for line in lines)
    )


def _run(task: str, name: str, copies: int = 1) -> None:
    """Run the stages of a task with a configuration."""
    from espnet3.systems.esp2_asr.system import ASRSystem
    from espnet3.systems.launch import launch

    roles = {"training": name, "inference": "i", "metrics": "metrics"}
    configs = [f"--{role}_config=conf/{each}.yaml" for role, each in roles.items()]
    for stage in STAGES[task]:
        launch(ASRSystem, argv=["--stages", stage, *configs])
        if stage == "create_dataset":
            _enlarge(Path("data/manifest/train.tsv"), copies)


def main() -> None:
    """Run the task of the command line."""
    task, *names = sys.argv[1:]
    if task == "prepare":
        _run(task, names[0], int(names[1]))
    else:
        for name in names:
            _run(task, name)


if __name__ == "__main__":
    main()

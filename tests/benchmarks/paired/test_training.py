"""The command of a cell is the recipe's own, with the cell's options last."""

from pathlib import Path

import pytest
from paired.cell import Cell
from paired.training import CellFailedError, command, training_of

SCRIPT = r"""
srun --label \
    /usr/bin/python -m espnet_distopt.bin.asr_train \
    --distopt adpsgd \
    --note 'two words' \
    --seed 3 &
trap 'interrupted=1' TERM
"""


def test_a_script_has_one_training() -> None:
    assert training_of(SCRIPT) == [
        *("espnet_distopt.bin.asr_train", "--distopt", "adpsgd"),
        *("--note", "two words", "--seed", "3"),
    ]
    with pytest.raises(CellFailedError, match="shows no training"):
        training_of("echo")


@pytest.mark.recipes
def test_the_recipe_gives_the_command(tmp_path: Path) -> None:
    cell = Cell(
        recipe="fsdd",
        learners=4,
        algorithm="hadpsgd",
        options=(("per_node", 2), ("second_moment", "local")),
        batch_size=8,
        seed=3,
    )
    module, *arguments = command(cell, tmp_path)
    assert module == "espnet_distopt.bin.asr_train"
    text = " ".join(arguments)
    assert "--distopt hadpsgd --distopt_config conf/distopt/hadpsgd.yaml" in text
    assert "--distopt_conf per_node=2 --distopt_conf second_moment=local" in text
    assert "--seed 3 " in text
    assert "--batch_size 8" in text
    last = len(arguments) - 1 - arguments[::-1].index("--output_dir")
    assert arguments[last + 1] == str(tmp_path)


@pytest.mark.recipes
def test_what_the_recipe_refuses_is_one_line(tmp_path: Path) -> None:
    cell = Cell(recipe="fsdd", learners=4, algorithm="nonsense", seed=0)
    with pytest.raises(CellFailedError, match=r"^run\.sh: error: .*nonsense") as found:
        command(cell, tmp_path)
    assert "\n" not in str(found.value)

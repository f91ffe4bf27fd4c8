"""The command of a cell is the recipe's own, with the cell's options last."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import recipes
from recipes.cell import Cell
from recipes.training import CellFailedError, command, training_of

SCRIPT = r"""
srun --label \
    /usr/bin/python -m espnet_distopt.bin.asr_train \
    --distopt adpsgd \
    --note 'two words' \
    --seed 3 &
trap 'interrupted=1' TERM
"""


@pytest.mark.parametrize("module", ["bin.asr_train", "recipes.commands.hybrid_train"])
def test_a_script_has_one_training(module: str) -> None:
    assert training_of(SCRIPT.replace("bin.asr_train", module)) == [
        *(f"espnet_distopt.{module}", "--distopt", "adpsgd"),
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


HOLD = """
import multiprocessing, os, time
from emulated.learners import fork
from recipes.training import enter

def start_method(folder):
    enter(folder / "log", folder)
    return multiprocessing.get_start_method()

def hold(folder):
    enter(folder / "log", folder)
    (folder / "new").write_text(str(os.getpid()))
    (folder / "new").rename(folder / "pid")
    time.sleep(600)
"""


def forking(function: str, folder: Path) -> subprocess.Popen[str]:
    """Start a command that runs a function of `HOLD` in a learner."""
    (folder / "holder.py").write_text(HOLD)
    benchmarks = Path(recipes.__file__).parent.parent
    places = [str(folder), str(benchmarks), str(benchmarks.parent)]
    code = f"""
from pathlib import Path
import holder
print(holder.fork(holder.{function}, [(Path({str(folder)!r}),)], timeout=600))
"""
    return subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": ":".join(places)},
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.processes
def test_data_loaders_of_a_learner_fork(tmp_path: Path) -> None:
    # What ESPnet gives them cannot be pickled.
    assert forking("start_method", tmp_path).communicate()[0] == "['fork']\n"


@pytest.mark.processes
def test_a_killed_command_leaves_no_learner(tmp_path: Path) -> None:
    command = forking("hold", tmp_path)
    try:
        learner = int(_text_of(tmp_path / "pid", command))
        assert _runs(learner)
    finally:
        command.send_signal(signal.SIGKILL)
        command.wait()
    for _ in range(600):
        if not _runs(learner):
            return
        time.sleep(0.1)
    os.kill(learner, signal.SIGKILL)
    pytest.fail("the learner runs on")


def _text_of(path: Path, writer: subprocess.Popen[str]) -> str:
    """Return what a process writes, as soon as it is there."""
    while not path.exists():
        assert writer.poll() is None
        time.sleep(0.1)
    return path.read_text()


def _runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"

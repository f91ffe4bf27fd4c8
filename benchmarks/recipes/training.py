"""The module trains and scores one cell with real processes.

The command of a training comes from the recipe itself: `run.sh --dry_run` writes what a
job of Slurm would run. Its learners are forked from a process that has imported ESPnet
already, because four imports would take a quarter of a short training. From there on
everything is as after a start by torchrun: the learners meet at a store that lives
outside of them, and ESPnet makes its process group.
"""

import importlib
import multiprocessing
import os
import re
import resource
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from threading import Thread
from typing import Any

import torch.distributed as dist
from emulated.learners import LearnersFailedError, fork
from report import ROOT

from espnet_distopt.errors import InputError
from recipes.cell import Cell
from recipes.recipe import RECIPES, Recipe

BUILD = ROOT / "build/trainings"
"""Where cells are trained; a cell's folder is removed when the cell is complete."""
HOURS = 3
"""A cell that takes longer is stuck."""


class CellFailedError(RuntimeError):
    """A cell could not be trained or scored; the message is one line."""


def use_this_checkout() -> None:
    """Let child processes import this checkout, with one thread each.

    Raises:
        InputError: this process has imported the package from elsewhere, so the commit
            in the results would not be the one that was measured.
    """
    import espnet_distopt

    found = Path(espnet_distopt.__file__).parent.parent
    if found != ROOT:
        raise InputError(
            f"espnet_distopt comes from {found}, not from {ROOT}: set PYTHONPATH={ROOT}"
        )
    os.environ["PYTHONPATH"] = str(ROOT)
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    # The function is that of the whole process, whatever context it is called on.
    multiprocessing.get_context("forkserver").set_forkserver_preload(
        ["torch._dynamo", "recipes.outcome", "espnet_distopt.bin.asr_train"]
    )


def prepare(recipe: Recipe) -> None:
    """Run the recipe's stages 1 to 10, unless they have been run.

    Raises:
        CellFailedError: a stage has failed.
    """
    hybrid = recipe.system == "hybrid"
    name = recipe.path.parent.name + ("_hybrid" if hybrid else "")
    made = "hybrid_gmm/train/ali.scp" if hybrid else "stats_*/valid/text_shape.*"
    done = BUILD / f"{name}.prepared"
    if done.exists() and list(recipe.path.glob(f"exp/{made}")):
        return
    print(f"preparing {recipe.path} (stages 1 to 10)", flush=True)
    line = ["run.sh", "--system", recipe.system, "--stop_stage", "10"]
    ran = subprocess.run([recipe.path / line[0], *line[1:]], check=False)
    if ran.returncode != 0:
        raise CellFailedError(f"{recipe.path}/{' '.join(line)} has failed")
    done.parent.mkdir(parents=True, exist_ok=True)
    done.touch()


def run(cell: Cell) -> dict[str, Any]:
    """Train and score a cell from its beginning, and return its figures.

    Raises:
        CellFailedError: the training or the scoring has failed; the cell's folder,
            which the message names, stays.
    """
    recipe = RECIPES[cell.recipe]
    folder = BUILD / cell.name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    module, *arguments = command(cell, folder)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    limit = HOURS * 3600
    learners = [
        (rank, cell.learners, store.port, recipe.path, module, arguments, folder)
        for rank in range(cell.learners)
    ]
    # The fork server starts, and imports ESPnet, before the time begins.
    fork(os.getpid, [()], timeout=limit)
    began = time.monotonic()
    try:
        cpu = fork(_learn, learners, timeout=limit)
        seconds = time.monotonic() - began
        [figures] = fork(measure, [(recipe, folder)], timeout=limit)
    except LearnersFailedError as error:
        raise CellFailedError(f"{error}, see {folder}/train.log") from error
    shutil.rmtree(folder)
    return {"seconds": round(seconds, 1), "cpu_seconds": round(sum(cpu), 1), **figures}


def command(cell: Cell, folder: Path) -> list[str]:
    """Return the module that trains the cell and its arguments.

    Args:
        cell: the cell.
        folder: where the experiment goes.

    Raises:
        CellFailedError: the recipe refuses the cell's options.
    """
    recipe = RECIPES[cell.recipe]
    args = [recipe.train_args, f"--seed {cell.seed}", f"--output_dir {folder}"]
    args += [f"--distopt_conf {name}={value}" for name, value in cell.options]
    if cell.batch_size is not None:
        args.append(f"--batch_size {cell.batch_size}")
    if cell.lr is not None:
        args.append(f"--optim_conf lr={cell.lr}")
    asked = {
        "stage": "11",
        "stop_stage": "11",
        "dry_run": "true",
        "system": recipe.system,
        "train_config": recipe.train_config,
        "distopt": cell.algorithm,
        "nlearners": str(cell.learners),
        "train_args": " ".join(args),
        "slow": "",
    }
    line = [str(recipe.path / "run.sh")]
    line += [part for name, value in asked.items() for part in (f"--{name}", value)]
    environment = {**os.environ, "cmd_backend": "slurm"}
    ran = subprocess.run(
        line, env=environment, capture_output=True, text=True, check=False
    )
    if ran.returncode != 0:
        raise CellFailedError(f"run.sh: {ran.stderr.strip().splitlines()[-1]}")
    return training_of(ran.stdout)


def training_of(script: str) -> list[str]:
    """Return the module and the arguments of the training in a batch script.

    Args:
        script: what `run.sh --dry_run` prints for one training.

    Raises:
        CellFailedError: the script has no training.
    """
    found = re.search(r" -m (espnet_distopt\.[\w.]+_train .*?) &$", script, re.M | re.S)
    if found is None:
        raise CellFailedError("run.sh --dry_run shows no training")
    # Python's shlex would keep the line break behind a backslash.
    return shlex.split(found[1].replace("\\\n", " "))


def enter(log: Path, recipe: Path) -> None:
    """Go to the recipe's folder, with the output in a log.

    From here on this process ends when the command ends, however that happens. So a
    command that is killed leaves no learner behind.
    """
    Thread(target=_end_with_command, daemon=True).start()
    # ESPnet's data loaders fork, as in any process that torchrun has started.
    multiprocessing.set_start_method("fork", force=True)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.chdir(recipe)


def _end_with_command() -> None:
    """Wait until the command has ended, and then end all processes of this learner.

    The fork server is no help there, because it lives as long as its last child.
    """
    command = multiprocessing.parent_process()
    assert command is not None
    command.join()
    os.killpg(0, signal.SIGKILL)


def _learn(
    rank: int,
    size: int,
    port: int,
    recipe: Path,
    module: str,
    arguments: Sequence[str],
    folder: Path,
) -> float:
    """Be one learner, and return the CPU time in seconds that it has taken."""
    enter(folder / "train.log", recipe)
    if size > 1:
        os.environ.update(
            RANK=str(rank),
            WORLD_SIZE=str(size),
            LOCAL_RANK=str(rank),
            LOCAL_WORLD_SIZE=str(size),
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(port),
            TORCHELASTIC_USE_AGENT_STORE="True",
        )
    importlib.import_module(module).main(arguments)
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def measure(recipe: Recipe, folder: Path) -> dict[str, Any]:
    """Return the losses and the error rates of a trained cell."""
    enter(folder / "decode.log", recipe.path)
    from recipes import outcome  # The parent need not import ESPnet.

    return outcome.measure(recipe, folder)

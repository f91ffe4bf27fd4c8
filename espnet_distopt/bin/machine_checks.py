"""The checks of `bin.doctor`: what a machine has, and what is missing for what.

A check looks at one thing and returns a `Finding`. It needs nothing but the standard
library to begin with, so that it can also say that torch is missing.
"""

import fcntl
import importlib.util
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

OLDEST_TORCH = (2, 8)
"""The oldest version with which the tests were run; setup.cfg has it, too."""
PARTS_OF_TORCH = (
    "torch._C._current_graph_task_id",
    "torch.autograd.Variable._execution_engine.queue_callback",
    "torch.distributed.distributed_c10d._get_default_store",
    "torch.distributed.ProcessGroupGloo",
    "torch.distributed.ProcessGroup._device_types",
    "torch._foreach_copy_",
)
"""What the package needs of torch that is not promised to stay (private_parts.md)."""

TORCH_SECONDS = 120
ESPNET_SECONDS = 300
"""Limits of an import; the first one on a network file system takes long."""


@dataclass(frozen=True)
class Finding:
    """What a check has found.

    Attributes:
        mark: `ok`; `missing`, if the section's purpose cannot be served; `note`, if it
            can, with a drawback.
        text: What is there or is missing, and what to do about it.
    """

    mark: str
    text: str


Check = Callable[[Path], Finding]


ok, missing, note = (partial(Finding, mark) for mark in ("ok", "missing", "note"))


def check_python(folder: Path) -> Finding:
    """Say which Python this is; an older one than is needed has no such package."""
    return ok(f"Python {platform.python_version()}")


def check_torch(folder: Path) -> Finding:
    """Check that torch can be imported, its version, and its back ends."""
    code = (
        "import operator, torch, torch.distributed as d; print(torch.__version__, "
        "d.is_available() and d.is_gloo_available(), torch.cuda.device_count(), "
        "d.is_available() and d.is_nccl_available())\n"
        f"for part in {PARTS_OF_TORCH}:\n"
        "    try: operator.attrgetter(part.removeprefix('torch.'))(torch)\n"
        "    except AttributeError: print(part)"
    )
    printed, error = _run_python(code, TORCH_SECONDS)
    if error:
        return missing(f"torch: {error}: pip install torch")
    found, gloo, cards, nccl, *lacking = printed.split()
    major, minor = map(int, re.findall(r"\d+", found)[:2])
    if (major, minor) < OLDEST_TORCH:
        oldest = ".".join(map(str, OLDEST_TORCH))
        return missing(f"torch {found}: {oldest} or later is needed")
    if gloo != "True":
        return missing(f"torch {found} was built without gloo, which gossip needs")
    if lacking:
        return missing(
            f"torch {found} has no {lacking[0]}, which is used here: install a version "
            "that docs/private_parts.md names"
        )
    plural = "s" * (cards != "1")
    gpus = f"{cards} GPU{plural}" + (", NCCL" if nccl == "True" else ", no NCCL")
    return ok(f"torch {found}: gloo, {gpus if cards != '0' else 'no GPU'}")


def check_host_name(folder: Path) -> Finding:
    """Check that gloo, which resolves the machine's own name, finds an address."""
    if interface := os.environ.get("GLOO_SOCKET_IFNAME", ""):
        known = {name for _, name in socket.if_nameindex()}
        unknown = [each for each in interface.split(",") if each not in known]
        if unknown:
            return missing(f"GLOO_SOCKET_IFNAME names {unknown[0]}: no such interface")
        return ok(f"network interface {interface} (GLOO_SOCKET_IFNAME)")
    name = socket.gethostname()
    try:
        host = str(socket.getaddrinfo(name, None)[0][4][0])
    except OSError:
        return note(
            f"the machine's name {name} has no address: set GLOO_SOCKET_IFNAME to the "
            "network's interface (or to lo, on one machine)"
        )
    if host == "::1" or host.startswith("127."):
        return note(
            f"the machine's name {name} means {host} here: where learners are on "
            "several machines, set GLOO_SOCKET_IFNAME to the network's interface"
        )
    return ok(f"{name} is {host}")


def check_threads(folder: Path) -> Finding:
    """Check that several learners would not compete for the cores."""
    cores = len(os.sched_getaffinity(0))
    threads = os.environ.get("OMP_NUM_THREADS")
    if threads is None:
        return note(
            f"{cores} cores, and OMP_NUM_THREADS is not set: each learner would take "
            "them all; set it to cores / learners (the recipes set 1)"
        )
    return ok(f"{cores} cores, OMP_NUM_THREADS={threads}")


def check_folder(folder: Path) -> Finding:
    """Check that files can be written, renamed and locked where experiments go."""
    try:
        with tempfile.TemporaryDirectory(prefix=".doctor.", dir=folder) as name:
            path = Path(name, "a")
            with path.open("wb") as file:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.fsync(file.fileno())
            os.replace(path, Path(name, "b"))
    except OSError as error:
        return missing(
            f"{folder}: files cannot be written and locked there ({error.strerror}): "
            "training needs both where its experiments are"
        )
    free = shutil.disk_usage(folder).free / 1e9
    return ok(f"{folder}: files can be written and locked, {free:.0f} GB are free")


def check_espnet(folder: Path) -> Finding:
    """Check that ESPnet's tasks can be imported to train them, in some seconds."""
    try:
        name = f"espnet {version('espnet')}"
    except PackageNotFoundError:
        fitting = "espnet" if sys.version_info >= (3, 12) else "espnet==202511"
        return missing(f"espnet: pip install {fitting}")
    code = (
        "from espnet_distopt.errors import InputError\n"
        "from espnet_distopt.espnet.models.quick_import import importing_espnet\n"
        "with importing_espnet(): from espnet_distopt.espnet.training import tasks\n"
        "for name in tasks.names_of_tasks():\n"
        "    why = None\n"
        "    try: tasks.task(name)\n"
        "    except InputError as error: why = error.__cause__ or 'not for us'\n"
        "    except Exception as error: why = f'{type(error).__name__}: {error}'\n"
        "    print('task', name, *str(why or '').splitlines()[:1], sep='\\t')"
    )
    printed, error = _run_python(code, ESPNET_SECONDS)
    if error:
        return missing(f"{name} cannot train: {error}")
    ready: list[str] = []
    failed: dict[str, list[str]] = {}
    for line in printed.splitlines():  # Modules may print, too.
        mark, *task = line.split("\t")
        if mark == "task" and task[1:] != ["not for us"]:
            known = failed.setdefault(task[1], []) if task[1:] else ready
            known.append(task[0])
    if failed:
        lacking = [f"not {', '.join(tasks)} ({why})" for why, tasks in failed.items()]
        return note(f"{name}, for {', '.join(ready)}; {'; '.join(lacking)}")
    return ok(f"{name}, for {', '.join(ready)}")


def check_nltk(folder: Path) -> Finding:
    """Check that g2p_en, which ESPnet imports, does not look into the network."""
    code = (
        "import nltk.data\n"
        "for each in ('taggers/averaged_perceptron_tagger', 'corpora/cmudict'):\n"
        "    nltk.data.find(f'{each}.zip')"
    )
    if not _has("nltk") or not _run_python(code, TORCH_SECONDS)[1]:
        return ok("no look into the network")
    return note(
        "ESPnet's import looks for NLTK's data in the network, for minutes where "
        "nothing answers: python -m nltk.downloader averaged_perceptron_tagger cmudict"
    )


def check_arks(folder: Path) -> Finding:
    """Check that Kaldi arks can be read."""
    errors = []
    for name in ("omniio", "kaldiio"):
        if _has(name):
            _, error = _run_python(f"import {name}", TORCH_SECONDS)
            if not error:
                return ok(name)
            errors.append(f"{name} cannot be imported: {error}")
    return missing(errors[0] if errors else "arks: pip install omniio, or kaldiio")


def check_lightning(folder: Path) -> Finding:
    """Check that Lightning can be imported, and with it the strategy."""
    try:
        name = f"lightning {version('lightning')}"
    except PackageNotFoundError:
        return missing("lightning, for Lightning's trainer: pip install lightning")
    _, error = _run_python("import espnet_distopt.lightning.strategy", TORCH_SECONDS)
    return missing(f"{name} cannot be used: {error}") if error else ok(name)


def package(module: str, purpose: str, name: str = "") -> Check:
    """Return a check that a package is there, which pip may call by another name."""

    def check(folder: Path) -> Finding:
        if _has(module):
            _, error = _run_python(f"import {module}", TORCH_SECONDS)
            if error:
                return missing(f"{name or module} cannot be imported: {error}")
            return ok(name or module)
        return missing(f"{name or module}, for {purpose}: pip install {name or module}")

    return check


def program(name: str, purpose: str) -> Check:
    """Return a check for a program on PATH."""

    def check(folder: Path) -> Finding:
        found = shutil.which(name)
        return ok(f"{name}: {found}") if found else missing(f"{name}, for {purpose}")

    return check


def _has(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def _run_python(code: str, seconds: float) -> tuple[str, str]:
    """Run Python code in a process of its own, as an import may crash.

    Returns what it printed, and its last line of error ("" if it has ended well).
    """
    command = [sys.executable, "-c", code]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        return "", f"an import takes more than {seconds:.0f} s"
    if done.returncode == 0:
        return done.stdout, ""
    lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
    return "", lines[-1]


SECTIONS: dict[str, list[Check]] = {
    "a training loop of your own": [
        check_python,
        check_torch,
        package("numpy", "everything"),
        package("yaml", "configurations", "PyYAML"),
        check_host_name,
        check_threads,
        check_folder,
    ],
    "an ESPnet training": [
        check_espnet,
        check_nltk,
        check_arks,
        package("soundfile", "speech"),
        package("sentencepiece", "subwords"),
    ],
    "Lightning": [check_lightning],
    "a cluster": [program("sbatch", "jobs of Slurm")],
}
"""What a user may want to do -> what is checked for it, in the order of the output."""

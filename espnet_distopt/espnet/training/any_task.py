"""Every task of ESPnet that has its common `Trainer`, trained by `DistoptTrainer`.

A task has the name of ESPnet's command: `st` is that of `espnet2.bin.st_train`. As a
name of this module it can be pickled, which ESPnet does with a task whose learners it
starts as child processes.
"""

import functools
import importlib
import importlib.util
from pathlib import Path

from espnet2.tasks.abs_task import AbsTask

from espnet_distopt.errors import InputError
from espnet_distopt.espnet.models.quick_import import importing_espnet
from espnet_distopt.espnet.training.lm_task import DistoptLMTask
from espnet_distopt.espnet.training.tasks import distopt_task

_SUFFIX = "_train"
_READY: dict[str, type[AbsTask]] = {"lm": DistoptLMTask}
"""Tasks that check more than any task does, by name."""


def names() -> list[str]:
    """Return the names of ESPnet's tasks, of those with a trainer of their own, too."""
    spec = importlib.util.find_spec("espnet2.bin")
    assert spec is not None
    folders = map(Path, spec.submodule_search_locations or ())
    found = {path.stem for each in folders for path in each.glob(f"*{_SUFFIX}.py")}
    return sorted(name.removesuffix(_SUFFIX) for name in found - {"lightning_train"})


@functools.cache
def task(name: str) -> type[AbsTask]:
    """Return a task that trains with `DistoptTrainer`.

    Args:
        name: that of ESPnet's command, as `st` of `espnet2.bin.st_train`.

    Raises:
        InputError: ESPnet has no such task, it needs a package that is missing, or it
            has a trainer of its own.
    """
    if name not in names():
        raise InputError(f"ESPnet has no task {name}: expected {', '.join(names())}")
    if name in _READY:
        return _READY[name]
    module = f"espnet2.bin.{name}{_SUFFIX}"
    try:
        with importing_espnet():
            command = importlib.import_module(module)
    except ImportError as error:
        raise InputError(f"{module} cannot be imported: {error}") from error
    (stock,) = (
        each
        for each in vars(command).values()
        if isinstance(each, type) and issubclass(each, AbsTask)
    )
    return distopt_task(stock, name, __name__)


def __getattr__(name: str) -> type[AbsTask]:
    """Find a task as a name of this module, as pickle does."""
    if name.startswith("_") or name not in names():
        raise AttributeError(name)
    return task(name)

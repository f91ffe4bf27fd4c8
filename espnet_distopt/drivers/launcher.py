"""What the launcher of the learners says of where they run."""

import re
from collections.abc import Mapping


def learners_per_node(size: int, environment: Mapping[str, str]) -> int | None:
    """Return how many learners each machine has; None: unknown, or not equally many.

    torchrun counts learners. Slurm counts tasks, which are the learners if there are
    as many: a task may start several.

    Args:
        size: number of learners.
        environment: the variables of this process.
    """
    counts = _counts(size, environment)
    return counts[0] if sum(counts) == size and len(set(counts)) == 1 else None


def _counts(size: int, environment: Mapping[str, str]) -> list[int]:
    """Return the learners of each machine, as far as one can know."""
    if "LOCAL_WORLD_SIZE" in environment:
        nodes = environment.get("GROUP_WORLD_SIZE")
        local = environment["LOCAL_WORLD_SIZE"]
        return _listed(f"{local}(x{nodes})") if nodes else _filled(local, size)
    if "SLURM_PROCID" not in environment:
        return []
    if step := environment.get("SLURM_STEP_TASKS_PER_NODE"):
        return _listed(step)
    if environment.get("SLURM_NTASKS", str(size)) != str(size):
        return []
    return _filled(environment.get("SLURM_NTASKS_PER_NODE", ""), size)


def _listed(text: str) -> list[int]:
    """Return the numbers of a list in Slurm's form: "4(x2),3" is 4, 4, 3."""
    counts = []
    for part in text.split(","):
        found = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if found is None:
            return []
        counts += [int(found[1])] * int(found[2] or 1)
    return counts


def _filled(text: str, size: int) -> list[int]:
    """Return as many machines of `text` learners as `size` learners fill."""
    each = int(text) if text.isdecimal() else 0
    return [each] * (size // each) if each else []

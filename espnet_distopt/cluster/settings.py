"""Reads conf/slurm.yaml, which tells what the jobs of a recipe ask Slurm for."""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import yaml

from espnet_distopt.errors import InputError

STAGES = ("format", "stats", "lm", "train", "decode", "other")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What the jobs of a stage ask for; None leaves it to the cluster's default.

    The comments of conf/slurm.yaml say what each means.
    """

    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    time: str | None = None
    nodes: int = 1
    tasks_per_node: int = 1
    cpus_per_task: int = 1
    gpus_per_node: int = 0
    mem_per_cpu: str | None = None
    constraint: str | None = None
    extra: tuple[str, ...] = ()
    prologue: tuple[str, ...] = ()
    no_kill: bool = False
    requeues: int = 10
    signal_seconds: int = 120


KEYS = tuple(field.name for field in fields(Settings))
_LEAST_SECONDS = 60
"""What a job has at least before it is told to stop. Slurm may tell it so much earlier
than asked for."""


def read_settings(path: Path, stage: str) -> Settings:
    """Return the settings of one of `STAGES`.

    The YAML file has `key: value` lines for all stages, and may have a section for a
    stage, whose settings come before those for all.

    Raises:
        InputError: The file does not exist or is not YAML, a key is unknown or a value
            wrong, or the time is over before the job was told to stop; the message
            names file and line.
    """
    values: dict[str, Any] = {}
    sections: dict[str, dict[str, Any]] = {}
    places: dict[tuple[str, str], str] = {}
    for key, node, where in _entries(path, _compose(path), (*KEYS, *STAGES)):
        if key in STAGES:
            parts = _entries(path, node, KEYS)
            sections[key] = {k: _value(k, n, w) for k, n, w in parts}
            places |= {(key, k): w for k, _, w in parts}
        else:
            values[key] = _value(key, node, where)
            places["", key] = where
    section = sections.get(stage, {})
    merged = {**values, **section}
    settings = Settings(**{k: v for k, v in merged.items() if v is not None})
    if settings.time is not None:
        _check_time(
            settings.time,
            settings.signal_seconds,
            places[stage if "time" in section else "", "time"],
        )
    return settings


def _check_time(time: str, signal_seconds: int, where: str) -> None:
    seconds = _seconds(time)
    if 0 < seconds < signal_seconds + _LEAST_SECONDS:
        raise InputError(
            f"{where}: time: {time} is {seconds} s, and signal_seconds stops the job "
            f"{signal_seconds} s before its end: allow at least "
            f"{math.ceil((signal_seconds + _LEAST_SECONDS) / 60)} minutes, or lower "
            "signal_seconds"
        )


def _seconds(time: str) -> int:
    """Return the seconds of a time limit; 0 if there is none, as in Slurm."""
    if not time[0].isdigit():
        return 0
    days, dash, rest = time.rpartition("-")
    parts = [int(part) for part in rest.split(":")]
    if not dash and len(parts) == 1:
        return parts[0] * 60
    hours, minutes, seconds = (*parts, 0, 0)[:3]
    return ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds


def _compose(path: Path) -> yaml.Node | None:
    try:
        text = path.read_text(encoding="utf-8")
        return yaml.compose(text, Loader=yaml.SafeLoader)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: {' '.join(str(error).split())}") from None


def _entries(
    path: Path, mapping: yaml.Node | None, allowed: tuple[str, ...]
) -> list[tuple[str, yaml.Node, str]]:
    """Return the key, the value and the place `file:line` of a mapping's entries."""
    if mapping is None or _is_empty(mapping):
        return []
    if not isinstance(mapping, yaml.MappingNode):
        line = mapping.start_mark.line + 1
        raise InputError(f"{path}:{line}: expected `key: value` lines")
    found: dict[str, tuple[str, yaml.Node, str]] = {}
    for key, value in mapping.value:
        where = f"{path}:{key.start_mark.line + 1}"
        name = key.value if isinstance(key, yaml.ScalarNode) else "?"
        if name not in allowed:
            raise InputError(
                f"{where}: unknown key {name!r}, expected one of {', '.join(allowed)}"
            )
        if name in found:
            raise InputError(
                f"{where}: {name} appears twice, first in {found[name][2]}"
            )
        found[name] = (name, value, where)
    return list(found.values())


def _is_empty(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:null"


def _value(key: str, node: yaml.Node, where: str) -> Any:
    """Return a checked value, or None if the key has none."""
    if _is_empty(node):
        return None
    expected, parse = _KINDS.get(key, _TEXT)
    value = parse(node)
    if value is None:
        raise InputError(f"{where}: {key} must be {expected}")
    return value


# YAML reads 1:30:00 as the number 5400, so the text that is written is taken.
def _matching(pattern: str) -> Callable[[yaml.Node], str | None]:
    def parse(node: yaml.Node) -> str | None:
        written = isinstance(node, yaml.ScalarNode) and re.fullmatch(
            pattern, node.value
        )
        return node.value if written else None

    return parse


def _at_least(least: int, most: int) -> Callable[[yaml.Node], int | None]:
    def parse(node: yaml.Node) -> int | None:
        text = _matching(r"\d{1,6}")(node)
        return int(text) if text and least <= int(text) <= most else None

    return parse


def _truth(node: yaml.Node) -> bool | None:
    text = _matching("true|false")(node)
    return None if text is None else text == "true"


def _lines(pattern: str) -> Callable[[yaml.Node], tuple[str, ...] | None]:
    def parse(node: yaml.Node) -> tuple[str, ...] | None:
        parts = node.value if isinstance(node, yaml.SequenceNode) else [node]
        texts = [_matching(pattern)(part) for part in parts]
        found = tuple(text for text in texts if text)
        return found if len(found) == len(parts) else None

    return parse


_OWN = "|".join(
    (
        *("job-name", "chdir", "output", "error", "open-mode", "export", "partition"),
        *("account", "qos", "time", "nodes", "ntasks", "ntasks-per-node", "array"),
        *("cpus-per-task", "gpus-per-node", "mem-per-cpu", "constraint", "dependency"),
        *("kill-on-invalid-dep", "signal", "no-kill", "requeue", "no-requeue"),
    )
)
_OWN_LETTERS = "JDoepAqtNnacCdk"

_Kind = tuple[str, Callable[[yaml.Node], Any]]
_TEXT: _Kind = ("one word", _matching(r"\S+"))
_COUNT: _Kind = ("a whole number from 1", _at_least(1, 999999))
_KINDS: Mapping[str, _Kind] = {
    # Slurm takes 12:00 for minutes and seconds, which hardly anybody means.
    "time": (
        "minutes, h:mm:ss or d-hh:mm:ss (12:00 would be twelve minutes: write 12, or "
        "12:00:00 for hours)",
        _matching(r"\d+|\d+:\d\d?:\d\d?|\d+-\d+(:\d\d?){0,2}|UNLIMITED|INFINITE"),
    ),
    "nodes": _COUNT,
    "tasks_per_node": _COUNT,
    "cpus_per_task": _COUNT,
    "gpus_per_node": ("a whole number from 0", _at_least(0, 999)),
    "mem_per_cpu": (
        "megabytes, or a number with K, M, G or T",
        _matching(r"\d+[KMGT]?"),
    ),
    "extra": (
        "a list of options of sbatch, each with its dashes, and none that is a setting "
        "of its own or that the batch script needs as it sets it",
        _lines(rf"(?!--(?:{_OWN})(?:[= ]|$)|-[{_OWN_LETTERS}])-.*"),
    ),
    "prologue": ("a list of shell lines", _lines(r".+")),
    "no_kill": ("true or false", _truth),
    "requeues": ("a whole number from 0", _at_least(0, 9999)),
    "signal_seconds": ("a number of seconds, 1 to 65535", _at_least(1, 65535)),
}

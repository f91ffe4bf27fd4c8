"""Reads files in YAML: configurations, and files whose mistakes have a line."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from espnet_distopt.errors import InputError


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the mapping in a YAML file; an empty file is an empty mapping.

    Raises:
        InputError: The file does not exist, is not YAML (the message names the line),
            or is not a mapping.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    except (yaml.YAMLError, ValueError) as error:  # as of a date that is none
        raise InputError(f"{path}: {' '.join(str(error).split())}") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise InputError(f"{path}: expected `key: value` lines")
    return content


@dataclass(frozen=True)
class Lines:
    """A mapping in a YAML file, which knows its line and those of its keys.

    A value that is a mapping is a `Lines` again.
    """

    path: Path
    line: int
    values: dict[str, Any]
    lines: dict[str, int]

    def error(self, words: str, key: str | None = None) -> InputError:
        """Return an error that names the file, and the line of `key`."""
        line = self.line if key is None else self.lines.get(key, self.line)
        return InputError(f"{self.path}:{line}: {words}")

    def check_keys(self, known: Iterable[str]) -> None:
        """Raise InputError if a key is not one of `known`."""
        allowed = list(known)
        for key in self.values:
            if key not in allowed:
                raise self.error(f"{key}: unknown; allowed: {', '.join(allowed)}", key)


def read_lines(path: Path) -> Lines:
    """Return the mapping in a YAML file with the lines of its keys.

    Raises:
        InputError: the file cannot be read, is not YAML, is not a mapping, or has a key
            twice. The message names the line.
    """
    try:
        node = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise InputError(f"{path}:{line}: {error.problem}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: {' '.join(str(error).split())}") from None
    if not isinstance(node, yaml.MappingNode):
        raise InputError(f"{path}:1: expected `key: value` lines")
    return _mapping(path, node)


def _mapping(path: Path, node: yaml.MappingNode) -> Lines:
    found = Lines(path, node.start_mark.line + 1, {}, {})
    for key_node, value in node.value:
        key, line = str(key_node.value), key_node.start_mark.line + 1
        if key in found.lines:
            first = found.lines[key]
            raise InputError(f"{path}:{line}: {key}: is on line {first} already")
        found.lines[key] = line
        nested = isinstance(value, yaml.MappingNode)
        where = f"{path}:{line}: {key}"
        found.values[key] = _mapping(path, value) if nested else _plain(value, where)
    return found


def _plain(node: yaml.Node, where: str) -> Any:
    """Return the value of a node that is no mapping; errors name `where` it is."""
    loader = yaml.SafeLoader("")
    try:
        return loader.construct_object(node, deep=True)
    except yaml.MarkedYAMLError as error:
        raise InputError(f"{where}: {error.problem}") from None
    except ValueError as error:  # as of a date that is none
        raise InputError(f"{where}: {error}") from None
    finally:
        loader.dispose()

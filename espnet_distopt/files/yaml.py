"""Reads configuration files in YAML."""

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

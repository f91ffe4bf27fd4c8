"""The options of an algorithm: a mapping from YAML becomes its frozen dataclass.

Names and types are checked against the fields of the dataclass, so that a misspelt
option is an error that lists the known ones.
"""

import dataclasses
import types
from collections.abc import Mapping
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from espnet_distopt.errors import InputError

Config = TypeVar("Config")


def configure(
    config_class: type[Config], conf: Mapping[str, Any], where: str
) -> Config:
    """Return `config_class(**conf)` after checking names and types.

    Args:
        config_class: a dataclass whose fields all have defaults.
        conf: the options, name -> value.
        where: the name of the place where the options stand, for messages.

    Raises:
        InputError: an option is unknown (the message lists the known ones with their
            defaults), or a value is of the wrong type or out of range.
    """
    fields = {f.name: f for f in dataclasses.fields(config_class)}  # type: ignore[arg-type]
    hints = get_type_hints(config_class)
    for key, value in conf.items():
        if key not in fields:
            known = ", ".join(f"{n}={f.default!r}" for n, f in fields.items())
            raise InputError(
                f"{where}: unknown option '{key}'; known (with defaults): "
                f"{known or 'none'}"
            )
        if not _matches(value, hints[key]):
            raise InputError(
                f"{where}: {key} must be {_describe(hints[key])}, not {value!r}"
            )
    try:
        return config_class(**conf)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def _matches(value: Any, hint: Any) -> bool:
    origin = get_origin(hint)
    if origin is Literal:
        return value in get_args(hint)
    if origin in (Union, types.UnionType):
        return any(_matches(value, arg) for arg in get_args(hint))
    if hint is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, hint)


def _describe(hint: Any) -> str:
    origin = get_origin(hint)
    if origin is Literal:
        return "one of " + ", ".join(map(str, get_args(hint)))
    if origin in (Union, types.UnionType):
        return " or ".join(_describe(arg) for arg in get_args(hint))
    if hint is type(None):
        return "null"
    return {float: "a number", int: "an integer", bool: "true or false"}.get(
        hint, getattr(hint, "__name__", str(hint))
    )

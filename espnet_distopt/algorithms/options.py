"""What `distopt_conf` can say: options of the algorithm, and those of the session.

A mapping from YAML becomes the frozen dataclass of an algorithm's options.
Names and types are checked against the fields of the dataclass, so that a misspelt
option is an error that lists the known ones.
"""

import dataclasses
import math
import types
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import (
    Any,
    Literal,
    Self,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from espnet_distopt.errors import InputError, did_you_mean

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
            meant = did_you_mean(str(key), fields) or "."
            raise InputError(
                f"{where}: unknown option '{key}'{meant} "
                f"Known, with their defaults: {known or 'none'}"
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


@dataclass(frozen=True)
class SessionConfig:
    """The options of a session itself, which it has with any algorithm.

    Attributes:
        heartbeat_seconds: seconds of silence after which a learner counts as lost, at
            least 1. It is for the process group; another driver has its own.
        repeat_begun: whether another learner trains on the item of a `WorkQueue` that a
            learner was training on when it died. If so, the item may be trained on
            twice; if not, it may be trained on not at all.

    Raises:
        InputError: a value is impossible.
    """

    heartbeat_seconds: float = 30
    repeat_begun: bool = False

    def __post_init__(self) -> None:
        seconds = self.heartbeat_seconds
        number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
        if not number or not 1 <= seconds < math.inf:
            raise InputError(
                f"heartbeat_seconds must be at least 1, a number, not {seconds!r}"
            )
        if not isinstance(self.repeat_begun, bool):
            raise InputError(
                f"repeat_begun must be true or false, not {self.repeat_begun!r}"
            )

    @classmethod
    def split(cls, conf: Mapping[str, Any]) -> tuple[Self, dict[str, Any]]:
        """Return the options of the session in `conf`, and those of the algorithm.

        Raises:
            InputError: an option of the session is impossible.
        """
        known = {field.name for field in fields(cls)}
        own = {name: value for name, value in conf.items() if name in known}
        rest = {name: value for name, value in conf.items() if name not in known}
        return cls(**own), rest


def algorithm_options(conf: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of the algorithm, and check those of the session."""
    return SessionConfig.split(conf)[1]

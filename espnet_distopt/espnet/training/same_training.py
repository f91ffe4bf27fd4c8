"""Refuses to go on with a training that would learn something else now.

ESPnet goes on from every checkpoint whose shapes fit. With another list of as many
tokens each output would then stand for another token, and with another frontend the
inputs would be others. A training that has reached its last epoch would learn nothing
and still take the new options into its config.yaml, by which the model decodes.

So a training notes what it is when it begins. config.yaml would not do: ESPnet writes
into it what it has derived from the options.
"""

import argparse
import hashlib
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import yaml

from espnet_distopt.errors import InputError
from espnet_distopt.files.writing import explain_failed_write, write_text
from espnet_distopt.files.yaml import read_yaml

BEGUN = "begun.yaml"
"""The file in a training's directory that tells with what it has begun."""
_OF_TRAINING = {"model", "loss", "losses", "specaug", "preprocessor"}
"""Choices of ESPnet's tasks that may change while a model is trained: the loss, and how
the data are changed at random."""
_OF_MODEL = (
    *("input_size", "odim", "encoder_conf", "joint_net_conf", "adapter_conf"),
    "line_least_rows",
)
"""Further options that say what a model computes, where a task has them."""
_OF_OPTIMIZER = ("optim", "optim_conf", "scheduler", "scheduler_conf")
_NO_MATTER = re.compile("drop|stochastic_depth|flash_attn|checkpoint")
"""In the names of those options of a network that change nothing when it decodes."""


def keep_to_one_training(
    args: argparse.Namespace,
    choices: Iterable[Any],
    sources: Sequence[Path],
    elsewhere: str,
) -> None:
    """Note what a training is, or refuse to go on with one that is another.

    Its tokens, what its model computes and what it learns must stay the same. What only
    training has, as the loss and dropout, may change, and so may paths. Data may be
    added, so other data are told of, and so is another rate: ESPnet goes on with what
    the checkpoint has of optimizer and schedule. Where a training has no note, as one
    of stock ESPnet, it gets one now.

    Args:
        args: ESPnet's options, as they were given.
        choices: The `class_choices_list` of its task.
        sources: The files with what it learns, as a language model's text; may be none.
        elsewhere: The option of a recipe that names another directory.

    Raises:
        InputError: The training in `output_dir` is another one, or a file cannot be
            read.
    """
    output_dir, data = Path(args.output_dir), _data(args)
    note = output_dir / BEGUN
    found: dict[str, Any] = {
        "tokens": _digest_of_tokens(args),
        "model": _model_options(args, choices),
        "learned": digest_of(sources),
        "data": digest_of(data),
        "optim": _as_yaml({name: getattr(args, name, None) for name in _OF_OPTIMIZER}),
    }
    checkpoint = output_dir / "checkpoint.pth"
    if not args.resume or not checkpoint.exists() or not note.exists():
        with explain_failed_write(note):
            note.parent.mkdir(parents=True, exist_ok=True)
            write_text(note, yaml.safe_dump(found))
        return
    begun = read_yaml(note)
    if begun["tokens"] != found["tokens"]:
        what = f"has other tokens than {_name_of_tokens(args)}"
    elif change := _change(begun["model"], found["model"]):
        what = f"has begun with {change}"
    elif begun["learned"] != found["learned"]:
        what = f"learns from other content than {', '.join(map(str, sources))}"
    else:
        if begun["data"] != found["data"]:
            print(
                f"{output_dir}: the training there has begun with other data than "
                f"{', '.join(map(str, data))}, and goes on with these",
                flush=True,
            )
        if change := _change(begun.get("optim", found["optim"]), found["optim"]):
            print(
                f"{output_dir}: the training there has begun with {change}: it goes on "
                "with what its checkpoint has; to train its model by other options, "
                "begin anew from it, in another directory with --init_param",
                flush=True,
            )
        return
    raise InputError(
        f"{output_dir}: the training there {what}: remove the directory to train "
        f"anew, or train in another one (in a recipe: {elsewhere})"
    )


def describe_tokens(args: argparse.Namespace) -> str:
    """Return in words the tokens that this machine has, with their digest.

    Raises:
        InputError: The token list cannot be read, or is empty.
    """
    digest = _digest_of_tokens(args)
    return f"{_name_of_tokens(args)} of digest {digest[:12]}" if digest else "no tokens"


def digest_of(files: Sequence[Path]) -> str:
    """Return the SHA-256 of the content of files in hexadecimal digits."""
    digest = hashlib.sha256()
    try:
        for file in files:
            digest.update(file.read_bytes())
    except OSError as error:
        raise InputError(f"{error.filename}: {error.strerror}") from None
    return digest.hexdigest()


def _data(args: argparse.Namespace) -> list[Path]:
    """Return the files by which the data are known: texts, and lists of lengths.

    Directories, as of several iterators, are left out.
    """
    data = args.train_data_path_and_name_and_type or ()
    named = [path for path, _, kind in data if kind == "text"]
    paths = map(Path, (*named, *(args.train_shape_file or ())))
    return [path for path in paths if path.is_file()]


def _digest_of_tokens(args: argparse.Namespace) -> str | None:
    """Return the digest of the tokens; None for a task without any."""
    tokens = getattr(args, "token_list", None)
    if tokens is None:
        return None
    return hashlib.sha256("\n".join(_read(tokens)).encode()).hexdigest()


def _name_of_tokens(args: argparse.Namespace) -> str:
    tokens = args.token_list
    return tokens if isinstance(tokens, str) else "--token_list"


def _read(token_list: str | Sequence[str]) -> Sequence[str]:
    """Return the tokens as ESPnet reads them."""
    if not isinstance(token_list, str):
        return token_list
    try:
        with open(token_list, encoding="utf-8") as file:
            tokens = [line.rstrip() for line in file]
    except OSError as error:
        raise InputError(f"{token_list}: {error.strerror}") from None
    if not any(tokens):
        raise InputError(
            f"{token_list}: no tokens: make the list again (stage 5 of a recipe)"
        )
    return tokens


def _model_options(args: argparse.Namespace, choices: Iterable[Any]) -> dict[str, Any]:
    """Return the options that say what a model computes, as YAML has them."""
    kinds = [each.name for each in choices if each.name not in _OF_TRAINING]
    names = dict.fromkeys((*_OF_MODEL, *kinds, *(f"{kind}_conf" for kind in kinds)))
    given = {name: getattr(args, name) for name in names if hasattr(args, name)}
    return _as_yaml(_that_matter(given))


def _as_yaml(options: dict[str, Any]) -> dict[str, Any]:
    """Return options as a note has them."""
    read: dict[str, Any] = yaml.safe_load(yaml.safe_dump(options))
    return read


def _that_matter(options: dict[str, Any]) -> dict[str, Any]:
    """Leave out options of no matter, and paths: a directory may have moved."""
    return {
        key: _that_matter(value) if isinstance(value, dict) else value
        for key, value in options.items()
        if not _NO_MATTER.search(key) and not (isinstance(value, str) and "/" in value)
    }


def _change(begun: dict[str, Any], options: dict[str, Any]) -> str:
    """Return in words the first option of a model that has changed, "" if none has."""
    for name in {**begun, **options}:
        was, now = begun.get(name), options.get(name)
        if (was or None) != (now or None):  # There are several words for nothing.
            return _difference(name, was, now)
    return ""


def _difference(name: str, was: Any, now: Any) -> str:
    """Return in words how an option, or one in a group of options, has changed."""
    if isinstance(was, dict) and isinstance(now, dict):
        pairs = {
            key: (was.get(key, "its default"), now.get(key, "its default"))
            for key in {**was, **now}
        }
        key = next(key for key, (old, new) in pairs.items() if old != new)
        return _difference(f"{name}: {key}", *pairs[key])
    was, now = ("none" if value is None else value for value in (was, now))
    return f"{name}: {was}, and the options say {now}"

"""Refuses to go on with a training that would learn something else now.

ESPnet goes on from every checkpoint whose shapes fit. With another list of as many
tokens each output would then stand for another token, and with another frontend the
inputs would be others. A training that has reached its last epoch would learn nothing
and still take the new options into its config.yaml, by which the model decodes.
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
from espnet_distopt.hmm.alignments import require_states

_OF_TRAINING = {"model", "loss", "losses", "specaug", "preprocessor"}
"""Choices of ESPnet's tasks that may change while a model is trained: the loss, and how
the data are changed at random."""
_OF_MODEL = (
    *("input_size", "odim", "encoder_conf", "joint_net_conf", "adapter_conf"),
    "line_least_rows",
)
"""Further options that say what a model computes, where a task has them."""
_NO_MATTER = re.compile("drop|stochastic_depth|flash_attn|checkpoint")
"""In the names of those options of a network that change nothing when it decodes."""
BEGUN = "model_options.yaml"
"""The file that tells with which options of the model a training has begun."""
LEARNED = "learned.sha256"
"""The file that tells which text or labels the training in its directory learns."""
DATA = "data.sha256"
"""The file that tells on which data the training in its directory has begun."""


def refuse_other_tokens(args: argparse.Namespace, elsewhere: str) -> None:
    """Refuse a token list other than that of the training that ESPnet would go on with.

    Args:
        args: ESPnet's options. Tasks without a `token_list` are never refused.
        elsewhere: The option of a recipe that names another directory.

    Raises:
        InputError: The training in `output_dir` has other tokens.
    """
    wanted = getattr(args, "token_list", None)
    config = Path(args.output_dir) / "config.yaml"
    if wanted is None or not _goes_on(args) or not config.exists():
        return
    earlier = read_yaml(config).get("token_list")
    if isinstance(earlier, list) and _own(args, earlier) != _own(args, _read(wanted)):
        than = wanted if isinstance(wanted, str) else "--token_list"
        raise _other(args, f"has other tokens than {than}", elsewhere)


def describe_tokens(args: argparse.Namespace) -> str:
    """Return in words the tokens that this machine has, with their digest.

    Args:
        args: ESPnet's options.

    Raises:
        InputError: The token list cannot be read.
    """
    tokens = getattr(args, "token_list", None)
    if tokens is None:
        return "no tokens"
    digest = hashlib.sha256("\n".join(_read(tokens)).encode()).hexdigest()
    named = tokens if isinstance(tokens, str) else "--token_list"
    return f"{named} of digest {digest[:12]}"


def keep_to_one_model(
    args: argparse.Namespace, choices: Iterable[Any], elsewhere: str
) -> None:
    """Note what a model computes, and refuse to go on with one that differs.

    Another length of the windows, for example, changes no shape. What only training
    has, as the optimizer, the loss and dropout, may change, and so may paths. Where a
    training has no note, as one of stock ESPnet, it gets one now. config.yaml would not
    do: ESPnet writes into it what it has derived from the options.

    Args:
        args: ESPnet's options, as they were given.
        choices: The `class_choices_list` of its task.
        elsewhere: The option of a recipe that names another directory.

    Raises:
        InputError: The training in `output_dir` has begun with other options.
    """
    note, options = Path(args.output_dir) / BEGUN, _model_options(args, choices)
    if not _goes_on(args) or not note.exists():
        _write(note, yaml.safe_dump(options))
        return
    begun = read_yaml(note)
    for name in {**begun, **options}:
        was, now = begun.get(name), options.get(name)
        if (was or None) != (now or None):  # There are several words for nothing.
            what = f"has begun with {_difference(name, was, now)}"
            raise _other(args, what, elsewhere)


def keep_to_one_source(
    args: argparse.Namespace, files: Sequence[Path], elsewhere: str
) -> None:
    """Note what a training learns, and refuse to go on with anything else.

    Args:
        args: ESPnet's options.
        files: The text of a language model, or `label_files`; none means no check.
        elsewhere: The option of a recipe that names another directory.

    Raises:
        InputError: The training in `output_dir` learns other content, or a file cannot
            be read.
    """
    if not files:
        return
    found, note = _digest(files), Path(args.output_dir) / LEARNED
    if not _goes_on(args):
        _write(note, found)
    elif _differs(note, found):
        names = ", ".join(map(str, files))
        raise _other(args, f"learns from other content than {names}", elsewhere)


def tell_of_other_data(args: argparse.Namespace) -> None:
    """Note on which data a training begins, and tell if it goes on with others.

    Data may be added to a training, so this refuses nothing.

    Args:
        args: ESPnet's options. Directories, as of several iterators, are left out.
    """
    data = args.train_data_path_and_name_and_type or ()
    named = [path for path, _, kind in data if kind == "text"]
    paths = map(Path, (*named, *(args.train_shape_file or ())))
    files = [path for path in paths if path.is_file()]
    found, note = _digest(files), Path(args.output_dir) / DATA
    if not _goes_on(args) or not note.exists():
        _write(note, found)
    elif _differs(note, found):
        names = ", ".join(map(str, files))
        print(
            f"{args.output_dir}: the training there has begun with other data than "
            f"{names}, and goes on with these",
            flush=True,
        )


def label_files(args: argparse.Namespace) -> list[Path]:
    """Return the files that sum up the frame labels that a hybrid system learns."""
    data = args.train_data_path_and_name_and_type or ()
    labels = [Path(path) for path, name, _ in data if name == "states"]
    return [path.with_name("counts") for path in labels]


def refuse_other_states(args: argparse.Namespace) -> None:
    """Refuse frame labels whose pdfs are not the tokens, one by one.

    Args:
        args: ESPnet's options. Tasks without frame labels are never refused.

    Raises:
        InputError: The labels are numbers of other states than `token_list` names.
    """
    for counts in label_files(args):
        named = args.token_list if isinstance(args.token_list, str) else "token_list"
        require_states(counts.parent, _read(args.token_list), named)


def refuse_other_labels(exp: Path, labels: Path) -> None:
    """Refuse labels other than those that a hybrid system has learned.

    Args:
        exp: The directory of its training.
        labels: The directory of the labels, which has `counts`.

    Raises:
        InputError: The labels are not those of the training.
    """
    counts = labels / "counts"
    if _differs(exp / LEARNED, _digest([counts])):
        raise InputError(
            f"{exp}: the network there has learned other labels than those that "
            f"{counts} sums up: remove the directory, and run stage 11 again"
        )


def _model_options(args: argparse.Namespace, choices: Iterable[Any]) -> dict[str, Any]:
    """Return the options that say what a model computes, as YAML has them."""
    kinds = [each.name for each in choices if each.name not in _OF_TRAINING]
    names = dict.fromkeys((*_OF_MODEL, *kinds, *(f"{kind}_conf" for kind in kinds)))
    given = {name: getattr(args, name) for name in names if hasattr(args, name)}
    options: dict[str, Any] = yaml.safe_load(yaml.safe_dump(_that_matter(given)))
    return options


def _that_matter(options: dict[str, Any]) -> dict[str, Any]:
    """Leave out options of no matter, and paths: a directory may have moved."""
    return {
        key: _that_matter(value) if isinstance(value, dict) else value
        for key, value in options.items()
        if not _NO_MATTER.search(key) and not (isinstance(value, str) and "/" in value)
    }


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


def _digest(files: Sequence[Path]) -> str:
    digest = hashlib.sha256()
    try:
        for file in files:
            digest.update(file.read_bytes())
    except OSError as error:
        raise InputError(f"{error.filename}: {error.strerror}") from None
    return f"{digest.hexdigest()}\n"


def _write(note: Path, found: str) -> None:
    with explain_failed_write(note):
        note.parent.mkdir(parents=True, exist_ok=True)
        write_text(note, found)


def _differs(note: Path, found: str) -> bool:
    return note.exists() and note.read_text(encoding="utf-8") != found


def _goes_on(args: argparse.Namespace) -> bool:
    """Tell whether ESPnet goes on with an earlier training."""
    return bool(args.resume) and (Path(args.output_dir) / "checkpoint.pth").exists()


def _read(token_list: str | Sequence[str]) -> Sequence[str]:
    """Return the tokens as ESPnet reads them."""
    if not isinstance(token_list, str):
        return token_list
    try:
        with open(token_list, encoding="utf-8") as file:
            return [line.rstrip() for line in file]
    except OSError as error:
        raise InputError(f"{token_list}: {error.strerror}") from None


def _own(args: argparse.Namespace, tokens: Sequence[str]) -> list[str]:
    """Return the tokens without those that ESPnet's model adds to the list itself."""
    conf = getattr(args, "model_conf", None) or {}
    durations = conf.get("transducer_multi_blank_durations") or []
    added = {f"<blank{duration}>" for duration in durations}
    return [token for token in tokens if token not in added]


def _other(args: argparse.Namespace, what: str, elsewhere: str) -> InputError:
    return InputError(
        f"{args.output_dir}: the training there {what}: remove the directory to "
        f"train anew, or train in another one (in a recipe: {elsewhere})"
    )

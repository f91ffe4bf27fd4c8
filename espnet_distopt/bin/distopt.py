"""Run a command of the package by its name: `distopt status exp/asr_*`.

`python -m espnet_distopt NAME` is the same where the package is not installed.
"""

import ast
import importlib
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from espnet_distopt.bin import WINGS
from espnet_distopt.errors import InputError, did_you_mean, one_line_errors

COMPLETION = """\
_distopt() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} words=
    if [ "$COMP_CWORD" = 1 ]; then
        words="{names} --help --version"
    elif [[ $word = -* ]]; then
        words=$(distopt "${{COMP_WORDS[1]}}" --help 2>/dev/null |
            grep -oE -- '--[a-z][a-z_-]*' | sort -u)
    fi
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
}}
complete -o default -F _distopt distopt
"""
"""A script for bash. With no completions of its own, bash completes names of files."""


@one_line_errors
def main(cmd: Sequence[str] | None = None) -> None:
    """Run the command that the first argument names, with the arguments behind it."""
    name, *rest = (sys.argv[1:] if cmd is None else cmd) or ["--help"]
    known = {name: where for group in commands().values() for name, where in group}
    if name in ("-h", "--help"):
        print(_help(), end="")
    elif name == "--version":
        print(f"distopt {_version()}")
    elif name == "--completion":
        print(COMPLETION.format(names=" ".join(known)), end="")
    elif name in known:
        # The command reads its own arguments, and its help shows its own name.
        sys.argv = [f"distopt {name}", *rest]
        module, function = known[name]
        getattr(importlib.import_module(module), function)()
    else:
        meant = did_you_mean(name, known)
        raise InputError(f"no command {name}: `distopt --help` lists them{meant}")


Place = tuple[str, str]
"""The module of a command, and its function there."""


def commands() -> dict[str, list[tuple[str, Place]]]:
    """Return what commands are for -> their names and places, in the help's order.

    No command is imported, which takes seconds.
    """
    found: dict[str, list[tuple[str, Place]]] = {}
    for wing in WINGS:
        for group, entries in importlib.import_module(wing).COMMANDS.items():
            for entry in entries:
                module, _, name = entry.rpartition(":")
                function = f"{name}_command" if module else "main"
                place = f"{wing}.{module or name}", function
                found.setdefault(group, []).append((name, place))
    return found


def _help() -> str:
    """Return the list of commands."""
    lines = [
        "usage: distopt COMMAND ARGUMENTS...",
        "",
        "`distopt COMMAND --help` shows a command's options. For completion in bash:",
        'eval "$(distopt --completion)"',
    ]
    for group, members in commands().items():
        lines += [
            "",
            f"{group}:",
            *(f"  {n:17} {_summary(place)}" for n, place in members),
        ]
    return "\n".join(lines) + "\n"


def _summary(place: Place) -> str:
    """Return the first line of a command's docstring."""
    wing, _, module = place[0].rpartition(".")
    folder = importlib.import_module(wing).__path__[0]
    tree = ast.parse(Path(folder, f"{module}.py").read_text(encoding="utf-8"))
    functions = {n.name: n for n in tree.body if isinstance(n, ast.FunctionDef)}
    documented = tree if place[1] == "main" else functions[place[1]]
    return (ast.get_docstring(documented) or "").partition("\n")[0].rstrip(".")


def _version() -> str:
    try:
        return version("espnet_distopt")
    except PackageNotFoundError:
        return "(not installed)"


if __name__ == "__main__":
    main()

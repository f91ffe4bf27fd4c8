"""Run a command of the package by its name: `distopt status exp/asr_*`.

`distopt NAME ARGUMENTS...` is `python -m WING.NAME ARGUMENTS...`, where WING is the
folder of the command, as `espnet_distopt.bin`.
"""

import ast
import difflib
import importlib
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from espnet_distopt.bin import WINGS
from espnet_distopt.errors import InputError, one_line_errors

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
    modules = {name: module for group in commands().values() for name, module in group}
    if name in ("-h", "--help"):
        print(_help(), end="")
    elif name == "--version":
        print(f"distopt {_version()}")
    elif name == "--completion":
        print(COMPLETION.format(names=" ".join(modules)), end="")
    elif name in modules:
        # The command reads its own arguments, and its help shows its own name.
        sys.argv = [f"distopt {name}", *rest]
        importlib.import_module(modules[name]).main()
    else:
        close = difflib.get_close_matches(name, modules, n=1)
        meant = f"did you mean {close[0]}? " if close else ""
        raise InputError(f"no command {name}: {meant}`distopt --help` lists them")


def commands() -> dict[str, list[tuple[str, str]]]:
    """Return what commands are for -> their names and modules, in the help's order.

    No command is imported, which takes seconds.
    """
    found: dict[str, list[tuple[str, str]]] = {}
    for wing in WINGS:
        for group, names in importlib.import_module(wing).COMMANDS.items():
            found.setdefault(group, []).extend((n, f"{wing}.{n}") for n in names)
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
        lines += ["", f"{group}:", *(f"  {n:15} {_summary(m)}" for n, m in members)]
    return "\n".join(lines) + "\n"


def _summary(module: str) -> str:
    """Return the first line of a command's docstring."""
    folder = importlib.import_module(module.rpartition(".")[0]).__path__[0]
    source = Path(folder, f"{module.rpartition('.')[2]}.py").read_text(encoding="utf-8")
    return (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0].rstrip(".")


def _version() -> str:
    try:
        return version("espnet_distopt")
    except PackageNotFoundError:
        return "(not installed)"


if __name__ == "__main__":
    main()

"""Run a command of the package by its name: `distopt status exp/asr_*`.

`distopt NAME ARGUMENTS...` is `python -m espnet_distopt.bin.NAME ARGUMENTS...`.
"""

import ast
import difflib
import importlib
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from espnet_distopt.errors import InputError, one_line_errors

GROUPS = {
    "begin": ("doctor", "recipe", "calibrate", "simulate"),
    "train": (
        "launch",
        "slurm",
        "asr_train",
        "espnet_train",
        "ocr_train",
        "hybrid_train",
        "lm_train",
        "check",
    ),
    "watch": ("status", "report"),
    "decode and score": (
        "asr_inference",
        "ctc_inference",
        "ocr_inference",
        "hybrid_inference",
        "hybrid_scores",
        "ctc_align",
        "score",
        "score_hub5",
        "score_lines",
        "error_sheet",
        "wer_report",
    ),
    "prepare data": (
        "prepare_swbd",
        "prepare_fsdd",
        "prepare_iam",
        "prepare_lines",
        "make_mini_swbd",
        "make_mini_ocr",
        "make_tokens",
        "make_lexicon",
        "make_lang",
        "make_ngram",
        "make_features",
        "speech_shapes",
        "gmm_train",
        "import_alignments",
        "format_data",
        "format_lines",
    ),
}
"""The commands, in the order in which the help shows them."""

NAMES = [name for group in GROUPS.values() for name in group]

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
    if name in ("-h", "--help"):
        print(_help(), end="")
    elif name == "--version":
        print(f"distopt {_version()}")
    elif name == "--completion":
        print(COMPLETION.format(names=" ".join(NAMES)), end="")
    elif name in NAMES:
        # The command reads its own arguments, and its help shows its own name.
        sys.argv = [f"distopt {name}", *rest]
        importlib.import_module(f"espnet_distopt.bin.{name}").main()
    else:
        close = difflib.get_close_matches(name, NAMES, n=1)
        meant = f"did you mean {close[0]}? " if close else ""
        raise InputError(f"no command {name}: {meant}`distopt --help` lists them")


def _help() -> str:
    """Return the list of commands; none is imported for it, which takes seconds."""
    lines = [
        "usage: distopt COMMAND ARGUMENTS...",
        "",
        "`distopt COMMAND --help` shows a command's options. For completion in bash:",
        'eval "$(distopt --completion)"',
    ]
    for group, names in GROUPS.items():
        lines += ["", f"{group}:", *(f"  {n:15} {_summary(n)}" for n in names)]
    return "\n".join(lines) + "\n"


def _summary(name: str) -> str:
    """Return the first line of a command's docstring."""
    source = Path(__file__).with_name(f"{name}.py").read_text(encoding="utf-8")
    return (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0].rstrip(".")


def _version() -> str:
    try:
        return version("espnet_distopt")
    except PackageNotFoundError:
        return "(not installed)"


if __name__ == "__main__":
    main()

"""The command `distopt` knows every command of the package, and hands over to it."""

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

from espnet_distopt.bin import WINGS, distopt, status

NAMES = [name for group in distopt.commands().values() for name, _ in group]
FOLDERS = [Path(importlib.import_module(wing).__path__[0]) for wing in WINGS]
FILES = {p.stem: p.read_text() for f in FOLDERS for p in f.glob("*.py")}
COMMANDS = {name for name, text in FILES.items() if "__main__" in text}
COMMANDS |= set(re.findall(r"^def (\w+)_command\(", "".join(FILES.values()), re.M))


@pytest.fixture(autouse=True)
def own_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["distopt"])


def test_every_command_is_in_one_group() -> None:
    assert len(NAMES) == len(set(NAMES))
    alone = {"distopt", "python"}  # Each is a command of its own.
    assert set(NAMES) == COMMANDS - alone


def test_the_help_has_a_line_for_each(capsys: pytest.CaptureFixture[str]) -> None:
    distopt.main([])
    lines = capsys.readouterr().out.splitlines()
    for name in NAMES:
        (line,) = (each for each in lines if each.startswith(f"  {name} "))
        assert len(line.split(maxsplit=1)[1]) > 20


def test_the_arguments_are_the_commands_own(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with pytest.raises(SystemExit) as as_module:
        status.main([str(tmp_path)])
    expected = capsys.readouterr()
    with pytest.raises(SystemExit) as by_name:
        distopt.main(["status", str(tmp_path)])
    assert by_name.value.code == as_module.value.code
    assert capsys.readouterr() == expected
    assert "skipped" in expected.err


def test_a_commands_help_shows_how_it_was_called(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        distopt.main(["score", "--help"])
    assert capsys.readouterr().out.startswith("usage: distopt score ")


@pytest.mark.parametrize(
    ("name", "advice"), [("statsu", "; did you mean status?"), ("zzzzz", "")]
)
def test_an_unknown_command(
    name: str, advice: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        distopt.main([name])
    assert ended.value.code == 2
    said = f"error: no command {name}: `distopt --help` lists them{advice}\n"
    assert capsys.readouterr().err == said


# `distopt` is a function here, as the package need not be installed.
COMPLETE = """
distopt() {{ {python} -m espnet_distopt.bin.distopt "$@"; }}
eval "$(distopt --completion)"
COMP_WORDS=({words}) COMP_CWORD={last}
_distopt
echo "${{COMPREPLY[*]}}"
"""


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("distopt", "score_"), "score_hub5 score_lines"),
        (("distopt", "recipe", "--h"), "--help"),
        (("distopt", "status", "--w"), "--watch"),
        (("distopt", "status", "exp"), ""),
    ],
)
def test_bash_completes(words: tuple[str, ...], expected: str) -> None:
    script = COMPLETE.format(
        python=sys.executable, words=" ".join(words), last=len(words) - 1
    )
    found = subprocess.check_output(["bash", "-c", script], text=True, timeout=60)
    assert found.strip() == expected

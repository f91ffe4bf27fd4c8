"""These tests cover the shell scripts: options, logs, and shellcheck over all."""

import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.recipes.toy_recipe import ROOT, Recipe

RECIPES = sorted(path.parent for path in ROOT.glob("egs/*/*/run.sh"))
SCRIPTS = [
    *ROOT.glob("local/*.sh"),
    *ROOT.glob("tools/*.sh"),
    *ROOT.glob("egs/**/*.sh"),
    ROOT / ".ci" / "run",
]

OPTIONS = """\
#!/usr/bin/env bash
set -euo pipefail
hidden=1
# options
stage=1        # first stage
use_it=false   # whether
name=          # any text
# end of options
. {root}/local/parse_options.sh
echo "$stage|$use_it|$name|$hidden|$*"
"""


def run(*command: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture
def options(tmp_path: Path) -> Path:
    script = tmp_path / "script.sh"
    script.write_text(OPTIONS.format(root=ROOT))
    script.chmod(0o755)
    return script


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "1|false||1|"),
        (["--stage", "3", "--name", "a b"], "3|false|a b|1|"),
        (["--use-it", "true", "--name", "--x"], "1|true|--x|1|"),
        (["--stage", "2", "--stage", "4", "--name", ""], "4|false||1|"),
    ],
)
def test_parse_options(options: Path, arguments: list[str], expected: str) -> None:
    assert run(options, *arguments).stdout == expected + "\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--hidden", "2"], "unknown option --hidden"),
        (["--PATH", "x"], "unknown option --PATH"),
        (["--stage=3"], "unknown option --stage=3"),
        (["--", "x"], "unexpected argument '--', expected --name value"),
        (["--name"], "--name needs a value"),
        (["--use_it", "yes"], "--use_it must be true or false, not 'yes'"),
        (["--stage", "-1"], "--stage must be a whole number, not '-1'"),
    ],
)
def test_parse_options_errors(
    options: Path, arguments: list[str], message: str
) -> None:
    done = run(options, *arguments)
    assert done.returncode == 2
    assert done.stderr == f"error: script.sh: {message} (see --help)\n"


def test_help_is_the_block_of_options(options: Path) -> None:
    done = run(options, "--help")
    assert done.returncode == 0
    assert "  --stage 1                     # first stage\n" in done.stdout
    assert "hidden" not in done.stdout


def test_help_has_the_defaults_of_the_recipe(options: Path) -> None:
    """A recipe's run.sh gives its own options first."""
    done = run(options, "--stage", "3", "--name", "two words", "--help")
    assert "  --stage 3                     # first stage\n" in done.stdout
    assert '  --name "two words"            # any text\n' in done.stdout
    assert "  --use_it false                # whether\n" in done.stdout


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        (
            "error: no such set\nTraceback (most recent call last):\n",
            "error: no such set",
        ),
        ("x\nrun.py: error: argument --x\n", "run.py: error: argument --x"),
        (
            "Traceback (most recent call last):\n  File a\n    raise\nKeyError: 'a'\n"
            "\nTraceback (most recent call last):\n  File b\nValueError: later\n",
            "KeyError: 'a'",
        ),
        (
            "[rank1]: Traceback (most recent call last):\n[rank1]:  f\n[rank1]: E: x\n",
            "E: x",
        ),
        ("nothing to see\n", ""),
    ],
)
def test_first_error(tmp_path: Path, log: str, expected: str) -> None:
    (tmp_path / "log").write_text(log)
    done = run("bash", "-c", f". {ROOT}/local/log.sh; first_error {tmp_path}/log")
    assert done.stdout.rstrip("\n") == expected


@pytest.mark.parametrize("recipe_directory", RECIPES, ids=lambda path: path.parent.name)
def test_every_option_of_a_recipe_is_known(recipe_directory: Path) -> None:
    done = run(recipe_directory / "run.sh", "--help")
    assert done.returncode == 0, done.stderr
    assert "--stop_stage" in done.stdout
    assert len((recipe_directory / "run.sh").read_text().splitlines()) <= 60


@pytest.mark.parametrize("recipe_directory", RECIPES, ids=lambda path: path.parent.name)
def test_a_recipe_says_by_which_words_it_was_started(
    recipe_directory: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "egs" / "toy" / "asr1"
    copy.mkdir(parents=True)
    shutil.copy(recipe_directory / "run.sh", copy)
    asr = tmp_path / "local" / "asr.sh"
    asr.parent.mkdir()
    asr.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    asr.chmod(0o755)
    given = ["--distopt", "none allreduce", "--slow", "", "--note", "it's"]
    words = run(copy / "run.sh", *given).stdout.splitlines()
    assert shlex.split(words[words.index("--command") + 1]) == ["./run.sh", *given]


def test_fsdd_joins_its_test_sets(recipe: Recipe) -> None:
    script = ROOT / "egs" / "fsdd" / "asr1" / "local" / "data.sh"
    done = recipe.run(str(script), FSDD="/some/where")
    assert done.returncode == 0, done.stderr
    assert recipe.calls()[0][2:] == ["--fsdd", "/some/where", "--out", "data"]
    joined = recipe.directory / "data" / "test"
    assert (joined / "text").read_text() == (
        "ann-test_unseen-1 ann\njim-test_known-1 jim\n"
    )
    assert (joined / "spk2utt").read_text() == (
        "ann ann-test_unseen-1\njim jim-test_known-1\n"
    )


def test_fsdd_keeps_no_test_set_beside_another_training_set(recipe: Recipe) -> None:
    script = str(ROOT / "egs" / "fsdd" / "asr1" / "local" / "data.sh")
    assert recipe.run(script, FSDD="/some/where").returncode == 0
    done = recipe.run(script, FSDD="/some/where", STUB_FAIL="prepare_fsdd")
    assert done.returncode != 0
    assert not (recipe.directory / "data" / "test").exists()


def test_which_python(tmp_path: Path) -> None:
    show = f'MAIN_ROOT={tmp_path}; . {ROOT}/local/path.sh; echo "$python"'
    made = tmp_path / ".venv" / "bin" / "python"
    assert run("bash", "-c", show, PYTHON="").stdout == "python3\n"
    made.parent.mkdir(parents=True)
    made.symlink_to("/bin/true")
    assert run("bash", "-c", show, PYTHON="").stdout == f"{made}\n"
    assert run("bash", "-c", show, PYTHON="mine").stdout == "mine\n"


def test_an_empty_device_list_is_unset() -> None:
    show = (
        f'MAIN_ROOT=/x; . {ROOT}/local/path.sh; echo "${{CUDA_VISIBLE_DEVICES-unset}}"'
    )
    assert run("bash", "-c", show, CUDA_VISIBLE_DEVICES="").stdout == "unset\n"
    assert run("bash", "-c", show, CUDA_VISIBLE_DEVICES="1").stdout == "1\n"


def test_shellcheck() -> None:
    shellcheck = shutil.which("shellcheck") or ROOT / ".venv" / "bin" / "shellcheck"
    if not Path(shellcheck).exists() and "CI" not in os.environ:
        pytest.skip("shellcheck is not installed")
    done = run(shellcheck, "-x", "-P", "SCRIPTDIR", *SCRIPTS)
    assert done.returncode == 0, done.stdout

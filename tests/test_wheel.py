"""The sdist and the wheel hold all that they should, and run where they are installed.

The environment is new. It sees the heavy packages of this one through a path file, but
not the checkout, which this one has as an editable installation.
"""

import json
import os
import re
import shutil
import site
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from espnet_distopt.files.tables import read_table
from espnet_distopt.recipes.corpora.kaldi.tokens import characters, read_characters
from espnet_distopt.recipes.hmm.ngram import read_arpa
from tests.recipes.references import named_files

ROOT = Path(__file__).resolve().parents[1]

# Builds are in one process for each, as pip has it: setuptools keeps global state.
BUILD = "from setuptools import build_meta as b; print(b.build_{}('..'))"

pytestmark = pytest.mark.processes


def run(*command: str | Path, cwd: Path, fails: bool = False) -> str:
    """Run a command outside of the checkout, and return what it prints."""
    known = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    done = subprocess.run(
        command,
        cwd=cwd,
        env=known | {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert fails == bool(done.returncode), done.stdout + done.stderr
    return done.stdout + done.stderr


def tracked_copy(target: Path) -> None:
    """Copy what a commit of the working tree would hold, links as links."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.check_output(listed, cwd=ROOT, text=True).split("\0")
    for name in filter(None, names):
        if name.startswith(("tests/", "benchmarks/", "docs/")):
            continue  # Neither the sdist nor the wheel has them.
        copy = target / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, copy, follow_symlinks=False)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Build an sdist, then a wheel from what is in the sdist; return both."""
    folder = tmp_path_factory.mktemp("built")
    tracked_copy(folder / "checkout")
    run(sys.executable, "-c", BUILD.format("sdist"), cwd=folder / "checkout")
    (sdist,) = folder.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    unpacked = folder / sdist.name.removesuffix(".tar.gz")
    run(sys.executable, "-c", BUILD.format("wheel"), cwd=unpacked)
    (wheel,) = folder.glob("*.whl")
    return sdist, wheel


@pytest.fixture(scope="module")
def environment(built: tuple[Path, Path]) -> Path:
    """Return bin/ of a new environment that has the wheel."""
    target = built[1].parent / "environment"
    run(sys.executable, "-m", "venv", "--without-pip", target, cwd=ROOT.parent)
    python = target / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--no-deps"]
    run(*pip, "--no-index", built[1], cwd=ROOT.parent)
    (packages,) = target.glob("lib/python*/site-packages")
    (packages / "heavy.pth").write_text("\n".join(site.getsitepackages()) + "\n")
    return target / "bin"


def test_the_wheel_is_of_the_package_alone(built: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(built[1]) as archive:
        names = set(archive.namelist())
    modules = {str(p.relative_to(ROOT)) for p in ROOT.glob("espnet_distopt/**/*.py")}
    assert modules | {"espnet_distopt/py.typed"} <= names
    assert {name.split("/")[0].split("-")[0] for name in names} == {"espnet_distopt"}


def test_the_wheel_says_what_it_is(built: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(built[1]) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith("/METADATA"))
        metadata = archive.read(name).decode()
    for line in ("Author: ", "License-Expression: Apache-2.0|License: Apache-2.0"):
        assert re.search(rf"^({line})", metadata, re.MULTILINE), line
    assert "Requires-Python: >=3.11" in metadata
    assert {"recipes", "simulation"} <= set(
        re.findall(r"^Provides-Extra: (\w+)$", metadata, re.MULTILINE)
    )


def test_the_command_is_there(environment: Path, tmp_path: Path) -> None:
    distopt = environment / "distopt"
    found = run(distopt, "--version", cwd=tmp_path)
    assert re.fullmatch(r"distopt \d+\.\d+\.\d+\S*\n", found)
    python = environment / "python"
    code = "import espnet_distopt; print(espnet_distopt.__file__)"
    where = Path(run(python, "-c", code, cwd=tmp_path).strip())
    assert where.is_relative_to(environment.parent)
    by_module = run(
        python, "-m", "espnet_distopt.bin.status", "nowhere", cwd=tmp_path, fails=True
    )
    assert run(distopt, "status", "nowhere", cwd=tmp_path, fails=True) == by_module
    said = run(environment / "distopt-python", "-c", "print(3)", cwd=tmp_path)
    assert said == "3\n"


def test_two_learners_train_the_loop_of_the_readme(
    environment: Path, tmp_path: Path
) -> None:
    code = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    assert code is not None
    (tmp_path / "loop.py").write_text(code[1])
    launch = [environment / "distopt", "launch", "--nproc", "2"]
    printed = run(*launch, "loop.py", cwd=tmp_path)
    errors = [float(each) for each in re.findall(r"error ([\d.]+)", printed)]
    assert len(errors) == 6
    assert max(errors[-2:]) < 0.2


def test_a_recipe_is_copied_and_runs(environment: Path, tmp_path: Path) -> None:
    distopt = environment / "distopt"
    recipes = sorted(path.parents[1].name for path in ROOT.glob("egs/*/*/run.sh"))
    assert run(distopt, "recipe", cwd=tmp_path).split() == recipes
    line = run(distopt, "recipe", "fsdd", "my", cwd=tmp_path).strip()
    assert line == f"cd my/egs/fsdd/asr1 && PYTHON={environment}/python ./run.sh"
    here = ROOT / "egs" / "fsdd" / "asr1"
    for file in (here / "conf").rglob("*.yaml"):
        copy = tmp_path / "my" / file.relative_to(ROOT)
        assert copy.read_bytes() == file.read_bytes()
    # Stage 9 is none, so the options are checked by the package, and nothing is made.
    options = "--stage 9 --stop_stage 9 --distopt adpsgd"
    run("bash", "-c", f"{line} {options}", cwd=tmp_path)
    options = "--stage 9 --stop_stage 9 --distopt adpsdg"
    said = run("bash", "-c", f"{line} {options}", cwd=tmp_path, fails=True)
    assert "adpsdg" in said.splitlines()[-1]
    assert "exists" in run(distopt, "recipe", "fsdd", "my", cwd=tmp_path, fails=True)


def test_every_copied_recipe_has_the_files_that_it_names(
    environment: Path, tmp_path: Path
) -> None:
    distopt = environment / "distopt"
    named: set[str] = set()
    for name in run(distopt, "recipe", cwd=tmp_path).split():
        run(distopt, "recipe", name, name, cwd=tmp_path)
        for script in tmp_path.glob(f"{name}/egs/{name}/*/run.sh"):
            found = named_files(script.parent)
            assert [each for each in found if not (script.parent / each).exists()] == []
            named |= found
    assert {"../../../local/swbd_data.sh", "conf/decode_words.yaml"} <= named


def test_a_copied_recipe_runs_to_its_table(environment: Path, tmp_path: Path) -> None:
    """All stages run on few lines: two learners really train, for one pass."""
    copy = "my own"  # A path with a blank, as users have.
    line = run(environment / "distopt", "recipe", "mini_ocr", copy, cwd=tmp_path)
    sizes = {"train": (40, 8), "dev": (8, 4), "test": (6, 4)}
    lines = " ".join(
        f"--{name}_printed {printed} --{name}_digits {digits}"
        for name, (printed, digits) in sizes.items()
    )
    options = (
        f'--nj 1 --local_data_opts "--nj 1 {lines}" '
        '--train_args "--max_epoch 1 --num_workers 0" '
        '--decode_config "conf/decode.yaml conf/decode_greedy.yaml"'
    )
    run("bash", "-c", f"{line.strip()} {options}", cwd=tmp_path)
    recipe = tmp_path / copy / "egs" / "mini_ocr" / "ocr1"
    exp = recipe / "exp"
    trained = json.loads((exp / "ocr_bmuf_adam_2/distopt/summary.json").read_text())
    assert (trained["learners"], trained["epochs"]) == (2, 1)
    rows = [
        row.strip("| ").split(" | ")
        for row in (exp / "RESULTS.md").read_text().splitlines()
        if row.startswith("|")
    ]
    head, _, searched, row = rows[:4]
    assert searched[0] == "ocr_bmuf_adam_2/decode"
    assert row[0] == "ocr_bmuf_adam_2/decode_greedy"
    rates = {name: cell for name, cell in zip(head, row, strict=True) if "ER" in name}
    parts = ("known", "unseen", "digits", "all")
    assert set(rates) == {f"{er} {p} (jiwer)" for er in ("CER", "WER") for p in parts}
    for cell in rates.values():
        assert 0 < float(cell.split()[0]) <= 150, cell
    assert "| test | all | 16 |" in (exp / "RESULTS.md").read_text()

    ngram = read_arpa(recipe / "data" / "ngram" / "characters_6.arpa")
    known = read_characters(recipe / "data" / "token_list" / "char" / "tokens.txt")
    fit = {}
    for way in ("decode", "decode_greedy"):
        texts = read_table(exp / "ocr_bmuf_adam_2" / way / "test" / "text", str)
        assert len(texts) == 2 * 6 + 4
        written = [characters(text, known) for text in texts.values()]
        log10 = sum(map(ngram.sentence, written))
        fit[way] = log10 / sum(len(each) + 1 for each in written)
    # After one pass the model knows nothing, so the n-gram decides.
    assert fit["decode"] > fit["decode_greedy"] + 0.5

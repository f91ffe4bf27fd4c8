"""These tests run tools/setup.sh with a stub for Python: what it installs, and when."""

import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.recipes.toy_recipe import ROOT

# The stub answers as Python does; `-m venv` copies it, and pip only records its calls.
STUB = """\
#!/bin/bash
case "$*" in
    *version_info*) echo "${STUB_VERSION:-3.11}" ;;
    --version) echo "Python ${STUB_VERSION:-3.11}.7" ;;
    "-m venv .venv") mkdir -p .venv/bin && cp "$0" .venv/bin/python ;;
    "-c import torchaudio")
        [ ! -e .venv/lib/python3.11/site-packages/torchaudio/lib/x.so ] ;;
    "-m pip --version") ;;
    "-m pip install"*) echo "${*:4}${PYTHONPATH:+ beside $PYTHONPATH}" >>pip.log
        sleep "${STUB_SECONDS:-0}"
        [[ "$*" != *${STUB_ABSENT:-nothing}* || "$*" == *--index-url* ]] ;;
    *) exit 1 ;;
esac
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return a copy of the files that setup.sh reads; PATH has only the stub."""
    for folder in ("local", "requirements", "tools"):
        (tmp_path / folder).mkdir()
    for name in ("tools/setup.sh", "local/log.sh", "setup.cfg", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "requirements" / "py311.txt").write_text("a==1\ntorch==2.0\n")
    (tmp_path / "requirements" / "py312.txt").write_text("a==3\ntorch==3.0\n")
    (tmp_path / "requirements" / "dev.txt").write_text("pytest==9\n")
    (tmp_path / "requirements" / "espnet3.txt").write_text("espnet==4\n")
    (tmp_path / "path").mkdir()
    script(tmp_path / "path" / "python3.11", STUB)
    return tmp_path


def script(path: Path, content: str) -> None:
    path.write_text(content)
    path.chmod(0o755)


def setup(
    checkout: Path, *arguments: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    path = f"{checkout}/path:{os.environ['PATH']}"
    return subprocess.run(
        ["tools/setup.sh", *arguments],
        cwd=checkout,
        env={**os.environ, "PATH": path, **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def installed(checkout: Path) -> list[str]:
    """Return what pip was asked to install, and forget it."""
    log = checkout / "pip.log"
    lines = log.read_text().splitlines() if log.exists() else []
    log.unlink(missing_ok=True)
    return [line.replace(" -qq --disable-pip-version-check", "") for line in lines]


@pytest.fixture
def no_gpu(checkout: Path) -> None:
    script(checkout / "path" / "nvidia-smi", "#!/bin/sh\nexit 9\n")


THE_LIST = "--no-deps -r requirements/py311.txt"
DEV_LIST = "--no-deps -r requirements/dev.txt"
BESIDE = (
    "--no-deps --ignore-requires-python --target .venv/espnet3 "
    "-r requirements/espnet3.txt"
)
OURSELVES = "--no-deps --no-build-isolation -e ."


@pytest.mark.usefixtures("no_gpu")
def test_installs_once(checkout: Path) -> None:
    done = setup(checkout)
    assert done.returncode == 0, done.stderr
    assert installed(checkout) == ["--no-deps torch==2.0+cpu", THE_LIST, OURSELVES]
    assert setup(checkout).stdout == ""
    assert installed(checkout) == []


@pytest.mark.usefixtures("no_gpu")
def test_what_other_places_have_is_installed_all_the_same(checkout: Path) -> None:
    assert setup(checkout, PYTHONPATH="/opt/site-packages").returncode == 0
    assert installed(checkout) == ["--no-deps torch==2.0+cpu", THE_LIST, OURSELVES]


@pytest.mark.usefixtures("no_gpu")
def test_a_changed_list_installs_again(checkout: Path) -> None:
    setup(checkout, "--dev")
    assert installed(checkout)[1:] == [THE_LIST, DEV_LIST, BESIDE, OURSELVES]
    setup(checkout)
    assert installed(checkout) == []  # --dev has made the rest as well
    (checkout / "requirements" / "py311.txt").write_text("a==2\ntorch==2.0\n")
    setup(checkout)
    assert THE_LIST in installed(checkout)


@pytest.mark.usefixtures("no_gpu")
def test_an_interrupted_set_up_is_not_taken_for_whole(checkout: Path) -> None:
    done = setup(checkout, STUB_ABSENT="py311.txt")
    assert done.returncode == 2
    assert "py311.txt are not to be had: allow pip to reach an index" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    installed(checkout)
    assert setup(checkout).returncode == 0
    assert THE_LIST in installed(checkout)


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize("absent", ["nothing", "py311.txt"], ids=["done", "not done"])
def test_an_earlier_list_that_comes_back_is_installed_again(
    absent: str, checkout: Path
) -> None:
    setup(checkout, "--dev")
    the_list = checkout / "requirements" / "py311.txt"
    earlier = the_list.read_text()
    the_list.write_text("a==2\ntorch==2.0\n")
    setup(checkout, STUB_ABSENT=absent)
    the_list.write_text(earlier)
    installed(checkout)
    assert setup(checkout, "--dev").returncode == 0
    assert installed(checkout)[1:] == [THE_LIST, DEV_LIST, BESIDE, OURSELVES]


@pytest.mark.usefixtures("no_gpu")
def test_one_of_two_set_ups_at_once_waits(checkout: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(setup, checkout, STUB_SECONDS="0.2") for _ in range(2)]
    assert [each.result().returncode for each in both] == [0, 0]
    assert sum("waiting for another one" in e.result().stdout for e in both) == 1
    assert installed(checkout) == ["--no-deps torch==2.0+cpu", THE_LIST, OURSELVES]


@pytest.mark.usefixtures("no_gpu")
def test_what_lies_beside_the_environment_is_replaced(checkout: Path) -> None:
    old = checkout / ".venv" / "espnet3" / "old.py"
    old.parent.mkdir(parents=True)
    old.touch()
    assert setup(checkout, "--dev", STUB_ABSENT="espnet3.txt").returncode == 2
    assert not old.exists()
    assert setup(checkout, "--dev").returncode == 0
    assert BESIDE in installed(checkout)


@pytest.mark.usefixtures("no_gpu")
def test_the_cpu_index_is_the_second_choice(checkout: Path) -> None:
    done = setup(checkout, STUB_ABSENT="+cpu")
    assert done.returncode == 0, done.stderr
    assert installed(checkout)[:2] == [
        "--no-deps torch==2.0+cpu",
        "--no-deps torch==2.0+cpu --index-url https://download.pytorch.org/whl/cpu",
    ]


def test_a_gpu_gets_torch_with_the_cuda_libraries(checkout: Path) -> None:
    script(checkout / "path" / "nvidia-smi", "#!/bin/sh\necho GPU 0\n")
    assert setup(checkout).returncode == 0
    assert installed(checkout)[0] == "-c requirements/py311.txt torch==2.0"


@pytest.mark.usefixtures("no_gpu")
def test_torchaudio_loses_an_extension_that_does_not_load(checkout: Path) -> None:
    library = checkout / ".venv/lib/python3.11/site-packages/torchaudio/lib/x.so"
    library.parent.mkdir(parents=True)
    library.touch()
    done = setup(checkout)
    assert done.returncode == 0, done.stderr
    assert not library.exists()


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize("version", ["3.12", "3.13"])
def test_a_later_python_gets_a_later_espnet(checkout: Path, version: str) -> None:
    (checkout / "path" / "python3.11").rename(checkout / "path" / "python3")
    hide_pythons(checkout, "python3.11", "python3.12", "python3.13")
    done = setup(checkout, STUB_VERSION=version)
    assert done.returncode == 0, done.stderr
    assert installed(checkout) == [
        "--no-deps torch==3.0+cpu",
        "--no-deps -r requirements/py312.txt",
        OURSELVES,
    ]


def hide_pythons(checkout: Path, *names: str) -> None:
    """Make commands fail as pyenv's do whose version is not installed."""
    for name in names:
        script(checkout / "path" / name, "#!/bin/sh\nexit 127\n")


def test_no_python(checkout: Path) -> None:
    for name in ("python3.12", "python3.13", "python3", "python"):
        script(checkout / "path" / name, STUB)
    done = setup(checkout, STUB_VERSION="3.14")
    assert done.returncode == 2
    assert done.stderr.startswith("error: no Python 3.11, 3.12 or 3.13 found: install")
    assert not (checkout / ".venv").exists()


def test_an_environment_of_another_python(checkout: Path) -> None:
    (checkout / ".venv" / "bin").mkdir(parents=True)
    script(checkout / ".venv" / "bin" / "python", STUB)
    done = setup(checkout, STUB_VERSION="3.10")
    assert done.returncode == 2
    assert ".venv is not Python 3.11, 3.12 or 3.13: move it away" in done.stderr
    assert installed(checkout) == []


def test_an_environment_whose_python_was_removed(checkout: Path) -> None:
    (checkout / ".venv" / "bin").mkdir(parents=True)
    (checkout / ".venv" / "bin" / "python").symlink_to("/usr/lib/removed/python3")
    done = setup(checkout)
    assert done.returncode == 2
    assert done.stderr == (
        "error: .venv/bin/python leads to no Python any more: move .venv away and run "
        "again\n"
    )


def test_unknown_argument(checkout: Path) -> None:
    done = setup(checkout, "--devel")
    assert done.returncode == 2
    assert "unknown argument '--devel'" in done.stderr

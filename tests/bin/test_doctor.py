"""The doctor finds what is missing, and says what to do about it."""

import os
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

from espnet_distopt.bin import doctor, machine_checks
from espnet_distopt.bin.machine_checks import Finding, missing, note, ok
from espnet_distopt.recipes.commands import machine_checks as recipe_checks

TORCH = """\
class cuda:
    device_count = staticmethod(lambda: {cards})
__version__ = "{version}"
"""
DISTRIBUTED = """\
is_available = is_nccl_available = lambda: True
is_gloo_available = lambda: {gloo}
"""


@pytest.fixture(autouse=True)
def no_part_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a fake torch do without the parts that the package needs."""
    monkeypatch.setattr(machine_checks, "PARTS_OF_TORCH", ())


def fake_torch(folder: Path, version: str, gloo: bool = True, cards: int = 0) -> None:
    package = folder / "torch"
    package.mkdir()
    (package / "__init__.py").write_text(TORCH.format(version=version, cards=cards))
    (package / "distributed.py").write_text(DISTRIBUTED.format(gloo=gloo))


def test_the_oldest_torch_is_that_of_the_installation() -> None:
    text = (Path(__file__).resolve().parents[2] / "setup.cfg").read_text()
    oldest = ".".join(map(str, machine_checks.OLDEST_TORCH))
    assert f"    torch>={oldest}\n" in text


@pytest.mark.parametrize(
    ("torch", "mark", "text"),
    [
        ({"version": "2.13.0"}, "ok", "torch 2.13.0: gloo, no GPU"),
        ({"version": "2.14.1", "cards": 2}, "ok", "gloo, 2 GPUs, NCCL"),
        ({"version": "2.14.1", "cards": 1}, "ok", "gloo, 1 GPU, NCCL"),
        ({"version": "2.6.0+cpu"}, "missing", "2.8 or later is needed"),
        ({"version": "2.13.0", "gloo": False}, "missing", "built without gloo"),
    ],
)
def test_torch(
    torch: dict[str, object],
    mark: str,
    text: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake_torch(tmp_path, **torch)  # type: ignore[arg-type]
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = machine_checks.check_torch(tmp_path)
    assert found.mark == mark and text in found.text


def test_a_torch_without_a_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert machine_checks.check_torch(tmp_path).mark == "ok"
    parts = ("torch.cuda", "torch.cuda.no_such._part")
    monkeypatch.setattr(machine_checks, "PARTS_OF_TORCH", parts)
    found = machine_checks.check_torch(tmp_path)
    assert found.mark == "missing"
    assert "has no torch.cuda.no_such._part" in found.text


def test_this_torch_has_all_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    assert machine_checks.PARTS_OF_TORCH
    assert machine_checks.check_torch(tmp_path).mark == "ok"


def module(folder: Path, name: str, text: str) -> None:
    (folder / f"{name}.py").write_text(text)


def test_packages_that_are_there_and_cannot_be_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("soundfile", "omniio", "kaldiio", "lightning", "typeguard"):
        module(tmp_path, name, "raise OSError('libsound.so: no such file')")
    said = "cannot be imported: OSError: libsound.so: no such file"
    package = machine_checks.package("soundfile", "speech")
    assert package(tmp_path) == missing(f"soundfile {said}")
    assert machine_checks.check_arks(tmp_path) == missing(f"omniio {said}")
    found = machine_checks.check_lightning(tmp_path)
    assert found.mark == "missing" and "OSError: libsound.so" in found.text
    found = machine_checks.check_espnet(tmp_path)
    assert found.mark == "missing"
    assert "cannot train: OSError: libsound.so" in found.text
    module(tmp_path, "soundfile", "import time; time.sleep(60)")
    monkeypatch.setattr(machine_checks, "TORCH_SECONDS", 1)
    assert "takes more than 1 s" in package(tmp_path).text


TASKS = """
from types import SimpleNamespace
import sys
from espnet_distopt.errors import InputError

def task(name):
    print("a module prints")
    if name == "old":
        raise InputError("it has a trainer of its own")
    if name == "tts":
        raise InputError("no tts") from ImportError("No module named 'pyworld'")
    if name == "svs":
        raise ValueError("g2p_en.__spec__ is None\\nand more")

sys.modules["espnet_distopt.bin.asr_train"] = SimpleNamespace()
sys.modules["espnet_distopt.espnet.training.tasks"] = SimpleNamespace(
    names_of_tasks=lambda: {names}, task=task
)
import espnet_distopt.bin, espnet_distopt.espnet.training as training
espnet_distopt.bin.asr_train = None
training.tasks = sys.modules["espnet_distopt.espnet.training.tasks"]
"""


@pytest.mark.parametrize(
    ("names", "mark", "text"),
    [
        (["asr", "old", "st"], "ok", ", for asr, st"),
        (
            ["asr", "svs", "tts"],
            "note",
            ", for asr; not svs (ValueError: g2p_en.__spec__ is None); not tts (No "
            "module named 'pyworld')",
        ),
    ],
)
def test_each_task_of_espnet_is_imported(
    names: list[str],
    mark: str,
    text: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    code = TASKS.replace("{names}", repr(names))
    module(tmp_path, "sitecustomize", code)
    found = machine_checks.check_espnet(tmp_path)
    assert found.mark == mark
    assert found.text.endswith(text)


def test_torch_that_cannot_be_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    module(tmp_path, "torch", "raise OSError('libcudart.so: no such file')")
    said = "torch: OSError: libcudart.so: no such file: pip install torch"
    assert machine_checks.check_torch(tmp_path) == missing(said)


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    assert machine_checks.check_folder(tmp_path).mark == "ok"
    assert not list(tmp_path.iterdir())
    found = machine_checks.check_folder(tmp_path / "nowhere")
    assert found.mark == "missing"
    assert "No such file" in found.text


def test_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert machine_checks.check_threads(tmp_path).mark == "ok"
    monkeypatch.delenv("OMP_NUM_THREADS")
    found = machine_checks.check_threads(tmp_path)
    assert found.mark == "note"
    assert f"{len(os.sched_getaffinity(0))} cores" in found.text


def test_the_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    assert machine_checks.check_host_name(tmp_path).mark == "ok"
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo,eth77")
    found = machine_checks.check_host_name(tmp_path)
    assert found == missing("GLOO_SOCKET_IFNAME names eth77: no such interface")
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")
    name = "no-such-machine.invalid"
    monkeypatch.setattr(machine_checks.socket, "gethostname", lambda: name)
    found = machine_checks.check_host_name(tmp_path)
    assert found.mark == "note"
    assert f"{name} has no address" in found.text
    monkeypatch.setattr(machine_checks.socket, "gethostname", lambda: "127.0.0.1")
    assert "several machines" in machine_checks.check_host_name(tmp_path).text


def test_programs_and_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    found = machine_checks.program("sbatch", "jobs of Slurm")(tmp_path)
    assert found == missing("sbatch, for jobs of Slurm")
    assert recipe_checks.check_sclite(tmp_path).mark == "note"
    assert recipe_checks.check_hubscr(tmp_path).mark == "note"
    found = machine_checks.package("no_module", "nothing", "no-package")(tmp_path)
    assert found == missing("no-package, for nothing: pip install no-package")
    assert machine_checks.package("json", "all")(tmp_path) == ok("json")


def test_every_wing_brings_sections() -> None:
    names = list(doctor.sections())
    assert names[:2] == ["a training loop of your own", "an ESPnet training"]
    assert {"a cluster", "the recipes", "scoring"} < set(names)


def said(*found: Finding) -> list[machine_checks.Check]:
    return [lambda folder, each=each: each for each in found]  # type: ignore[misc]


@pytest.mark.parametrize(
    ("loop", "cluster", "status", "last"),
    [
        (ok("a"), note("b"), 0, "Nothing is missing."),
        (ok("a"), missing("b"), 0, "Something is missing for: a cluster."),
        (
            missing("a"),
            missing("b"),
            1,
            "Something is missing for: a training loop of your own; a cluster.",
        ),
    ],
)
def test_the_end_says_for_what_something_is_missing(
    loop: Finding,
    cluster: Finding,
    status: int,
    last: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sections = {"a training loop of your own": said(loop), "a cluster": said(cluster)}
    monkeypatch.setattr(doctor, "sections", lambda: sections)
    with pytest.raises(SystemExit, match=r"^1$") if status else nullcontext():
        doctor.main([])
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == last
    assert f"  {loop.mark:8} a" in lines
    assert f"  {cluster.mark:8} b" in lines

"""`make gpu`: limits of time, parts that fail or hang, and what its table says of them.

The parts here are small programs; `make gpu DEVICE=cpu` runs the real ones.
"""

import importlib.util
import json
import os
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest
import torch

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def gpu() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_gpu", ROOT / "tools" / "gpu.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["make_gpu"] = module  # where dataclasses look for it
    spec.loader.exec_module(module)
    return module


def bash(gpu: ModuleType, name: str, script: str, **options: object) -> object:
    return gpu.Part(name, ["bash", "-c", script], options.pop("limit", 60), **options)


def test_each_part_has_its_end_in_the_table(
    gpu: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    # As in a recipe, the child that hangs has a process group of its own.
    hang = f"set -m; sleep 1000 & echo $! >{tmp_path}/pid; echo begun; wait"
    report, rows = tmp_path / "RESULTS.md", "| a table |\\n\\n## More\\n\\n| more |"

    def parts(runner: object, device: str, work: Path) -> None:
        assert device == "cpu"
        runner.run(  # type: ignore[attr-defined]
            bash(gpu, "good", f"printf '{rows}' >{report}; echo a; echo", keep=report),
            bash(gpu, "bad", "echo error: no such thing; echo more; exit 3"),
            bash(gpu, "hangs", hang, limit=1),
        )
        runner.run(bash(gpu, "behind", "true", needs="hangs"))  # type: ignore[attr-defined]
        runner.run(bash(gpu, "a table", f"cat {report}", keep=report))  # type: ignore[attr-defined]

    monkeypatch.setattr(gpu, "run_all", parts)
    out = tmp_path / "out"
    assert gpu.main(["--device", "cpu", "--out", str(out)]) == 1
    about, *lines = map(json.loads, (out / "results.jsonl").read_text().splitlines())
    assert "no GPU" in about["about"] and "torch" in about["about"]
    ends = {each["part"]: (each["result"], each["says"]) for each in lines}
    assert ends == {
        "good": ("passed", "a"),
        "bad": ("failed", "error: no such thing"),
        "hangs": ("did not end", "begun"),
        "behind": ("skipped", "hangs: see there"),
        "a table": ("passed", "| more |"),
    }
    state = Path("/proc", (tmp_path / "pid").read_text().strip(), "stat")
    assert not state.exists() or ") Z " in state.read_text()
    table = (out / "table.md").read_text()
    assert "| bad | **failed** | 0 | error: no such thing |" in table
    assert table.endswith("\n\n| a table |\n")
    assert table in capsys.readouterr().out


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_it_is_refused(gpu: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="sees no GPU; DEVICE=cpu tries"):
        gpu.main(["--device", "cuda", "--out", str(tmp_path)])


def test_parts_for_which_no_time_is_left_did_not_end(
    gpu: ModuleType, tmp_path: Path
) -> None:
    runner = gpu.Runner(tmp_path, dict(os.environ), 2.0, 1)
    begun = time.monotonic()
    runner.run(bash(gpu, "long", "sleep 1000"), bash(gpu, "next", "true"))
    assert time.monotonic() - begun < 60
    assert [each.result for each in runner.results] == ["did not end", "did not end"]
    assert runner.results[1].says == "no time was left"


SERIAL = """\
tests/test_gpu.py::test_a[nccl] PASSED                                   [ 25%]
tests/test_gpu.py::test_b FAILED                                         [ 50%]
tests/test_gpu.py::test_c SKIPPED (this machine has no GPU)              [ 75%]
tests/test_gpu.py::test_d """
BY_XDIST = """\
tests/test_gpu.py::test_a[nccl]
[gw0] [ 25%] PASSED tests/test_gpu.py::test_a[nccl]
tests/test_gpu.py::test_c
tests/test_gpu.py::test_b
[gw1] [ 50%] SKIPPED tests/test_gpu.py::test_c
tests/test_gpu.py::test_d
[gw0] [ 75%] FAILED tests/test_gpu.py::test_b""".replace("\n", " \n")
SUMMARY = """\
tests/test_gpu.py::test_a SKIPPED (this machine has no GPU)              [100%]

=========================== short test summary info ============================
SKIPPED [1] tests/test_gpu.py:4: this machine has no GPU
============================== 1 skipped in 0.01s ==============================
"""


@pytest.mark.parametrize("log", [SERIAL, BY_XDIST], ids=["serial", "xdist"])
def test_tests_that_were_killed_say_how_far_they_came(
    gpu: ModuleType, tmp_path: Path, log: str
) -> None:
    path = tmp_path / "log"
    path.write_text(log)
    assert gpu.read_log(path, "did not end") == (
        "did not end",
        "1 passed; 1 skipped; 1 failed: test_b; 1 did not end: test_d",
    )


def test_tests_that_were_all_left_out_have_not_passed(
    gpu: ModuleType, tmp_path: Path
) -> None:
    path = tmp_path / "log"
    path.write_text(SUMMARY)
    assert gpu.read_log(path, "passed") == ("skipped", "this machine has no GPU")


def test_the_page_has_a_place_for_the_table(gpu: ModuleType, tmp_path: Path) -> None:
    page = tmp_path / "gpu.md"
    page.write_text(gpu.PAGE.read_text())
    gpu.fill_page(page, "| new |\n")
    before, _, after = gpu.PAGE.read_text().partition("<!-- make gpu -->\n")
    _, _, after = after.partition("<!-- end -->")
    assert page.read_text() == (
        f"{before}<!-- make gpu -->\n| new |\n<!-- end -->{after}"
    )

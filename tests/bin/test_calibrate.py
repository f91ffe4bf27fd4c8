"""The command measures real links, and writes what the simulation reads."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from emulated import namespaces

from espnet_distopt.bin import calibrate, simulate
from espnet_distopt.monitoring import lines
from espnet_distopt.simulation.cluster_file import StepTime, read_cluster
from tests.monitoring.written import line

ROOT = Path(__file__).resolve().parents[2]
LAUNCH = [sys.executable, "-m", "espnet_distopt.bin.launch"]
MODULE = ["-m", "espnet_distopt.bin.calibrate"]
VARIABLES = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}

able = os.geteuid() == 0 and all(map(shutil.which, ("ip", "tc", "unshare")))


@pytest.mark.processes
def test_one_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, exp = tmp_path / "cluster.yaml", tmp_path / "exp"
    written = line("step", 10, seconds=8.0, comm_time=1.5, wait_time=0.5, batches=10)
    for rank in (0, 1):
        own = vars(written) | {"rank": rank, "samples": 300 * rank + 100}
        lines.append(lines.Line(**own), exp / "distopt" / f"learner{rank}.jsonl")
    done = subprocess.run(
        [
            *(*LAUNCH, "--nproc", "4", *MODULE),
            *("--message_seconds", "0.05", "--out", out, "--exp", exp),
        ],
        env=os.environ | VARIABLES,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert re.search(
        r"between: \d+ us and [\d.]+ MB/s each way for one pair", done.stdout
    )
    assert "for 2 pairs at a time" in done.stdout
    found = read_cluster(str(out))
    assert found.network.per_node == 1
    assert found.step == StepTime(fixed=0.6)
    assert "4 learners on 4 nodes" in found.source
    advise = ["--advise", "--cluster", str(out), "--model_bytes", "1e6"]
    simulate.main(
        [*advise, "--learners", "4", "--batch_size", "64", "--samples", "640"]
    )
    assert "allreduce" in capsys.readouterr().out


@pytest.mark.processes
@pytest.mark.skipif(not able, reason="needs root, ip, tc and unshare")
def test_two_machines_of_two_learners(tmp_path: Path) -> None:
    """No link is found to be faster than what it was shaped to."""
    out = tmp_path / "cluster.yaml"
    variables = {k: v for k, v in os.environ.items() if k != "GLOO_SOCKET_IFNAME"}
    with namespaces.network(2, 100) as places:
        subnet = places[0].store.rpartition(".")[0]
        started = [
            subprocess.Popen(
                [
                    *("ip", "netns", "exec", place.namespace, *LAUNCH, "--nproc", "2"),
                    *("--nnodes", "2", "--node_rank", str(number)),
                    *("--master", f"{subnet}.1:29500", *MODULE, "--out", out),
                ],
                env=variables | VARIABLES,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for number, place in enumerate(places)
        ]
        said = [each.communicate(timeout=200)[0] for each in started]
    assert [each.returncode for each in started] == [0, 0], said
    found = read_cluster(str(out)).network
    assert found.per_node == 2
    [each] = re.findall(r"card: ([\d.]+) MB/s each way for 2 pairs", said[0])
    assert found.between.bandwidth < 1.1 * 100e6 / 8
    assert 2 * float(each) < 1.1 * 100 / 8  # They share the link.
    assert found.inside.bandwidth > found.between.bandwidth


@pytest.mark.parametrize(
    ("words", "size", "expected"),
    [
        (["--out", "cluster.yaml"], "1", "one learner has no links"),
        (["--out", "none/cluster.yaml"], "2", "none: no such directory"),
        (["--out", "."], "2", ". is a directory"),
        (["--out", "a", "--message_seconds", "inf"], "2", "--message_seconds must be"),
        (["--out", "a", "--exp", "none"], "2", "none: no such experiment directory"),
        (["--out", "a", "--exp", "."], "2", ".: has no steps of a training"),
        (["--out", "a", "--message_seconds", "0"], "2", "--message_seconds must be"),
    ],
)
def test_what_cannot_be_measured(
    words: list[str],
    size: str,
    expected: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WORLD_SIZE", size)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", size)
    with pytest.raises(SystemExit) as ended:
        calibrate.main(words)
    assert ended.value.code != 0
    assert expected in str(ended.value) + capsys.readouterr().err

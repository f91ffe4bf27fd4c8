"""These tests check the ranking of methods against times by hand."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam, Optimizer

from espnet_distopt.bin.simulate import main
from espnet_distopt.simulation.study.problem import without_steps

CLUSTER = """\
per_node: 2
between: {bandwidth: 1 GB/s}
card: 1 GB/s
step: {fixed: 2}
"""


def advised(capsys: pytest.CaptureFixture[str], cluster: Path, *more: str) -> list[str]:
    model = ["--model_bytes", "1e9", "--batch_size", "12", "--samples", "120"]
    main(["--advise", "--cluster", str(cluster), *model, *more])
    return capsys.readouterr().out.splitlines()


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    path = tmp_path / "cluster.yaml"
    path.write_text(CLUSTER)
    return path


def rows(lines: list[str]) -> dict[str, list[str]]:
    cells = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")]
    return {name: rest for name, *rest in cells[2:]}


def test_four_learners_on_two_nodes(
    capsys: pytest.CaptureFixture[str], cluster: Path
) -> None:
    lines = advised(capsys, cluster, "--learners", "4", "--optim", "sgd")
    found = rows(lines)
    step = {name: float(cells[0].split()[0]) for name, cells in found.items()}
    # A ring passes a card with 1.5 models, of which each takes a second. It begins
    # with the first of four buckets, after a quarter of the backward pass.
    assert step["allreduce"] == pytest.approx(1000 + 1500, rel=0.01)
    # The exchanges of two learners of a node share its card, and hide behind a step.
    assert step["adpsgd"] == pytest.approx(2000, rel=0.01)
    # Every eighth step ends with a ring.
    assert step["bmuf, blocks of 8"] == pytest.approx(2000 + 1500 / 8, rel=0.01)
    assert 2000 < step["hadpsgd"] < 2300  # It waits for rings inside the node alone.
    assert list(step.values()) == sorted(step.values())
    assert found["allreduce"][1] == "25.0 s"
    assert float(found["bmuf, blocks of 8"][2].split()[0]) == pytest.approx(190, abs=5)
    assert any(line.startswith("distopt: ") for line in lines)


@pytest.mark.parametrize(
    ("links", "tied", "best"),
    [
        # Rings are 21 times as fast as a model's gradients are needed: 2 % more a step.
        ("10.5 GB/s", "adpsgd, dpsgd, bmuf, blocks of 8, allreduce", "allreduce"),
        ("1 GB/s", "adpsgd, dpsgd", "adpsgd"),
    ],
)
def test_a_difference_below_three_per_cent_is_a_tie(
    links: str,
    tied: str,
    best: str,
    capsys: pytest.CaptureFixture[str],
    cluster: Path,
) -> None:
    cluster.write_text(CLUSTER.replace("1 GB/s", links))
    lines = advised(capsys, cluster, "--learners", "4", "--optim", "sgd")
    assert any(f"A tie within 3%: {tied}. The simplest of them" in x for x in lines)
    assert lines[-1] == f"distopt: {best}"


def test_only_one_is_the_fastest(
    capsys: pytest.CaptureFixture[str], cluster: Path
) -> None:
    cluster.write_text(CLUSTER.replace("1 GB/s", "600 MB/s"))
    lines = advised(capsys, cluster, "--learners", "4", "--optim", "sgd")
    assert any("does). The fastest, for the training's" in line for line in lines)


def test_blocks_send_the_moments_of_adam_unless_told_otherwise(
    capsys: pytest.CaptureFixture[str], cluster: Path
) -> None:
    found = rows(advised(capsys, cluster, "--learners", "4"))["bmuf, blocks of 8"]
    assert float(found[0].split()[0]) == pytest.approx(2000 + 3 * 1500 / 8, rel=0.01)
    assert float(found[2].split()[0]) == pytest.approx(3 * 190, abs=15)


def test_all_waits_of_a_slow_exchange_count(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """An exchange takes 32 steps, and the training may be 16 ahead of it."""
    cluster = tmp_path / "slow.yaml"
    cluster.write_text("between: {bandwidth: 1 GB/s}\nstep: {fixed: 31.25 ms}\n")
    found = rows(advised(capsys, cluster, "--learners", "2"))["adpsgd"]
    assert float(found[0].split()[0]) == pytest.approx(1000 / 16, rel=0.02)


def test_the_time_of_a_step_must_be_known(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    cluster = tmp_path / "links.yaml"
    cluster.write_text("between: {bandwidth: 1 GB/s}\n")
    with pytest.raises(SystemExit):
        advised(capsys, cluster, "--learners", "2")
    error = capsys.readouterr().err
    assert error.startswith("error: --advise needs the time of a step: give --step_sec")
    assert advised(capsys, cluster, "--learners", "2", "--step_seconds", "0.1")
    trace = cluster.with_name("trace")
    trace.write_text("0.5\n")
    found = rows(advised(capsys, cluster, "--learners", "2", "--trace", str(trace)))
    assert found["adpsgd"][0] == "500.0 ms"


def test_the_optimizer_without_steps_is_no_unknown_one(
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    cluster: Path,
) -> None:
    """Or four lines would say that its second moment is not corrected."""
    assert advised(capsys, cluster, "--learners", "4")
    assert not caplog.messages


def test_what_cannot_run_is_left_out(
    capsys: pytest.CaptureFixture[str], cluster: Path
) -> None:
    found = rows(advised(capsys, cluster, "--learners", "3"))
    assert "hadpsgd" not in found
    assert "allreduce" in found and "dpsgd" in found


def test_why_nothing_can_run_is_said(
    capsys: pytest.CaptureFixture[str], cluster: Path
) -> None:
    words = ["--advise", "--cluster", str(cluster), "--learners", "3"]
    with pytest.raises(SystemExit):
        main([*words, "--batch_size", "4", "--model_bytes", "1e9"])
    error = capsys.readouterr().err
    assert error == "error: a batch of 4 samples has no equal shares for 3 learners\n"


def test_the_compiler_is_not_imported(cluster: Path) -> None:
    """It takes longer to import than all methods take to simulate."""
    words = ["--advise", "--cluster", str(cluster), "--learners", "4"]
    words += ["--batch_size", "4", "--model_bytes", "1e9"]
    code = (
        "import sys; from espnet_distopt.bin.simulate import main; main(sys.argv[1:]); "
        "assert 'torch._dynamo' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, *words], check=True)


@pytest.mark.parametrize("kind", [SGD, Adam])
def test_an_optimizer_without_steps_has_hooks_and_changes_nothing(
    kind: type[SGD | Adam],
) -> None:
    parameter = nn.Parameter(torch.ones(2))
    parameter.grad = torch.ones(2)
    optimizer = without_steps(kind)([parameter], lr=0.5)
    stepped: list[Optimizer] = []
    optimizer.register_step_post_hook(lambda which, _, __: stepped.append(which))
    optimizer.step()
    assert isinstance(optimizer, kind) and stepped == [optimizer]
    assert optimizer.param_groups[0]["lr"] == 0.5
    assert torch.equal(parameter, torch.ones(2))

"""These tests run the command `simulate`, and check its table and its files."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from espnet_distopt.algorithms import ALGORITHMS
from espnet_distopt.bin.simulate import get_parser, main
from espnet_distopt.simulation.study import plots
from espnet_distopt.simulation.study.outcome import Outcome, SimulatedMethod
from espnet_distopt.simulation.study.problem import Quadratic
from espnet_distopt.simulation.study.trial import Trial

TINY = ["--dimension", "4", "--batch_size", "32", "--samples", "160", "--epochs", "2"]
TINY += ["--step_seconds", "1"]
NO_NETWORK = ["--latency", "0", "--bandwidth", "1e30"]


@pytest.fixture(autouse=True)
def _plots(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plots take longer than all the rest, so only one test makes them."""
    if request.function is not test_table_results_and_plots:
        monkeypatch.setattr(plots, "plot", lambda outcomes, folder: None)


def simulate(out: Path, *arguments: str) -> list[dict[str, Any]]:
    return simulate_plainly(out, [*TINY, *arguments])


def simulate_plainly(out: Path, arguments: list[str]) -> list[dict[str, Any]]:
    main(["--out", str(out), *arguments])
    results = json.loads((out / "results.json").read_text())
    trials: list[dict[str, Any]] = results["trials"]
    return trials


def speedups(out: Path, *arguments: str) -> list[float]:
    return [t["speedup"] for t in simulate(out, *NO_NETWORK, *arguments)]


# The output of the command


def test_table_results_and_plots(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "exp" / "simulated"
    arguments = ["--learners", "2", "4", "--seed", "3"]
    trials = simulate(out, *arguments)
    names = [(t["name"], t["learners"]) for t in trials]
    assert names == [(n, k) for n in ("allreduce", "adpsgd") for k in (2, 4)]
    for trial in trials:
        assert [p["samples"] for p in trial["history"]] == [0, 160, 320]
        losses = [p["loss"] for p in trial["history"]]
        assert losses[0] > losses[1] > losses[2] == trial["held_out_loss"] > 0
        seconds = [p["seconds"] for p in trial["history"]]
        assert seconds[0] == 0 < seconds[1] < seconds[2] == trial["virtual_seconds"]
        assert trial["parameters"] == 4 and trial["bytes_sent_per_learner"] > 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(
        "allreduce, 2 learners: epoch 0/2, 0 samples, 0.0 s of virtual time, held-out"
    )
    assert sum("epoch" in line for line in lines[:12]) == 4 * 3
    table = (out / "table.md").read_text()
    assert table.splitlines() == lines[13:]
    rows = [line.split("|") for line in table.splitlines() if line.startswith("| a")]
    assert [cell.strip() for cell in rows[0]][1:4] == [
        "algorithm",
        "learners",
        "held-out loss",
    ]
    assert [float(row[3]) for row in rows[1:]] == pytest.approx(
        [t["held_out_loss"] for t in trials], rel=1e-4
    )
    assert "Simulated: virtual learners in one process" in table
    assert "noisy quadratic of 4 dimensions" in table
    assert "--learners 2 4 --seed 3` (seed 3)." in table
    pictures = sorted(path.name for path in out.glob("*.png"))
    assert pictures == [
        "consensus_distance.png",
        "loss_against_samples.png",
        "loss_against_time.png",
        "speedup.png",
    ]
    for picture in pictures:
        assert (out / picture).read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in out.parent.iterdir()] == ["simulated"]


def test_same_seed_same_results_and_old_ones_are_replaced(tmp_path: Path) -> None:
    clutter = ["--spread", "0.5", "--loss", "0.1", "--straggler", "1:3"]
    simulate(tmp_path / "a", *clutter, "--learners", "2", "4")
    simulate(tmp_path / "b", *clutter, "--learners", "2", "4")
    first = (tmp_path / "a" / "results.json").read_bytes()
    assert (tmp_path / "b" / "results.json").read_bytes() == first
    (tmp_path / "a" / "speedup.png").touch()
    simulate(tmp_path / "a", *clutter, "--learners", "4", "--seed", "1")
    assert (tmp_path / "a" / "results.json").read_bytes() != first
    assert not (tmp_path / "a" / "speedup.png").exists()


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_runs(name: str, tmp_path: Path) -> None:
    trials = simulate(
        tmp_path / "out", "--algorithm", name, "--learners", "1", "4", "--per_node", "2"
    )
    alone, four = trials
    assert alone["bytes_sent_per_learner"] == 0 < four["bytes_sent_per_learner"]
    assert four["held_out_loss"] < four["history"][0]["loss"]


def test_ctrl_c_keeps_what_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run, methods = Trial.run, []

    def interrupted(trial: Trial, method: SimulatedMethod, *args: Any) -> Outcome:
        methods.append(method.name)
        if method.name == "bmuf":
            raise KeyboardInterrupt
        return run(trial, method, *args)

    monkeypatch.setattr(Trial, "run", interrupted)
    chosen = ["--algorithm", "allreduce", "bmuf", "adpsgd", "--learners", "2"]
    with pytest.raises(SystemExit) as end:
        simulate(tmp_path / "out", *chosen)
    assert (end.value.code, methods) == (130, ["allreduce", "bmuf"])
    assert "the table has what was complete" in capsys.readouterr().err
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert [trial["algorithm"] for trial in results["trials"]] == ["allreduce"]


def test_methods_of_files_and_options(tmp_path: Path) -> None:
    file = tmp_path / "slow_blocks.yaml"
    session = "heartbeat_seconds: 60, repeat_begun: true"
    file.write_text(f"distopt: bmuf\ndistopt_conf: {{period: 5, {session}}}\n")
    arguments = ["--distopt_config", str(file), "--option", "period=2"]
    trials = simulate(
        tmp_path / "out", *arguments, "--algorithm", "allreduce", "local_sgd"
    )
    methods = {t["name"]: (t["algorithm"], t["options"]) for t in trials}
    assert methods == {
        "slow_blocks": ("bmuf", {"period": 5}),
        "allreduce": ("allreduce", {}),
        "local_sgd": ("local_sgd", {"period": 2}),
    }
    table = (tmp_path / "out" / "table.md").read_text()
    assert "slow_blocks: bmuf with period=5" in table


def test_those_that_know_a_topology_run_on_it(tmp_path: Path) -> None:
    algorithms = ["--algorithm", "dpsgd", "adpsgd", "bmuf"]
    asked = ["--topology", "random", "complete", "ring", "--learners", "4"]
    trials = simulate(tmp_path / "out", *algorithms, *asked)
    names = ["dpsgd, complete", "dpsgd, ring", "adpsgd, random", "adpsgd, ring", "bmuf"]
    assert [trial["name"] for trial in trials] == names
    sent = {trial["name"]: trial["bytes_sent_per_learner"] for trial in trials}
    assert sent["dpsgd, ring"] > 1.2 * sent["dpsgd, complete"]


def test_a_training_configuration_of_espnet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This test checks what the command line passes on; tests/espnet has the rest."""
    got: list[Any] = []

    def problem(arguments: list[str], seed: int) -> Quadratic:
        got.append((arguments, seed))
        return Quadratic(dimension=2, samples=96)

    module = "espnet_distopt.espnet.training.simulated"
    monkeypatch.setitem(sys.modules, module, SimpleNamespace(EspnetProblem=problem))
    config = tmp_path / "train.yaml"
    config.write_text("optim: adam\n")
    arguments = ["--config", str(config), "--train_args", "--token_list 'a b'"]
    arguments += ["--learners", "2", "--batch_size", "32", "--epochs", "1"]
    main([*arguments, "--seed", "5", "--out", str(tmp_path / "out")])
    assert got == [(["--config", str(config), "--token_list", "a b"], 5)]
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert results["trials"][0]["history"][-1]["samples"] == 96
    assert results["trials"][0]["parameters"] == 2


def test_an_open_quote_in_train_args(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.yaml").touch()
    with pytest.raises(SystemExit):
        main(["--config", str(tmp_path / "train.yaml"), "--train_args", "--x 'y"])
    assert capsys.readouterr().err.startswith("error: --train_args: No closing")


def test_adam_and_divergence(tmp_path: Path) -> None:
    (adam,) = simulate(tmp_path / "a", "--algorithm", "adpsgd", "--optim", "adam")
    assert adam["held_out_loss"] < adam["history"][0]["loss"]
    far = ["--algorithm", "allreduce", "--learners", "2", "--lr", "1e40"]
    (wild,) = simulate(tmp_path / "b", *far)
    assert wild["held_out_loss"] is None
    assert "| diverged" in (tmp_path / "b" / "table.md").read_text()


def test_a_crash_cuts_short_where_nobody_survives_it(tmp_path: Path) -> None:
    """Learner 1 crashes in the second epoch, which has 5 steps of 1 s each.

    Its third step is lost, and the two that come after it. In the third epoch the
    others take all 80 batches of 2 samples: 5 and 1/3 each, so some make 6 steps.
    """
    faults = ["--epochs", "3", "--fault", "1:crash:7.5", "0:crash:999"]
    short, whole = simulate(tmp_path / "out", *NO_NETWORK, *faults)
    assert "learner 1" in short["lost"] and not short["dead"]
    assert [p["samples"] for p in short["history"]] == [0, 160]
    assert short["speedup"] is None and short["samples_per_second"] is None
    assert whole["lost"] is None and whole["dead"] == [1]
    assert [p["samples"] for p in whole["history"]] == [0, 160, 314, 474]
    assert whole["virtual_seconds"] == pytest.approx(16, rel=1e-6)
    assert whole["samples_per_second"] == pytest.approx(474 / 16, rel=1e-6)
    assert whole["speedup"] == pytest.approx(474 / 2 / 16, rel=1e-6)
    table = (tmp_path / "out" / "table.md").read_text()
    cut = (
        "allreduce, 16 learners: cut short in epoch 2, and its row is of 160 samples: "
    )
    assert cut in table
    assert "adpsgd, 16 learners: went on without 1, and trained on 474" in table
    assert "learner 1 crashes at 7.5 s" in table
    late = [line for line in table.splitlines() if "ended before" in line]
    assert late == [
        "adpsgd, 16 learners: ended before these faults: learner 0 crashes at 999 s."
    ]


# Times in closed form: an epoch has 5 steps of 1 s each, and messages take no time.


@pytest.mark.parametrize("name", ["allreduce", "bmuf", "adpsgd"])
def test_speedup_is_linear_where_messages_cost_nothing(
    name: str, tmp_path: Path
) -> None:
    found = speedups(tmp_path, "--algorithm", name, "--learners", "1", "2", "8")
    assert found == pytest.approx([1, 2, 8], rel=1e-9)


def test_all_wait_for_a_straggler_in_allreduce(tmp_path: Path) -> None:
    arguments = ["--algorithm", "allreduce", "--learners", "16"]
    found = speedups(tmp_path, *arguments, "--straggler", "3:10")
    assert found == pytest.approx([16 / 10], rel=1e-9)


def test_nobody_waits_for_a_straggler_in_adpsgd(tmp_path: Path) -> None:
    """AD6 of docs/algorithms/gossip.md, in an epoch of 16 * 151 batches.

    In ten seconds, 15 learners take ten batches each, and the slow one takes one.
    """
    arguments = ["--algorithm", "adpsgd", "--learners", "16", "--batch_size", "16"]
    many = ["--samples", "2416", "--epochs", "1", "--straggler", "3:10"]
    assert speedups(tmp_path, *arguments, *many) == pytest.approx([15.1], rel=1e-9)


def test_fewer_learners_have_longer_steps(tmp_path: Path) -> None:
    trials = simulate(tmp_path, *NO_NETWORK, "--learners", "2", "8")
    seconds = {(t["name"], t["learners"]): t["virtual_seconds"] for t in trials}
    assert seconds["allreduce", 8] == pytest.approx(10 * 1)
    assert seconds["allreduce", 2] == pytest.approx(10 * 4)


def test_steps_as_measured(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    trace.write_text("3\n")
    arguments = ["--trace", str(trace), "--algorithm", "allreduce"]
    (trial,) = simulate(tmp_path / "out", *NO_NETWORK, *arguments, "--learners", "4")
    assert trial["virtual_seconds"] == pytest.approx(10 * 3)
    assert "as 1 measured ones, 3 s" in (tmp_path / "out" / "table.md").read_text()


def test_messages_of_a_large_model(tmp_path: Path) -> None:
    link = ["--latency", "0", "--bandwidth", "1e9", "--learners", "2"]
    every_step = ["--algorithm", "local_sgd", "--option", "period=1"]
    own, large = (
        simulate(tmp_path, *link, *every_step, *model)[0]
        for model in ([], ["--model_bytes", "32e7"])
    )
    factor = 32e7 / (4 * 8)
    assert large["bytes_sent_per_learner"] == pytest.approx(
        own["bytes_sent_per_learner"] * factor
    )
    assert large["virtual_seconds"] - 10 == pytest.approx(
        (own["virtual_seconds"] - 10) * factor, rel=1e-3
    )


def test_help_is_grouped() -> None:
    text = get_parser().format_help()
    for group in ("training:", "problem:", "compute:", "network:"):
        assert f"\n{group}\n" in text


TIME_ONLY = ["--time_only", "--model_bytes", "1e9", "--learners", "4"]


def test_fragments_take_turns_where_only_time_is_simulated(tmp_path: Path) -> None:
    """A delay of one step hides the averages of eight; 300 steps take 90 seconds."""
    seconds = []
    for number, options in enumerate(
        (["period=16", "delay=15"], ["period=16", "delay=1", "fragments=8"])
    ):
        given = [word for option in options for word in ("--option", option)]
        command = [*TIME_ONLY, "--algorithm", "local_sgd", "--bandwidth", "5e9", *given]
        (trial,) = simulate_plainly(tmp_path / str(number), command)
        seconds.append(trial["virtual_seconds"])
    assert 90 < seconds[1] <= seconds[0] < 100


def test_time_only_on_a_cluster_with_a_shared_card(tmp_path: Path) -> None:
    """Ten steps of 0.2 + 2 * 0.4 s; a ring sends 1.5 GB of each node, at 1 GB/s.

    It begins with the first of four buckets, half a second after the step. The start
    sends the model once, and the end of the epoch 1.5 times and, for the consensus,
    once more.
    """
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text(
        "per_node: 2\n"
        "between: {bandwidth: 1 GB/s}\n"
        "card: 1 GB/s\n"
        "step: {fixed: 200 ms, sample: 400 ms}\n"
    )
    arguments = [*TIME_ONLY, "--cluster", str(cluster), "--batch_size", "8"]
    arguments += ["--samples", "80", "--epochs", "1", "--algorithm", "allreduce"]
    (trial,) = simulate_plainly(tmp_path / "out", arguments)
    assert trial["virtual_seconds"] == pytest.approx(
        1 + 10 * (0.5 + 1.5) + 1.5 + 1, rel=0.01
    )
    table = (tmp_path / "out" / "table.md").read_text()
    assert "without gradients" in table and "card of 1 GB/s, shared" in table

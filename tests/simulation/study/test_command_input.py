"""These tests give the command `simulate` bad input, which it refuses in one line."""

from pathlib import Path

import pytest

from espnet_distopt.bin.simulate import main
from tests.simulation.study.test_command import TINY


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--algorithm sgd", "unknown algorithm 'sgd'; there are: "),
        ("--option period=2", "--option period: none of --algorithm knows it"),
        ("--option period", "--option period: expected KEY=VALUE"),
        ("--algorithm bmuf --option period=x", "period must be an integer"),
        ("--topology torus", "--topology torus: none of --algorithm knows it; they kn"),
        ("--algorithm bmuf --topology ring", "none of --algorithm knows it"),
        ("--option topology=ring --topology ring", "--topology says that already"),
        ("--distopt_config nowhere.yaml", "nowhere.yaml: No such file"),
        ("--learners 0", "the number of learners must be >= 1"),
        ("--learners 3", "32 samples has no equal shares for 3 learners"),
        ("--samples 31", "31 samples is less than a batch of 32"),
        ("--batch_size 0", "batch_size must be >= 1"),
        ("--epochs 0", "epochs must be >= 1"),
        ("--seed -1", "--seed must be >= 0"),
        ("--lr 0", "--lr must be > 0"),
        ("--momentum 1", "--momentum must be in [0, 1)"),
        ("--optim adam --momentum 0.9", "--momentum belongs to --optim sgd"),
        ("--dimension 0", "the dimension must be >= 1"),
        ("--condition 0.5", "the condition must be >= 1"),
        ("--noise -1", "the noise must be >= 0"),
        ("--train_args -x", "--train_args belongs to --config"),
        ("--config nowhere.yaml", "nowhere.yaml: No such file"),
        ("--step_seconds 0", "a step must take seconds > 0"),
        ("--time_only", "--time_only and --advise need --model_bytes"),
        ("--advise --algorithm bmuf", "--advise tries all algorithms"),
        ("--step_seconds inf", "a step must take seconds > 0"),
        ("--latency inf", "latency must be >= 0"),
        ("--straggler 3:inf", "slowdown of learner 3 must be > 0"),
        ("--time_only --config x.yaml", "--time_only learns nothing"),
        ("--cluster nowhere", "nowhere: no such file, and none of the clusters"),
        ("--cluster ibm_v100 --latency 1", "--latency: ibm_v100 says that already"),
        ("--cluster ibm_v100 --step_seconds 1", "--step_seconds: ibm_v100 says that"),
        ("--spread -1", "the spread of steps must be >= 0"),
        ("--trace nowhere", "nowhere: cannot be read"),
        ("--straggler 3", "--straggler 3: expected RANK:NUMBER"),
        ("--straggler 3:x", "--straggler 3:x: expected RANK:NUMBER"),
        ("--straggler 3:2 3:4", "--straggler: learner 3 is given twice"),
        ("--straggler 16:2", "there is no learner 16 among 16"),
        ("--straggler 3:0", "slowdown of learner 3 must be > 0"),
        ("--fault 2:crash", "--fault '2:crash' is not a fault: RANK:crash:SECOND"),
        ("--fault 2:join:5", "no learner can join a training by allreduce"),
        ("--fault 2:crash:-1", "'2:crash:-1': a fault happens at seconds >= 0"),
        ("--fault 2:stop:1", "a fault is one of crash, silence, join, not 'stop'"),
        ("--fault 2:silence:1", "a silence lasts seconds > 0, not 0.0"),
        ("--fault 2:crash:1:3", "a crash lasts no seconds, not 3.0"),
        ("--learners 2 16 --fault 2:crash:1", "there is no learner 2 among 2"),
        ("--latency -1", "latency must be >= 0"),
        ("--bandwidth 0", "bandwidth must be > 0"),
        ("--inside_bandwidth 0", "bandwidth must be > 0"),
        ("--per_node 0", "per_node must be >= 1"),
        ("--loss 1", "the loss must be in [0, 1)"),
        ("--model_bytes 0", "model_bytes must be > 0"),
    ],
)
def test_bad_input_ends_in_one_line(
    arguments: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    if arguments.startswith("--train_args"):
        arguments = arguments.replace(" ", "=")
    with pytest.raises(SystemExit) as ended:
        main([*TINY, "--out", "out", *arguments.split()])
    assert ended.value.code == 2
    written = capsys.readouterr()
    assert written.out == ""
    assert written.err.startswith("error: ") and message in written.err
    assert written.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("0.3\n0,4\n", "trace:2: expected seconds: '0,4'"),
        ("0.3\n0\n", "step 1 of the trace must take seconds > 0"),
        ("", "trace: expected seconds of steps, one a line; it is empty"),
    ],
)
def test_bad_traces(
    content: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "trace").write_text(content)
    with pytest.raises(SystemExit):
        main([*TINY, "--trace", str(tmp_path / "trace")])
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("optim: adam\n", "has no `distopt: ALGORITHM`"),
        ("distopt: bmuf\ndistopt_conf: 3\n", "must be `option: value` lines"),
        ("distopt: sgd\n", "unknown algorithm 'sgd'"),
    ],
)
def test_bad_methods(
    content: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "m.yaml").write_text(content)
    with pytest.raises(SystemExit):
        main([*TINY, "--distopt_config", str(tmp_path / "m.yaml")])
    assert message in capsys.readouterr().err


def test_a_name_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bmuf.yaml").write_text("distopt: bmuf\n")
    with pytest.raises(SystemExit):
        main(
            [*TINY, "--algorithm", "bmuf", "--distopt_config", f"{tmp_path}/bmuf.yaml"]
        )
    assert "two methods are called 'bmuf'" in capsys.readouterr().err


def test_advice_is_of_learners_that_live(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([*TINY, "--advise", "--fault", "3:crash:1"])
    assert "tries all algorithms, without faults" in capsys.readouterr().err


def test_nothing_of_others_is_replaced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(SystemExit):
        main([*TINY, "--out", str(tmp_path)])
    written = capsys.readouterr()
    assert "is not empty and has no table.md" in written.err and written.out == ""

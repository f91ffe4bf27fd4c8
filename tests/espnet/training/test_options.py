"""Wrong options end in one line, before anything is trained."""

import argparse
import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

from espnet_distopt.bin import asr_train
from espnet_distopt.errors import InputError
from espnet_distopt.espnet.training.options import (
    check_early,
    check_gpus,
    gpus_of_machine,
    settle,
)
from espnet_distopt.recipes.commands import check
from tests.espnet.toy import arguments, write_toy_data
from tests.refusal import error_of

asr_train.get_parser()  # It imports ESPnet, which prints.


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("toy")
    write_toy_data(root, train=4, valid=2)
    return root


WRONG = {
    "unknown algorithm": (["--distopt", "adpsdg"], "; did you mean adpsgd?"),
    "unknown option": (
        ["--distopt", "bmuf", "--distopt_conf", "perod=4"],
        "unknown option 'perod'; did you mean period? Known, with their defaults:",
    ),
    "wrong type": (
        ["--distopt", "bmuf", "--distopt_conf", "period=eight"],
        "period must be an integer, not 'eight'",
    ),
    "out of range": (
        ["--distopt", "bmuf", "--distopt_conf", "momentum=1.5"],
        "momentum must be in [0, 1), not 1.5",
    ),
    "heartbeats too often": (
        ["--distopt", "adpsgd", "--distopt_conf", "heartbeat_seconds=0.5"],
        "heartbeat_seconds must be at least 1, a number, not 0.5",
    ),
    "repetition in words": (
        ["--distopt", "adpsgd", "--distopt_conf", "repeat_begun=sometimes"],
        "repeat_begun must be true or false, not 'sometimes'",
    ),
    "heartbeats in words": (
        ["--distopt", "adpsgd", "--distopt_conf", "heartbeat_seconds=ten"],
        "heartbeat_seconds must be at least 1, a number, not 'ten'",
    ),
    "half a node": (
        [
            *("--distopt", "hadpsgd", "--distopt_conf", "per_node=2"),
            *("--dist_world_size", "3", "--dist_rank", "0"),
        ],
        "3 learners do not make nodes of per_node = 2",
    ),
    "options without an algorithm": (
        ["--distopt_conf", "period=4"],
        "distopt_conf has period, and no distopt says of which algorithm",
    ),
    "no such file": (
        ["--distopt_config", "nowhere.yaml"],
        "nowhere.yaml: No such file",
    ),
    "a learner of two GPUs": (
        ["--distopt", "bmuf", "--ngpu", "2"],
        "add --multiprocessing_distributed true",
    ),
    "DeepSpeed": (
        ["--distopt", "bmuf", "--use_deepspeed", "true"],
        "leave out either use_deepspeed or distopt",
    ),
    "sharded DDP": (
        ["--distopt", "bmuf", "--sharded_ddp", "true"],
        "leave out either sharded_ddp or distopt",
    ),
    "a hook of DDP": (
        ["--distopt", "bmuf", "--ddp_comm_hook", "fp16_compress_hook"],
        "leave out either ddp_comm_hook or distopt",
    ),
    "early stopping on a figure that is not shared": (
        [
            *("--distopt", "bmuf", "--dist_world_size", "2", "--dist_rank", "0"),
            *("--patience", "2", "--early_stopping_criterion", "train", "loss", "min"),
        ],
        "use valid.loss",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_options_end_in_one_line_that_says_what_is_wrong(
    case: str, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options, message = WRONG[case]
    cmd = arguments(data, tmp_path / "exp", *options)
    assert message in error_of(asr_train.main, cmd, capsys)
    assert not (tmp_path / "exp").exists()


@pytest.mark.parametrize("option", ["--config", "--distopt_config"])
@pytest.mark.parametrize("conf", ["[period]", "8"])
def test_options_that_are_no_lines_end_in_one_line(
    option: str,
    conf: str,
    data: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = tmp_path / "train.yaml"
    config.write_text(f"distopt: bmuf\ndistopt_conf: {conf}\n")
    commands = {
        asr_train.main: arguments(data, tmp_path / "exp", option, str(config)),
        check.main: [option, str(config)],
    }
    for main, command in commands.items():
        said = error_of(main, command, capsys)
        assert "distopt_conf must be `option: value` lines, not" in said


def test_a_training_without_a_directory(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = arguments(data, data / "exp", "--distopt", "adpsgd")
    at = words.index("--output_dir")
    with pytest.raises(SystemExit) as end:
        asr_train.main(words[:at] + words[at + 2 :])
    assert end.value.code == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) <= 3, "ESPnet's own message is 500 lines long"
    assert said[-1] == "error: --output_dir is required"


def test_a_mistake_of_a_word_is_told_in_a_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The list of options was 270 lines long."""
    with pytest.raises(SystemExit) as end:
        asr_train.main(["--max_epoch", "many"])
    assert end.value.code == 2
    [said] = capsys.readouterr().err.splitlines()
    assert said.startswith("error: argument --max_epoch: invalid int value: 'many' (")
    with pytest.raises(SystemExit):
        asr_train.main(["--maxepochs", "3"])
    [said] = capsys.readouterr().err.splitlines()
    assert said.endswith("arguments: --maxepochs 3; did you mean --max_epoch?")


EARLY = {
    "as options": ["--distopt", "bmuf", "--distopt_conf", "perod=4"],
    "in the configuration": ["--config", "train.yaml"],
    "over the configuration": ["--config", "good.yaml", "--distopt_conf", "perod=4"],
    "in a file of its own": ["--distopt_config", "train.yaml", "--config", "no.yaml"],
}


@pytest.mark.parametrize("case", EARLY)
def test_a_wrong_option_is_refused_before_espnet_is_imported(
    case: str, tmp_path: Path
) -> None:
    """The import takes seconds, and much longer on a busy machine."""
    (tmp_path / "train.yaml").write_text("distopt: bmuf\ndistopt_conf: {perod: 4}\n")
    (tmp_path / "good.yaml").write_text("distopt: bmuf\ndistopt_conf: {period: 4}\n")
    (tmp_path / "no.yaml").write_text("max_epoch: 3\n")
    module = ["-m", "espnet_distopt.bin.asr_train"]
    done = subprocess.run(
        [sys.executable, "-X", "importtime", *module, *EARLY[case]],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    last = done.stderr.splitlines()[-1]
    assert "unknown option 'perod'" in last and "did you mean period?" in last
    assert "espnet2.tasks" not in done.stderr


@pytest.mark.parametrize("value", ["[adpsgd, bmuf]", "{adpsgd: 4}", "true", "1"])
def test_an_algorithm_is_one_name(value: str, tmp_path: Path) -> None:
    (tmp_path / "train.yaml").write_text(f"distopt: {value}\n")
    with pytest.raises(InputError, match="distopt: expected one name, not "):
        check_early(["--config", str(tmp_path / "train.yaml")])


def test_options_of_the_configurations_own_algorithm_are_told_apart(
    tmp_path: Path,
) -> None:
    config = tmp_path / "train.yaml"
    config.write_text("distopt: adpsgd\ndistopt_conf: {max_staleness: 4}\n")
    command = [
        "--config",
        str(config),
        "--distopt",
        "bmuf",
        "--distopt_conf",
        "period=2",
    ]
    whose = (
        rf"unknown option 'max_staleness'.*{config} has distopt: adpsgd, and perhaps"
    )
    with pytest.raises(InputError, match=whose):
        check_early(command)


STARTS = {
    "2 learners by adpsgd, batch_size 16 each": ["--config", "train.yaml"],
    "2 learners by adpsgd, batch_bins 2000 each, accum_grad 2": [
        *("--config", "train.yaml", "--batch_type", "numel", "--batch_bins", "4000"),
        *("--accum_grad", "2"),
    ],
    "2 learners by DDP, batch_size 10 each": [],
}


@pytest.mark.parametrize("what", STARTS)
def test_the_first_line_says_what_begins(
    what: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "train.yaml").write_text("distopt: adpsgd\nbatch_size: 32\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        check_early([*STARTS[what], "--output_dir", "exp"])
    assert capsys.readouterr().out == f"{what}\n"


@pytest.mark.parametrize("size", [1, 2])
def test_an_algorithm_that_has_one_learner_is_told(
    size: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who forgets the launcher gets a training without a word of the algorithm."""
    words = ["--distopt", "adpsgd", "--output_dir", str(tmp_path), "--ngpu", "0"]
    words += ["--dist_world_size", str(size), "--dist_rank", "0"]
    monkeypatch.setattr(sys, "argv", ["distopt espnet_train", "st", *words])
    settle(asr_train.get_parser().parse_args(words))
    told = capsys.readouterr().err
    assert ("adpsgd has one learner, and trains as without" in told) == (size == 1)
    program = "launch --nproc 2 -m espnet_distopt espnet_train st ..."
    assert (program in told) == (size == 1)


def test_stock_espnet_by_a_configuration_of_an_algorithm(tmp_path: Path) -> None:
    """`--distopt none` beside options is a baseline, and no mistake."""
    words = ["--distopt", "none", "--distopt_conf", "period=4"]
    words += ["--output_dir", str(tmp_path), "--ngpu", "0"]
    args = asr_train.get_parser().parse_args(words)
    settle(args)
    assert args.distopt is None
    args = asr_train.get_parser().parse_args(words[4:])
    settle(args)
    assert args.distopt is None


@pytest.mark.parametrize(
    ("ngpu", "local_rank", "environment", "gpus"),
    [
        (0, None, {"LOCAL_WORLD_SIZE": "3"}, 0),
        (1, None, {}, 1),
        (1, None, {"LOCAL_WORLD_SIZE": "3"}, 3),
        (1, 0, {"LOCAL_WORLD_SIZE": "3"}, 1),
        (4, None, {}, 4),
    ],
)
def test_gpus_that_the_learners_of_a_machine_need(
    ngpu: int, local_rank: int | None, environment: dict[str, str], gpus: int
) -> None:
    args = argparse.Namespace(ngpu=ngpu, local_rank=local_rank)
    assert gpus_of_machine(args, environment) == gpus


def test_any_learner_says_that_there_is_no_gpu(
    data: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    monkeypatch.setenv("RANK", "5")
    cmd = arguments(data, tmp_path / "exp", "--ngpu", "1")
    for local_rank in ("0", "1"):
        monkeypatch.setenv("LOCAL_RANK", local_rank)
        assert "PyTorch sees none" in error_of(asr_train.main, cmd, capsys)
    assert not (tmp_path / "exp").exists()


def test_check_reads_the_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "train.yaml"
    config.write_text("distopt: bmuf\ndistopt_conf: {period: 0}\n")
    command = ["--config", str(config), "--nlearners", "2"]
    assert "period must be >= 1, not 0" in error_of(check.main, command, capsys)
    config.write_text("distopt: bmuf\ndistopt_conf: {period: 4}\n")
    check.main(command)
    none = ["--distopt", "bmuf", "--nlearners", "0"]
    assert "must be >= 1, not 0" in error_of(check.main, none, capsys)


def test_check_wants_a_gpu_for_each_learner(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    config = tmp_path / "train.yaml"
    config.write_text("distopt: bmuf\n")
    command = ["--config", str(config), "--nlearners", "2", "--gpus"]
    said = error_of(check.main, command, capsys)
    assert said.startswith("2 learners on this machine need a GPU each")
    check.main([*command, "--share_gpu"])
    config.write_text("distopt: bmuf\nlocal_rank: 0\ndist_backend: gloo\n")
    check.main(command)


@pytest.mark.parametrize(
    ("there", "learners", "task", "message"),
    [
        (0, 1, None, "PyTorch sees none"),
        (2, 3, None, "3 learners on this machine need a GPU each, and PyTorch sees 2:"),
        (2, 2, None, None),
        (8, 1, None, None),
        # With --gpus-per-task=1 each task sees one GPU, whatever its number.
        (1, 4, "3", "its own .srun --gpus-per-task=1., add --local_rank 0; if not"),
    ],
)
def test_learners_need_a_gpu_each(
    there: int,
    learners: int,
    task: str | None,
    message: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("SLURM_PROCID", raising=False)
    if task is not None:
        monkeypatch.setenv("SLURM_PROCID", task)
    monkeypatch.setattr("torch.cuda.device_count", lambda: there)
    refused = pytest.raises(InputError, match=message) if message else nullcontext()
    with refused:
        check_gpus(learners)

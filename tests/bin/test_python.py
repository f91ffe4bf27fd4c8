"""ESPnet's own `launch` starts trainings by `distopt-python`, as asr.sh does."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from espnet_distopt.bin.python import command
from espnet_distopt.errors import InputError
from tests.espnet.toy import arguments, write_toy_data

STOCK = ["-m", "espnet2.bin.asr_train"]
OURS = ["-m", "espnet_distopt.bin.espnet_train", "asr"]
LAUNCH = ["-m", "espnet_distopt.bin.launch"]
OF_ESPNET = ["--ngpu", "4", "--multiprocessing_distributed", "True"]
OF_A_LEARNER = ["--ngpu", "1", "--multiprocessing_distributed", "false"]


@pytest.fixture
def config(tmp_path: Path) -> list[str]:
    path = tmp_path / "train.yaml"
    path.write_text("distopt: adpsgd\n")
    return ["--config", str(path)]


@pytest.mark.fast
def test_a_training_on_gpus_gets_a_learner_each(config: list[str]) -> None:
    words = [*config, *OF_ESPNET]
    ran = command([*STOCK, *words], {})
    assert ran == [*LAUNCH, "--nproc", "4", *OURS, *words, *OF_A_LEARNER]
    more = {"DISTOPT_LAUNCH": "--restarts 3 --nproc 8"}
    launch = [*LAUNCH, "--nproc", "4", "--restarts", "3", "--nproc", "8"]
    ran = command([*STOCK, *words], more)
    assert ran == [*launch, *OURS, *words, *OF_A_LEARNER]


@pytest.mark.fast
@pytest.mark.parametrize(
    "alone",
    [
        ["--ngpu", "1"],
        [*OF_ESPNET, "--collect_stats", "true"],
        [*OF_ESPNET, "--dist_launcher", "slurm"],
        [*OF_ESPNET, "--dist_rank", "0", "--dist_world_size", "4"],
        [*OF_ESPNET, "--distopt", "none"],
    ],
)
def test_one_process_that_knows_the_options(
    config: list[str], alone: list[str]
) -> None:
    assert command([*STOCK, *config, *alone], {}) == [*OURS, *config, *alone]


@pytest.mark.fast
def test_options_of_the_launcher_that_cannot_be_read(config: list[str]) -> None:
    with pytest.raises(InputError, match="DISTOPT_LAUNCH=--slow '1:2: No closing"):
        command([*STOCK, *config], {"DISTOPT_LAUNCH": "--slow '1:2"})


@pytest.mark.fast
def test_a_file_of_its_own_names_the_algorithm(
    config: list[str], tmp_path: Path
) -> None:
    plain = tmp_path / "plain.yaml"
    plain.write_text("max_epoch: 3\nngpu: 2\n")
    words = ["--config", str(plain), "--distopt_config", config[1]]
    ran = command([*STOCK, *words], {})
    assert ran == [*LAUNCH, "--nproc", "2", *OURS, *words, *OF_A_LEARNER]


@pytest.mark.fast
def test_another_task(config: list[str]) -> None:
    ran = command(["-m", "espnet2.bin.enh_s2t_train", *config, "--ngpu", "1"], {})
    assert ran == [*OURS[:2], "enh_s2t", *config, "--ngpu", "1"]


@pytest.mark.fast
def test_all_else_is_python(tmp_path: Path) -> None:
    plain = tmp_path / "plain.yaml"
    plain.write_text("max_epoch: 3\n")
    for words in (
        [*STOCK, "--config", str(plain), *OF_ESPNET],
        ["-m", "espnet2.bin.asr_inference", "--config", "no/such.yaml"],
        ["-m"],
        ["-m", "espnet2.bin.launch", "--", "distopt-python", *STOCK],
        ["script.py", "--distopt", "adpsgd"],
        [],
    ):
        assert command(words, {"DISTOPT_LAUNCH": "--nproc 2"}) == words


def run(words: Sequence[str], **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "espnet_distopt.bin.python", *words],
        env=os.environ | {"OMP_NUM_THREADS": "1"} | more,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.processes
def test_the_status_is_that_of_the_program() -> None:
    assert run(["-c", "import sys; sys.exit(7)"]).returncode == 7
    missing = run([*STOCK, "--config", "no/such.yaml"])
    assert missing.returncode == 2
    assert "no/such.yaml" in missing.stderr
    assert "Traceback" not in missing.stderr


RUN_PL = """\
#!/usr/bin/env bash
# As Kaldi's run.pl --gpu N LOG COMMAND.
shift 2
log=$1
shift
"$@" >"$log" 2>&1
"""


@pytest.mark.processes
@pytest.mark.timeout(600)
def test_the_stages_10_and_11_of_a_recipe(tmp_path: Path, config: list[str]) -> None:
    write_toy_data(tmp_path)
    words = [*STOCK, *config]
    stats = tmp_path / "stats"
    own = ["--collect_stats", "true", *arguments(tmp_path, stats)]
    ran = run([*words, *own], DISTOPT_LAUNCH="--nproc 2")
    assert ran.returncode == 0, ran.stderr
    assert (stats / "train/speech_shape").exists()

    run_pl, log, exp = tmp_path / "run.pl", tmp_path / "train.log", tmp_path / "exp"
    run_pl.write_text(RUN_PL)
    run_pl.chmod(0o755)
    launch = ["-m", "espnet2.bin.launch", "--cmd", str(run_pl), "--log", str(log)]
    launch += ["--ngpu", "0", "--num_nodes", "1", "--multiprocessing_distributed"]
    launch += ["true", "--", sys.executable, "-m", "espnet_distopt.bin.python"]
    ran = run([*launch, *words, *arguments(tmp_path, exp)], DISTOPT_LAUNCH="--nproc 2")
    assert ran.returncode == 0, ran.stderr + log.read_text()
    assert (exp / "valid.loss.best.pth").exists()
    assert "consensus_distance" in log.read_text()
    assert len(list((exp / "distopt").glob("*"))) > 1

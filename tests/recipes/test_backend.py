"""These tests cover cmd_backend=slurm without Slurm, and stopping on request."""

import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.recipes.toy_recipe import ROOT, Recipe

GOLDEN = Path(__file__).parent / "golden"
SLURM = {"cmd_backend": "slurm", "STUB_REAL": "slurm"}
SETTINGS = """\
partition: cpu
nodes: 2
tasks_per_node: 8
train: {partition: gpu, tasks_per_node: 4}
decode: {time: 60}
"""
DRY_RUNS = {
    "dry_run": ["--distopt", "none adpsgd", "--nlearners", "6"],
    "submit_all": [
        *("--submit_all", "true", "--distopt", "none adpsgd", "--use_lm", "true"),
        *("--test_sets", "test more", "--nlearners", "6", "--ngpu", "1", "--nj", "3"),
    ],
}

SHOWN = re.compile(
    r"#+ (job|stage|to end|exp/)|srun |    (-|env |/)"
    r"|#SBATCH --(?!chdir|open-mode|export|signal|kill-on)"
)


@pytest.fixture
def slurm(recipe: Recipe) -> Recipe:
    """Return a recipe with settings for Slurm and a language model."""
    (recipe.directory / "conf" / "slurm.yaml").write_text(SETTINGS)
    (recipe.directory / "conf" / "lm.yaml").write_text("lm: seq_rnn\n")
    return recipe


def outline(text: str, recipe: Recipe) -> str:
    """Return the resources and commands of batch scripts, without the common parts."""
    lines = [line for line in text.splitlines(keepends=True) if SHOWN.match(line)]
    shown = "".join(lines)
    places = {recipe.directory: "RECIPE", recipe.environment["PYTHON"]: "python"}
    places |= {Path(sys.executable): "python"}
    places |= {recipe.directory.parents[2]: "ROOT", ROOT: "ROOT"}
    for place, name in places.items():
        shown = shown.replace(str(place), name)
    return shown


@pytest.mark.parametrize("name", DRY_RUNS)
def test_dry_run(name: str, slurm: Recipe, tmp_path: Path) -> None:
    """To accept new scripts, copy the file that the failure names over the old one."""
    done = slurm.ends("--dry_run", "true", *DRY_RUNS[name], job_variables="", **SLURM)
    assert (done.returncode, done.stderr) == (0, "")
    found, golden = tmp_path / name, GOLDEN / f"{name}.txt"
    found.write_text(outline(done.stdout, slurm))
    assert found.read_text() == golden.read_text(), f"cp {found} {golden}"
    assert {*slurm.modules()} == {"check", "slurm"}
    for made in ("data", "dump", "exp"):
        assert not (slurm.directory / made).exists()


@pytest.mark.parametrize(
    ("options", "variables", "message"),
    [
        ([], {}, "cmd_backend=slurm: sbatch is not on PATH; "),
        (["--submit_all", "true"], {}, "cmd_backend=slurm: sbatch is not on PATH; "),
        ([], {"SLURM_JOB_ID": "7"}, "cmd_backend=slurm inside job 7: submit from"),
        ([], {"cmd_backend": "sge"}, "cmd_backend=sge is not known, expected local or"),
        (["--slurm_config", "x"], {}, "x: no such file (in "),
        (["--dry_run", "true"], {"cmd_backend": "local"}, "--dry_run shows jobs: it"),
        (["--submit_all", "true"], {"cmd_backend": "local"}, "--submit_all needs cmd_"),
        (
            ["--submit_all", "true", "--dry_run", "true", "--slurm_config", "bad.yaml"],
            {},
            "bad.yaml:1: unknown key 'nods'",
        ),
    ],
)
def test_refused_before_stage_1(
    slurm: Recipe, options: list[str], variables: dict[str, str], message: str
) -> None:
    path = path_of_programs(slurm, sbatch="SLURM_JOB_ID" in variables)
    (slurm.directory / "bad.yaml").write_text("nods: 1\n")
    error = slurm.refused(*options, **{**SLURM, "PATH": path, **variables})
    assert error.startswith(message)
    assert not (slurm.directory / "data").exists()


def path_of_programs(recipe: Recipe, sbatch: bool) -> str:
    """Return a PATH without Slurm, except for a `sbatch` that refuses the third job."""
    programs = recipe.directory / "bin"
    programs.mkdir()
    for name in PROGRAMS:
        (programs / name).symlink_to(f"/usr/bin/{name}")
    if sbatch:
        for name, text in FAKE_SLURM.items():
            (programs / name).write_text(f"#!/bin/sh\n{text}\n")
            (programs / name).chmod(0o755)
    return str(programs)


PROGRAMS = ("awk", "basename", "bash", "cat", "date", "dirname", "env", "grep", "mkdir")
PROGRAMS += ("cksum", "mv", "rm", "sed", "sh", "sleep", "sort", "tail", "wc")
FAKE_SLURM = {
    "sbatch": "echo x >>jobs; n=$(wc -l <jobs); [ $n -lt 3 ] && echo 10$n && exit\n"
    "echo 'sbatch: error: no more jobs' >&2; exit 1",
    "scancel": 'echo "$@" >cancelled',
    "scontrol": "exit 1",
}


def test_a_recipe_is_queued_as_a_whole_or_not_at_all(slurm: Recipe) -> None:
    path = path_of_programs(slurm, sbatch=True)
    done = slurm.ends("--submit_all", "true", **{**SLURM, "PATH": path})
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "error: exp/log/tokens.sbatch: Slurm refused the job: no more jobs",
        "error: toy.tokens was not submitted",
        "cancelled: 101 102",
    ]
    assert (slurm.directory / "cancelled").read_text() == "101 102\n"


def test_ctrl_c_leaves_no_part_of_a_recipe_in_the_queue(slurm: Recipe) -> None:
    path = path_of_programs(slurm, sbatch=True)
    sbatch = slurm.directory / "bin" / "sbatch"
    wait = "[ $n -lt 3 ] || { : >third; until [ -e go ]; do sleep 0.05; done; }\n"
    sbatch.write_text(sbatch.read_text().replace("[ $n -lt 3 ] && ", wait))
    variables = {**SLURM, "PATH": path}
    script = str(ROOT / "local" / "asr.sh")
    process = slurm.start(script, "--submit_all", "true", **variables)
    until((slurm.directory / "third").exists, process)
    process.send_signal(signal.SIGINT)
    (slurm.directory / "go").touch()
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors.splitlines()[-1] == "cancelled: 101 102"
    assert (slurm.directory / "cancelled").read_text() == "101 102\n"


def until(what: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    """Wait until something holds, while a process runs."""
    deadline = time.monotonic() + 30
    while not what():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def test_a_queued_stage_runs_in_its_job_though_cmd_sh_names_slurm(
    slurm: Recipe,
) -> None:
    with (slurm.directory / "cmd.sh").open("a") as file:
        file.write("cmd_backend=slurm\n")
    options = ("--submit_all", "true", "--dry_run", "true")
    shown = slurm.ends(*options, STUB_REAL="slurm").stdout
    scripts = dict(part.split("\n", 1) for part in shown.split("### ")[1:])
    for name in ("data", "format", "tokens"):
        script = scripts[f"exp/log/{name}.sbatch"]
        command = script[script.index("    env ") :].partition(" &\n")[0]
        job = slurm.run("bash", "-c", command, SLURM_JOB_ID="7")
        assert (job.returncode, job.stderr) == (0, "")
    assert (slurm.directory / "data/token_list/word/tokens.txt").exists()


def test_queued_stages_need_what_is_not_queued(slurm: Recipe) -> None:
    path = path_of_programs(slurm, sbatch=True)
    options = ("--submit_all", "true", "--stage", "11")
    assert slurm.refused(*options, **{**SLURM, "PATH": path}) == (
        "dump/train/wav.scp is missing: run from stage 3 (--stage 3)"
    )


def test_queued_decodings_have_their_ngram(slurm: Recipe) -> None:
    slurm.asr("--stop_stage", "10")
    (slurm.directory / "conf" / "decode.yaml").write_text("search: words\n")
    path = path_of_programs(slurm, sbatch=True)
    options = ("--submit_all", "true", "--stage", "11")
    variables = {**SLURM, "PATH": path, "STUB_REAL": "make_ngram"}
    slurm.ends(*options, **variables)
    assert (slurm.directory / "data/ngram/words_3.arpa").exists()


def test_queued_trainings_have_their_statistics(slurm: Recipe) -> None:
    slurm.asr("--stop_stage", "10")
    with (slurm.directory / "dump/train/text").open("a") as text:
        text.write("c-3 four\n")
    path = path_of_programs(slurm, sbatch=True)
    options = ("--submit_all", "true", "--stage", "11")
    assert slurm.refused(*options, **{**SLURM, "PATH": path}) == (
        "exp/stats_word/valid/text_shape.word was not made of dump/train/text "
        "as it is now: run from stage 10 (--stage 10)"
    )
    assert not (slurm.directory / "jobs").exists()


@pytest.mark.parametrize("algorithm", ["none", "adpsgd"])
def test_stopped_on_request(recipe: Recipe, algorithm: str) -> None:
    recipe.asr("--stop_stage", "10")
    options = ("--stage", "11", "--distopt", algorithm)
    done = recipe.ends(*options, STUB_STOP="asr_train")
    exp = f"exp/asr_{algorithm}_{1 if algorithm == 'none' else 2}"
    assert (done.returncode, done.stderr) == (
        75,
        f"training {exp} was stopped on request; "
        "the same command again goes on from there\n",
    )
    recipe.asr(*options)


def test_parts_of_a_decoding(recipe: Recipe) -> None:
    """The parts run as an array's jobs do: by themselves, some with nothing to do."""
    recipe.asr("--stop_stage", "11")
    script = str(ROOT / "local" / "decode.sh")
    options = ["--exp", "exp/asr_adpsgd_2", "--data", "dump/test", "--out", "out"]
    options += ["--nj", "3", "--part"]
    for part in ("3", "1"):
        done = recipe.run(script, *options, part)
        assert done.returncode == 0, done.stderr
    assert "part 3 has no utterances" in recipe.run(script, *options, "3").stdout
    done = recipe.run(script, *options, "merge")
    assert done.returncode != 0
    assert not (recipe.directory / "out" / "text").exists()
    assert recipe.run(script, *options, "2").returncode == 0
    assert recipe.run(script, *options, "merge").returncode == 0
    assert (recipe.directory / "out" / "text").read_text() == (
        "a-1 one two\nb-2 three\n"
    )
    # A part that runs again removes results, which are no longer those of all parts.
    (recipe.directory / "out" / "score_wer").mkdir()
    assert recipe.run(script, *options, "1").returncode == 0
    for name in ("text", "score_wer"):
        assert not (recipe.directory / "out" / name).exists()
    assert recipe.run(script, *options, "x").returncode == 2

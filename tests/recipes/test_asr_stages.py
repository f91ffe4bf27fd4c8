"""These tests run local/asr.sh on toy data: which programs it starts, how it ends."""

import os
import shutil
import signal
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest

from tests.recipes.contents import contents
from tests.recipes.toy_recipe import Recipe

BEFORE_TRAINING = ["format_data"] * 3 + ["make_tokens", "speech_shapes"]


def test_all_stages(recipe: Recipe) -> None:
    done = recipe.asr(
        "--distopt", "none allreduce", "--halves", "a=^a b=^b", "--note", "Toy speech."
    )
    assert recipe.modules() == [
        *["check", "check", "check", *BEFORE_TRAINING, "asr_train", "asr_train"],
        *["asr_inference"] * 4,
        *["score", "score", "wer_report"],
    ]
    report = (recipe.directory / "exp" / "RESULTS.md").read_text()
    assert "Toy speech." in report
    assert "- decoded model: valid.loss.ave.pth (valid.loss.ave_3best.pth)\n" in report
    for name in ("asr_none_1", "asr_allreduce_2"):
        assert f"| {name} | - | - | - | - | 0.0 | 0.0 | 0.0 |" in report
    assert "epoch 1: loss 1.0" in done.stdout
    log = recipe.directory / "exp" / "asr_none_1" / "train.log"
    assert log.read_text() == "a line of the log\n"


@pytest.mark.parametrize("stages", [["--stop_stage", "5"], ["--stage", "3"]])
def test_a_half_without_utterances_ends_the_recipe_early(
    recipe: Recipe, stages: list[str]
) -> None:
    recipe.asr("--stop_stage", "1")
    assert recipe.refused("--halves", "a=^a c=^c", *stages, STUB_REAL="check") == (
        "data/test/text: half c: no id matches '^c', an id looks like a-1 "
        "(--halves of a recipe)"
    )
    assert "format_data" not in recipe.modules()
    # Nothing is scored here.
    options = ["--halves", "c=^c", "--stage", "3", "--stop_stage", "3"]
    recipe.asr(*options, STUB_REAL="check")


def test_halves_of_an_stm_are_not_those_of_the_text(recipe: Recipe) -> None:
    recipe.asr("--stop_stage", "1")
    (recipe.directory / "data" / "test" / "stm").touch()
    options = ["--halves", "c=^c", "--stop_stage", "1"]
    recipe.asr(*options, STUB_REAL="check")


def test_launch(recipe: Recipe) -> None:
    distopt = recipe.directory / "conf" / "distopt"
    distopt.mkdir()
    (distopt / "adpsgd.yaml").write_text("distopt: adpsgd\n")
    recipe.asr("--distopt", "none adpsgd", "--nlearners", "3")
    checks = [call[2:] for call in recipe.calls() if call[1].endswith("check")]
    config = ["--config", "conf/train.yaml"]
    model = ["--model", "valid.loss.ave.pth"]
    # Only the first one looks at what is no algorithm's.
    training = ["--train_program", "espnet_distopt.bin.asr_train", "--train_args", ""]
    first = [*config, "--distopt", "none", "--nlearners", "1", *model, *training]
    assert checks[0] == first
    assert checks[1] == [
        *[*config, "--distopt", "adpsgd"],
        *["--distopt_config", "conf/distopt/adpsgd.yaml", "--nlearners", "3"],
        *model,
    ]
    trainings = [call for call in recipe.calls() if "--resume" in call]
    alone, together = trainings
    # An algorithm that the configuration names is not that of `none`.
    assert alone[:4] == ["-m", "espnet_distopt.bin.asr_train", "--distopt", "none"]
    assert together[:6] == [
        *["-m", "espnet_distopt.bin.launch", "--nproc", "3", "--restarts", "3"]
    ]
    assert together[6:12] == [
        *["-m", "espnet_distopt.bin.asr_train", "--distopt", "adpsgd"],
        *["--distopt_config", "conf/distopt/adpsgd.yaml"],
    ]
    shape = recipe.directory / "exp" / "stats_word" / "train" / "text_shape.word"
    assert shape.read_text() == "a-1 2,4\n"  # the vocabulary size is appended
    shapes = [b for a, b in pairwise(alone) if "shape_file" in a]
    assert [name.split("stats_word/")[1] for name in shapes] == [
        *["train/speech_shape", "train/text_shape.word"],
        *["valid/speech_shape", "valid/text_shape.word"],
    ]


@pytest.mark.parametrize(
    ("given", "backend"), [("--seed 1", "gloo"), ("--dist_backend nccl", "nccl")]
)
def test_learners_that_share_a_gpu(recipe: Recipe, given: str, backend: str) -> None:
    options = ["--ngpu", "1", "--share_gpu", "true", "--nlearners", "3"]
    recipe.asr(*options, "--train_args", given)
    program = "espnet_distopt.bin.asr_train"
    checks = [*["--gpus", "--share_gpu", "--train_program", program], "--train_args"]
    assert recipe.call("check")[-6:] == [*checks, given]
    [training] = [call for call in recipe.calls() if "--resume" in call]
    assert training[1].endswith("launch")
    assert training[2:7] == ["--nproc", "3", "--restarts", "3", "--share-gpu"]
    backends = [b for a, b in pairwise(training) if a == "--dist_backend"]
    assert backends == [backend]
    assert [b for a, b in pairwise(training) if a == "--ngpu"] == ["1"]


def test_learners_that_share_no_gpu(recipe: Recipe) -> None:
    refused = recipe.refused("--share_gpu", "true")
    assert refused == "--share_gpu true needs --ngpu 1"
    (recipe.directory / "conf" / "slurm.yaml").write_text("{}\n")
    slurm = ["--dry_run", "true", "--ngpu", "1", "--share_gpu", "true"]
    refused = recipe.refused(*slurm, cmd_backend="slurm")
    assert refused == "--share_gpu needs cmd_backend=local"
    assert recipe.modules() == []


def test_a_model_that_the_training_would_not_write(recipe: Recipe) -> None:
    config = recipe.directory / "conf/train.yaml"
    config.write_text("best_model_criterion: [[valid, acc, max]]\n")
    refused = recipe.refused(STUB_REAL="check")
    assert refused.endswith("take valid.acc.ave.pth")
    assert recipe.modules() == ["check"]
    # It is there already, or the training has a criterion of its own, or is not run.
    for options in (
        ["--inference_asr_model", "valid.acc.ave.pth", "--stop_stage", "1"],
        ["--train_args", "--best_model_criterion valid,loss,min", "--stop_stage", "1"],
        ["--stop_stage", "11", "--stage", "9", "--dry_run", "true"],
    ):
        done = recipe.ends(*options, STUB_REAL="check")
        assert "will not write" not in done.stderr


def test_a_slow_learner_a_picture_and_what_to_try_next(recipe: Recipe) -> None:
    done = recipe.asr(
        *("--distopt", "none allreduce", "--slow", "1:2", "--title", "Toy"),
        *("--picture", "losses.png", "--next", "Try more learners."),
    )
    alone, together = [call for call in recipe.calls() if "--resume" in call]
    assert "--slow" not in alone
    assert together[1].endswith("launch") and together[6:8] == ["--slow", "1:2"]
    *_, shown = recipe.calls()
    assert shown[1].endswith("status")
    assert shown[-4:-1] == ["--compare", "losses.png", "--title"]
    assert shown[-1] == "Toy (slow learners: 1:2)"
    assert done.stdout.endswith("Try more learners.\n")


def test_the_command_of_the_results_can_be_given_again(recipe: Recipe) -> None:
    recipe.asr("--command", "./run.sh '--distopt' 'none allreduce' '--slow' ''")
    written = (recipe.directory / "exp" / "RESULTS.md").read_text()
    assert "- command: `./run.sh --distopt 'none allreduce' --slow ''`" in written


def test_decoding_by_the_best_path(recipe: Recipe) -> None:
    (recipe.directory / "conf" / "decode.yaml").write_text("search: best_path\n")
    options = ("--decode_config", "conf/decode.yaml", "--lm_config", "conf/train.yaml")
    refused = recipe.refused("--use_lm", "true", *options)
    assert "conf/decode.yaml: the best path uses no language model" in refused
    recipe.asr()
    modules = recipe.modules()
    assert "asr_inference" not in modules and modules.count("ctc_inference") == 2
    assert "| 0.0 |" in (recipe.directory / "exp" / "RESULTS.md").read_text()


def test_each_stage_alone(recipe: Recipe) -> None:
    recipe.asr("--stop_stage", "5")
    assert recipe.modules() == ["check", *BEFORE_TRAINING[:-1]]
    for stage in (10, 11, 12, 13, 12, 13):
        recipe.asr("--stage", str(stage), "--stop_stage", str(stage))
    assert (recipe.directory / "exp" / "RESULTS.md").exists()
    recipe.asr("--stage", "11", "--stop_stage", "11")
    kept = recipe.directory / "exp" / "asr_adpsgd_2" / "train.1.log"
    assert kept.exists()


@pytest.mark.parametrize("speeds", [(), ("--speed_factors", "0.9 1.0")])
def test_only_test_sets_keep_every_utterance_and_none_has_other_speeds(
    recipe: Recipe, speeds: tuple[str, ...]
) -> None:
    given = ["--speed_perturb_factors", *speeds[1:]] if speeds else []
    recipe.asr("--stop_stage", "3", "--nj", "3", *given)
    formatted = [call[2:] for call in recipe.calls() if "format_data" in call[1]]
    always = ["--nj", "3", "--sample_rate", "8000"]
    assert formatted == [
        ["data/train", "dump/train", *always, *speeds],
        ["data/dev", "dump/dev", *always],
        ["data/test", "dump/test", *always, "--keep_all"],
    ]


@pytest.mark.parametrize("name", ["dev", "train"])
def test_a_set_that_lacks_utterances_is_not_decoded(recipe: Recipe, name: str) -> None:
    recipe.asr("--stop_stage", "11")
    for file in ("text", "wav.scp"):
        path = recipe.directory / "dump" / name / file
        lines = path.read_text().splitlines(keepends=True)
        # Stage 3 has left out b-2, and made a copy of the other at another speed.
        path.write_text(lines[0] + f"sp0.9-{lines[0]}")
    options = ("--stage", "12", "--stop_stage", "12", "--test_sets", f"test {name}")
    assert recipe.refused(*options) == (
        f"dump/{name} lacks 1 of the ids of data/{name}/text, as training sets "
        f"may: run stage 3 for it (--stage 3 --stop_stage 3 --test_sets {name})"
    )
    formatting = ("--stage", "3", "--stop_stage", "3", "--test_sets", name)
    recipe.asr(*formatting)
    assert "lacks" not in recipe.ends(*options).stderr


@pytest.mark.parametrize("fs", ["16000", "16k"])
def test_another_sample_rate(recipe: Recipe, fs: str) -> None:
    config = recipe.directory / "conf" / "train.yaml"
    config.write_text(f"frontend_conf:\n    fs: {fs}  # Hz\n")
    refused = recipe.refused("--stop_stage", "3")
    assert refused == (
        "conf/train.yaml: frontend_conf: fs is 16000, but --fs is 8000: change "
        "one of them, and the lengths of the windows with it"
    )
    recipe.asr("--stop_stage", "3", "--fs", "16000")
    formatted = [call for call in recipe.calls() if "format_data" in call[1]]
    rates = [call[call.index("--sample_rate") + 1] for call in formatted]
    assert rates == ["16000"] * 3


def test_a_second_run_of_the_data_stages_changes_nothing(recipe: Recipe) -> None:
    real = {"STUB_REAL": "format_data make_tokens"}
    (recipe.directory / "local" / "data.sh").write_text(
        f"#!/bin/sh\n{sys.executable} {Path(__file__).with_name('speak.py')} data\n"
    )
    options = ["--stop_stage", "5", "--speed_perturb_factors", "0.9 1.0"]
    recipe.asr(*options, **real)
    first = contents(recipe.directory)
    assert {"dump/train/text", "data/token_list/word/tokens.txt"} <= set(first)
    for stage in ("1", "3", "5"):
        recipe.asr("--stage", stage, *options[2:], "--stop_stage", stage, **real)
        assert contents(recipe.directory) == first


@pytest.mark.parametrize(
    ("stage", "missing", "earlier"),
    [
        (3, "data/train/wav.scp", 1),
        (5, "dump/train/text", 3),
        (10, "dump/train/wav.scp", 3),
        (11, "exp/stats_word/valid/text_shape.word", 10),
        (12, "exp/asr_adpsgd_2/valid.loss.ave.pth", 11),
        (13, "exp/asr_adpsgd_2/decode/test/text", 12),
    ],
)
def test_stage_without_what_it_needs(
    recipe: Recipe, stage: int, missing: str, earlier: int
) -> None:
    done = recipe.refused("--stage", str(stage))
    assert done == (
        f"{missing} is missing: run from stage {earlier} (--stage {earlier})"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--nlearner", "2"), "asr.sh: unknown option --nlearner (see --help)"),
        (("--here", "2"), "asr.sh: unknown option --here (see --help)"),
        (
            ("--tag", "a b"),
            "--tag a b: expected letters, digits, dots, underscores and hyphens",
        ),
        (("--stage", "14"), "--stage 14 is behind --stop_stage 13"),
        (("--distopt", ""), "--distopt names no algorithm"),
        (("--test_sets", ""), "--test_sets names no set"),
        (
            ("--inference_asr_model", "checkpoint.pth"),
            "--inference_asr_model checkpoint.pth: the state of a training; "
            "take latest.pth",
        ),
        (("--nlearners", "0"), "--nlearners 0: at least one must learn"),
        (("--nj", "0"), "--nj 0: at least one process must work"),
        (("--ngpu", "2"), "--ngpu 2: a learner has one GPU; use --nlearners for more"),
        (("--token_type", "x"), "--token_type x: expected word, char or bpe"),
        (
            ("--speed_perturb_factors", "0.9 fast"),
            "--speed_perturb_factors: expected numbers such as 0.9, not 'fast'",
        ),
    ],
)
def test_bad_option(recipe: Recipe, options: tuple[str, ...], message: str) -> None:
    assert recipe.refused(*options) == message
    assert recipe.calls() == []


@pytest.mark.parametrize(
    ("options", "asked"),
    [
        (("--ngpu", "1"), True),
        (("--ngpu", "0"), False),
        (("--ngpu", "1", "--stop_stage", "10"), False),
        (("--ngpu", "1", "--train_args", "--local_rank 0"), False),
    ],
)
def test_gpus_are_looked_for_before_stage_1(
    recipe: Recipe, options: tuple[str, ...], asked: bool
) -> None:
    recipe.ends(*options, STUB_FAIL="check")
    assert ("--gpus" in recipe.call("check")) == asked


def test_missing_config(recipe: Recipe) -> None:
    done = recipe.refused("--train_config", "conf/none.yaml")
    assert done.startswith("conf/none.yaml: no such file")


def test_refused_options_stop_before_stage_1(recipe: Recipe) -> None:
    done = recipe.ends(STUB_FAIL="check")
    assert done.returncode == 1
    assert recipe.modules() == ["check"]
    assert not (recipe.directory / "data").exists()


def test_failed_training_shows_the_first_error(recipe: Recipe) -> None:
    recipe.asr("--stop_stage", "10")
    done = recipe.ends("--stage", "11", STUB_FAIL="asr_train")
    assert done.returncode == 1
    assert done.stderr == (
        "error: training exp/asr_adpsgd_2 failed (exit code 1): "
        "RuntimeError: rank 1 ran out of luck\n"
        "full log: exp/asr_adpsgd_2/train.log\n"
    )
    assert not (recipe.directory / "exp" / "RESULTS.md").exists()


def test_failed_decoding_leaves_no_text(recipe: Recipe) -> None:
    recipe.asr()
    done = recipe.ends("--stage", "12", STUB_FAIL="asr_inference")
    assert done.returncode == 1
    assert "error: decoding dump/test failed (exit code 1): RuntimeError" in done.stderr
    assert not (recipe.directory / "exp/asr_adpsgd_2/decode/test/text").exists()


STOPPED_BY_HAND = [
    "Ctrl-C: ending what runs, by SIGTERM",
    "stopped by Ctrl-C; start again to go on",
]


@pytest.mark.parametrize(
    ("module", "sent", "status"),
    [
        ("asr_train", signal.SIGINT, 130),
        ("asr_inference", signal.SIGINT, 130),
        ("make_tokens", signal.SIGTERM, 143),
        ("make_tokens", signal.SIGUSR1, 138),
        ("asr_train", signal.SIGTERM, 75),
    ],
)
def test_a_stopped_recipe_leaves_no_process(
    recipe: Recipe, module: str, sent: signal.Signals, status: int
) -> None:
    script = str(Path(__file__).parents[2] / "local" / "asr.sh")
    process = recipe.start(script, "--token_type", "word", STUB_HANG=module)
    hanging = recipe.directory / "hanging"
    deadline = time.monotonic() + 60
    while not hanging.exists():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(sent)
    _, said = process.communicate(timeout=60)
    assert process.returncode == status
    # Where the shell itself has waited for the command, it says "Terminated", too.
    own = [line for line in said.splitlines() if line != "Terminated"]
    expected = {130: STOPPED_BY_HAND, 75: ["stopped by SIGTERM; start again to go on"]}
    assert own == expected.get(status, [])
    for pid in hanging.read_text().split():
        assert not _runs(int(pid))


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{pid}/status")
    return not (status.exists() and "State:\tZ" in status.read_text())


def test_statistics_of_features_read_the_audio(recipe: Recipe) -> None:
    recipe.asr("--feats_normalize", "global_mvn", "--stop_stage", "10")
    statistics, shapes = recipe.calls()[-2:]
    assert shapes[:2] == ["-m", "distopt.speech_shapes"]
    assert statistics[:4] == [
        *("-m", "espnet_distopt.bin.asr_train", "--collect_stats", "true")
    ]
    recipe.asr("--stage", "10", "--stop_stage", "10", "--nj", "5")
    shapes, model = recipe.calls()[-1], recipe.calls()[-1].index("--model")
    assert shapes[:model] == [
        *("-m", "distopt.speech_shapes", "--nj", "5"),
        *("--out", "exp/stats_word", "--train", "dump/train", "--valid", "dump/dev"),
        *("--token_type", "word", "--bpemodel", "none"),
        *("--token_list", "data/token_list/word/tokens.txt"),
    ]
    # The same options make the model whose frames are counted, and that which trains.
    assert shapes[model + 1 :] == statistics[6 : 6 + len(shapes[model + 1 :])]


def test_statistics_of_another_training_set_need_stage_10(recipe: Recipe) -> None:
    """Its utterances may be in this one, too, so that a part would be trained on."""
    recipe.asr("--stop_stage", "10")
    whole = recipe.directory / "data" / "whole"
    shutil.copytree(recipe.directory / "data" / "train", whole)
    (whole / "text").write_text("a-1 one two\nb-2 three\nc-3 four\n")
    options = ("--train_set", "whole", "--tag", "whole", "--stage")
    recipe.asr(*options, "3", "--stop_stage", "5")
    before = recipe.modules()
    assert recipe.refused(*options, "11") == (
        "exp/stats_word/valid/text_shape.word was not made of dump/whole/text "
        "as it is now: run from stage 10 (--stage 10)"
    )
    assert recipe.modules() == [*before, "check"]
    recipe.asr(*options, "10", "--stop_stage", "11")
    # Decoding needs no training set, which may be gone.
    shutil.rmtree(recipe.directory / "dump" / "whole")
    recipe.asr(*options, "12")


def test_what_an_earlier_model_has_decoded_is_not_scored(recipe: Recipe) -> None:
    """The table would have its error rates beside the epochs of the later one."""
    recipe.asr("--stop_stage", "12")
    model = recipe.directory / "exp" / "asr_adpsgd_2" / "valid.loss.ave.pth"
    model.write_text("of more epochs\n")
    assert recipe.refused("--stage", "13") == (
        "exp/asr_adpsgd_2/decode/test/text was not made of "
        "exp/asr_adpsgd_2/valid.loss.ave.pth as it is now: run from stage 12 "
        "(--stage 12)"
    )
    recipe.asr("--stage", "12")
    model.unlink()  # What is decoded can be scored without it.
    recipe.asr("--stage", "13")


OTHER = (
    "dump/{} has the sample rate and speeds {}, and --fs and "
    "--speed_perturb_factors say {}: change these, or run from stage 3 (--stage 3)"
)


def test_a_set_of_another_sample_rate_needs_stage_3(recipe: Recipe) -> None:
    """A stage 3 that was killed leaves the test set of the run before."""
    recipe.asr("--stop_stage", "3")
    all_but_test = ("--stage", "3", "--stop_stage", "3", "--test_sets", "dev")
    recipe.asr("--fs", "16000", *all_but_test)
    expected = OTHER.format("test", "8000 1", "16000 1")
    assert recipe.refused("--fs", "16000", "--stage", "5") == expected
    assert "make_tokens" not in recipe.modules()
    # It does not need the test set.
    recipe.asr("--fs", "16000", "--stage", "5", "--stop_stage", "5")
    recipe.asr("--fs", "16000", "--stage", "3", "--stop_stage", "3")
    assert "run from stage 11" in recipe.refused("--fs", "16000", "--stage", "12")


def test_a_training_set_of_other_speeds_needs_stage_3(recipe: Recipe) -> None:
    factors = ("--speed_perturb_factors", "0.9 1.0")
    recipe.asr("--stop_stage", "3", *factors)
    expected = OTHER.format("train", "8000 0.9 1", "8000 1")
    assert recipe.refused("--stage", "10") == expected
    recipe.asr("--stage", "5", "--stop_stage", "5", factors[0], "0.90 1")
    # Decoding does not read the training set.
    assert "run from stage 11" in recipe.refused("--stage", "12")


def test_a_set_of_other_data_needs_stage_3(recipe: Recipe) -> None:
    recipe.asr("--stop_stage", "3")
    (recipe.directory / "data/test/text").write_text("a-1 one two\nb-2 four\n")
    for stage in ("5", "12"):
        assert recipe.refused("--stage", stage) == (
            "dump/test/text was not made of data/test/text as it is now: "
            "run from stage 3 (--stage 3)"
        )
    recipe.asr("--stage", "3", "--stop_stage", "3")
    assert "run from stage 11" in recipe.refused("--stage", "12")

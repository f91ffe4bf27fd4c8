"""These tests run local/asr.sh with a hybrid system on toy data."""

import shutil

import pytest

from tests.recipes.toy_recipe import ROOT, Recipe

HYBRID = ("--system", "hybrid")
DECODED = "exp/hybrid_adpsgd_2/decode_hybrid/test"


@pytest.fixture
def hybrid(recipe: Recipe) -> Recipe:
    conf = recipe.directory / "conf"
    (conf / "lexicon.txt").write_text("one W O\ntwo T U\nthree T R I\n")
    for name in ("train", "decode"):
        (conf / f"{name}_hybrid.yaml").write_text((conf / f"{name}.yaml").read_text())
    return recipe


def test_all_stages(hybrid: Recipe) -> None:
    hybrid.asr(*HYBRID, "--distopt", "none adpsgd", "--gmm_args", "--passes 3")
    assert hybrid.modules() == [
        *["check", "check", *["format_data"] * 3, "make_lang"],
        *[*["make_features"] * 3, "gmm_train", "hybrid_train", "hybrid_train"],
        *["hybrid_inference"] * 6,
        *["score"] * 3,
        "wer_report",
    ]
    report = (hybrid.directory / "exp" / "RESULTS.md").read_text()
    for name in ("hybrid_gmm", "hybrid_none_1", "hybrid_adpsgd_2"):
        assert f"| {name} | - |" in report
    decoded = [call for call in hybrid.calls() if "hybrid_inference" in call[1]]
    # The mixtures decode without a network, the networks with the mixtures' priors.
    assert [("--exp" in call) for call in decoded] == [False] * 2 + [True] * 4
    assert all(call[call.index("--gmm") + 1] == "exp/hybrid_gmm" for call in decoded)
    assert (hybrid.directory / "exp/hybrid_none_1/decode_hybrid/test/ctm").is_file()
    trained = hybrid.call("gmm_train")
    assert trained[-2:] == ["--passes", "3"]


def test_no_labels_are_left_beside_features_of_a_later_run(hybrid: Recipe) -> None:
    hybrid.asr(*HYBRID, "--stop_stage", "10")
    done = hybrid.ends(*HYBRID, "--stage", "10", STUB_FAIL="gmm_train")
    assert done.returncode != 0
    late = hybrid.ends(*HYBRID, "--stage", "11")
    assert "hybrid_gmm/train/ali.scp is missing: run from stage 10" in late.stderr


def test_both_systems_and_all_seeds_come_into_one_table(hybrid: Recipe) -> None:
    for options in (["ctc"], ["hybrid"], ["hybrid", "--stage", "11", "--tag", "s1"]):
        hybrid.asr("--distopt", "adpsgd", "--system", *options)
    report = (hybrid.directory / "exp" / "RESULTS.md").read_text()
    names = ["asr_adpsgd_2", "hybrid_gmm", "hybrid_adpsgd_2", "hybrid_adpsgd_2_s1"]
    for name in names:
        assert f"| {name} | - |" in report


@pytest.mark.parametrize(
    ("stage", "message"),
    [
        ("10", "data/lang/states.txt is missing: run from stage 5"),
        ("11", "hybrid_gmm/train/ali.scp is missing: run from stage 10"),
        ("12", "exp/hybrid_gmm/gmm.npz is missing: run from stage 11"),
    ],
)
def test_stage_without_what_it_needs(hybrid: Recipe, stage: str, message: str) -> None:
    done = hybrid.refused(*HYBRID, "--stage", stage)
    assert message in done


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--system", "dnn"), "--system dnn: expected ctc or hybrid"),
        ((*HYBRID, "--use_lm", "true"), "--system hybrid has an n-gram of its own"),
        ((*HYBRID, "--ngram_file", "x"), "--system hybrid has an n-gram of its own"),
    ],
)
def test_bad_option(hybrid: Recipe, options: tuple[str, ...], message: str) -> None:
    done = hybrid.refused(*options)
    assert done.startswith(message)
    assert hybrid.modules() == []


def test_words_of_an_earlier_decoding_with_more_parts_are_left_out(
    hybrid: Recipe,
) -> None:
    """Queued parts do not remove what was there."""
    hybrid.asr(*HYBRID, "--distopt", "adpsgd")
    out = hybrid.directory / DECODED
    before = (out / "ctm").read_text()
    stale = out / "log/output.9/ctm"
    stale.parent.mkdir()
    stale.write_text("x A 9.00 0.50 stale\n")
    merge(hybrid)
    assert (out / "ctm").read_text() == before


def merge(hybrid: Recipe) -> None:
    """Join what the two parts of a decoding have written, as a job of its own does."""
    script = str(ROOT / "local" / "decode.sh")
    options = ["--system", "hybrid", "--gmm", "exp/hybrid_gmm", "--nj", "2"]
    options += ["--exp", "exp/hybrid_adpsgd_2", "--out", DECODED]
    options += ["--data", "dump/test", "--config", "conf/decode_hybrid.yaml"]
    merged = hybrid.run(script, *options, "--part", "merge")
    assert merged.returncode == 0, merged.stderr


def test_words_of_equal_times_stay_in_order(hybrid: Recipe) -> None:
    hybrid.asr(*HYBRID, "--distopt", "adpsgd")
    out = hybrid.directory / DECODED
    said = "x A 1.00 0.00 you\nx A 1.00 0.00 know\n"
    (out / "log/output.1/ctm").write_text(said)
    (out / "log/output.2/ctm").write_text("x A 0.50 0.10 so\n")
    merge(hybrid)
    assert (out / "ctm").read_text() == f"x A 0.50 0.10 so\n{said}"


def test_the_grammar_counts_no_copies_at_other_speeds(hybrid: Recipe) -> None:
    options = ["--stop_stage", "5", "--speed_perturb_factors"]
    texts = []
    for factors in ("", "0.9 1.0 1.1"):
        hybrid.asr(*HYBRID, *options, factors)
        made = [call for call in hybrid.calls() if "make_lang" in call[1]][-1]
        texts.append(made[made.index("--text") + 1])
    assert texts == ["dump/train/text", "data/train/text"]


def test_an_added_test_set_gets_its_features_when_it_is_decoded(hybrid: Recipe) -> None:
    hybrid.asr(*HYBRID, "--distopt", "adpsgd")
    data = hybrid.directory / "data"
    shutil.copytree(data / "test", data / "more")
    options = (*HYBRID, "--distopt", "adpsgd", "--test_sets", "test more")
    for expected in (["test", "more"], [], ["test", "more"]):
        if expected:
            for name in expected:  # as format_data replaces the whole directory
                shutil.rmtree(hybrid.directory / "dump" / name, ignore_errors=True)
            hybrid.asr(*options, "--stage", "3", "--stop_stage", "3")
        before = len(hybrid.calls())
        hybrid.asr(*options, "--stage", "12")
        made = [call for call in hybrid.calls()[before:] if "make_features" in call[1]]
        assert [call[-1] for call in made] == [f"dump/{n}/hybrid" for n in expected]
        assert "gmm_train" not in hybrid.modules()[before:]


@pytest.mark.parametrize("real", ["", "make_lang"])
def test_another_lexicon_or_order_needs_stage_5(hybrid: Recipe, real: str) -> None:
    options = (*HYBRID, "--distopt", "adpsgd", "--stop_stage", "5")
    hybrid.asr(*options, STUB_REAL=real)
    options = (*HYBRID, "--distopt", "adpsgd", "--stage")
    hybrid.asr(*options, "10", "--stop_stage", "11")
    before = hybrid.calls()
    lexicon = hybrid.directory / "conf" / "more.txt"
    lexicon.write_text("one W\ntwo T U\nthree T R I\n")
    more = ("--lexicon", "conf/more.txt")
    order = (
        "the n-gram in data/lang is not known to be of this order: run stage 5 again"
    )
    other = "not known to be the lexicon that data/lang was made with: run from stage 5"
    for changed, message in (
        (
            ("--ngram_order", "2"),
            f"--ngram_order 2: {order} (--stage 5 --stop_stage 5)",
        ),
        (more, f"--lexicon conf/more.txt: {other} (--stage 5)"),
        (
            ("--lexicon", "none"),
            f"--lexicon none: no such file (in {hybrid.directory})",
        ),
    ):
        for stage in ("10", "11", "12"):
            refused = hybrid.refused(*options, stage, *changed)
            assert refused == f"{message}"
    assert hybrid.calls() == before
    changed = (*more, "--ngram_order", "2")
    hybrid.asr(*options, "5", "--stop_stage", "5", *changed, STUB_REAL=real)
    hybrid.asr(*options, "12", *changed)


def test_another_training_set_needs_stages_5_and_10(hybrid: Recipe) -> None:
    hybrid.asr(*HYBRID, "--stop_stage", "10")
    (hybrid.directory / "dump/train/text").write_text("a-1 one\nb-2 three\n")
    labels = "exp/hybrid_gmm/train/ali.scp"
    for stage, file in (("5", "data/lang/lm.arpa"), ("10", labels)):
        assert hybrid.refused(*HYBRID, "--stage", "11") == (
            f"{file} was not made of dump/train/text as it is now: "
            f"run from stage {stage} (--stage {stage})"
        )
        hybrid.asr(*HYBRID, "--stage", stage, "--stop_stage", stage)
    hybrid.asr(*HYBRID, "--stage", "11")


def test_alignments_of_another_directory_need_stage_10(hybrid: Recipe) -> None:
    options = (*HYBRID, "--distopt", "adpsgd", "--stop_stage", "11")
    for name in ("a", "b"):
        (hybrid.directory / name).mkdir()
        (hybrid.directory / name / "final.mdl").touch()
        assert hybrid.refused(*options, "--ali", name) == (
            f"--ali {name}: expected a Kaldi directory with final.mdl and ali.*.gz"
        )
        (hybrid.directory / name / "ali.1.gz").touch()
    assert not hybrid.calls()
    hybrid.asr(*options, "--ali", "a/")
    refused = hybrid.refused(*options, "--stage", "11", "--ali", "b")
    assert refused == (
        "--ali b: the alignments in exp/hybrid_ali are those of a: "
        "run from stage 10 (--stage 10)"
    )
    for name in ("a", "a/", "./a", str(hybrid.directory / "a")):
        hybrid.asr(*options, "--stage", "11", "--ali", name)
    hybrid.asr(*options, "--stage", "10", "--ali", "b")


def test_queued_decodings_wait_for_features(hybrid: Recipe) -> None:
    (hybrid.directory / "conf" / "slurm.yaml").write_text("partition: cpu\n")
    hybrid.asr(*HYBRID, "--distopt", "adpsgd", "--stop_stage", "11")
    (hybrid.directory / "dump/test/hybrid/feats.scp").unlink()
    options = ("--submit_all", "true", "--dry_run", "true", "--stage")
    known = {"cmd_backend": "slurm", "STUB_REAL": "slurm"}
    for stage, waited in (("12", "1"), ("11", "4,1")):
        shown = hybrid.ends(*HYBRID, "--distopt", "adpsgd", *options, stage, **known)
        assert (shown.returncode, shown.stderr) == (0, "")
        jobs = [line for line in shown.stdout.splitlines() if line.startswith("# job")]
        assert jobs[0] == "# job 1: toy.features.test, log exp/log/features.test.log"
        decoded = f"toy.decode.adpsgd_2.test, after {waited},"
        assert any(decoded in job for job in jobs), jobs
    (hybrid.directory / "dump/test/hybrid/feats.scp").touch()
    shown = hybrid.ends(*HYBRID, "--distopt", "adpsgd", *options, "12", **known)
    assert "features" not in shown.stdout

"""These tests decode with alignment and score by Hub5, for test sets with an STM."""

from pathlib import Path

import pytest

from espnet_distopt.recipes.corpora.mini_swbd.corpus import STM_HEADER, glm_text
from tests.recipes.toy_recipe import ROOT, Recipe

DECODED = Path("exp", "asr_adpsgd_2", "decode", "test")

STM = f"""{STM_HEADER}\
x A x-A 0.00 2.00 <O,SWB> one two
x A x-A 2.00 4.00 <O,SWB> three
"""


@pytest.fixture
def hub5(recipe: Recipe) -> Recipe:
    """Return a recipe whose test set has a reference for Hub5."""
    script = recipe.directory / "local" / "data.sh"
    (recipe.directory / "stm").write_text(STM)
    (recipe.directory / "glm").write_text(glm_text())
    script.write_text(script.read_text() + "cp stm glm data/test/\n")
    return recipe


def test_aligned_and_scored(hub5: Recipe) -> None:
    hub5.asr("--halves", "both=^x left=A$")
    assert hub5.modules()[-5:] == [
        *["asr_inference"] * 2,
        *["ctc_align", "score_hub5", "wer_report"],
    ]
    decoded = str(DECODED)
    assert hub5.call("ctc_align") == [
        *["--exp", "exp/asr_adpsgd_2", "--model", "valid.loss.ave.pth"],
        *["--data", "data/test", "--dump", "dump/test"],
        *["--tokens", f"{decoded}/token", "--out", f"{decoded}/ctm"],
    ]
    assert hub5.call("score_hub5") == [
        *["--stm", "data/test/stm", "--glm", "data/test/glm"],
        *["--ctm", f"{decoded}/ctm", "--out", f"{decoded}/score_wer"],
        *["--half", "both=^x", "--half", "left=A$"],
    ]
    assert (hub5.directory / DECODED / "score_wer" / "result.json").exists()
    assert "asr_adpsgd_2" in (hub5.directory / "exp" / "RESULTS.md").read_text()


def test_a_set_without_stm_is_scored_by_its_text(recipe: Recipe) -> None:
    recipe.asr()
    assert "score" in recipe.modules()
    assert not {"ctc_align", "score_hub5"} & set(recipe.modules())
    assert (recipe.directory / DECODED / "token").read_text() == (
        "a-1 one two\nb-2 three\n"
    )


def test_failed_alignment_leaves_no_text(hub5: Recipe) -> None:
    hub5.asr()
    done = hub5.ends("--stage", "12", STUB_FAIL="ctc_align")
    assert done.returncode == 1
    assert "error: aligning dump/test failed (exit code 1): RuntimeE" in done.stderr
    assert not (hub5.directory / DECODED / "text").exists()


def test_scoring_without_word_times(hub5: Recipe) -> None:
    hub5.asr("--stop_stage", "12")
    (hub5.directory / DECODED / "ctm").unlink()
    assert hub5.refused("--stage", "13") == (
        f"{DECODED}/ctm is missing: run from stage 12 (--stage 12)"
    )


def test_a_model_that_decodes_to_nothing_has_a_row(hub5: Recipe) -> None:
    algorithms = ("--distopt", "adpsgd allreduce")
    hub5.asr(*algorithms, "--stop_stage", "12")
    (hub5.directory / DECODED / "ctm").write_text("")
    hub5.asr(*algorithms, "--stage", "13")
    report = (hub5.directory / "exp" / "RESULTS.md").read_text()
    for name, rate in (("adpsgd", 100.0), ("allreduce", 0.0)):
        assert f"| asr_{name}_2 | - | - | - | - | {rate} |" in report


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("--exp", "none"), "none/config.yaml: no such file, or empty"),
        (("--model", "none"), "exp/none: no such file, or empty"),
        (("--data", "none"), "none/wav.scp: no such file, or empty"),
        (("--config", "none"), "none: no such file, or empty"),
        (("--lm", "none"), "none/config.yaml: no such file, or empty"),
        (("--ngram_file", "none"), "none: no such file, or empty"),
        (("--nj", "0"), "--nj 0: at least one process must decode"),
        (("--out", ""), "--out is needed"),
    ],
)
def test_bad_options_of_decode(
    recipe: Recipe, change: tuple[str, str], message: str
) -> None:
    for file in ("exp/config.yaml", "exp/m.pth", "data/wav.scp", "out/text"):
        path = recipe.directory / file
        path.parent.mkdir(exist_ok=True)
        path.write_text("a-1 -\n")
    options = {"--exp": "exp", "--model": "m.pth", "--data": "data", "--out": "out"}
    options |= {"--config": "conf/decode.yaml", change[0]: change[1]}
    command = [word for pair in options.items() for word in pair]
    done = recipe.run(str(ROOT / "local" / "decode.sh"), *command)
    assert (done.returncode, done.stderr) == (2, f"error: decode.sh: {message}\n")
    assert recipe.calls() == []
    assert (recipe.directory / "out" / "text").exists()

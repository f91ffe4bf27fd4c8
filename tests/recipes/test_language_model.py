"""These tests run stages 6 and 7, and decode with a language model or an n-gram."""

import re
import shutil
from pathlib import Path

import pytest

from espnet_distopt.recipes.hmm.ngram import read_arpa
from tests.recipes.toy_recipe import ROOT, Recipe

MODEL = "exp/lm_word"
STATS = "exp/lm_stats_word"


@pytest.fixture
def lm(recipe: Recipe) -> Recipe:
    """Return a recipe with the configuration of a language model."""
    (recipe.directory / "conf" / "lm.yaml").write_text("lm: seq_rnn\n")
    return recipe


def test_trained_and_used(lm: Recipe) -> None:
    (lm.directory / "more").write_text("c-3 four\nd-4\n")
    lm.asr("--use_lm", "true", "--lm_train_text", "more")
    assert lm.modules()[4:8] == ["make_tokens", "lm_train", "lm_train", "speech_shapes"]
    assert (lm.directory / STATS / "train.txt").read_text() == (
        "a-1 one two\nb-2 three\nc-3 four\n"
    )
    assert (
        lm.directory / STATS / "valid" / "text_shape.word"
    ).read_text() == "a-1 2,4\n"
    statistics, training = [call for call in lm.calls() if "lm_train" in call[1]]
    for call in (statistics, training):
        assert call[:2] == ["-m", "espnet_distopt.bin.lm_train"]
        assert call[2:4] == ["--config", "conf/lm.yaml"]
        assert f"{STATS}/train.txt,text,text" in call
    assert "--collect_stats" in statistics
    assert training[training.index("--output_dir") + 1] == MODEL
    decodings = [call for call in lm.calls() if "asr_inference" in call[1]]
    for call in decodings:
        assert call[call.index("--lm_train_config") + 1] == f"{MODEL}/config.yaml"
        assert call[call.index("--lm_file") + 1] == f"{MODEL}/valid.loss.ave.pth"
        assert call[call.index("--config") + 1] == "conf/decode_lm.yaml"
    # Decoding without the language model writes another result.
    assert (lm.directory / "exp/asr_adpsgd_2/decode_lm/test/text").exists()
    assert "asr_adpsgd_2" in (lm.directory / "exp" / "RESULTS.md").read_text()


def test_stage_without_what_it_needs(lm: Recipe) -> None:
    tokens = "data/token_list/word/tokens.txt is missing: run from stage 5 (--stage 5)"
    assert lm.refused("--use_lm", "true", "--stage", "6") == tokens
    lm.asr("--use_lm", "true", "--stop_stage", "5")
    for stage, missing, earlier in (
        ("7", f"{STATS}/valid/text_shape.word", "6"),
        ("12", f"{MODEL}/valid.loss.ave.pth", "7"),
    ):
        assert lm.refused("--use_lm", "true", "--stage", stage) == (
            f"{missing} is missing: run from stage {earlier} (--stage {earlier})"
        )


def test_statistics_of_another_training_set_need_stage_6(lm: Recipe) -> None:
    lm.asr("--use_lm", "true", "--stop_stage", "6")
    (lm.directory / "more").write_text("c-3 four\n")
    options = ("--use_lm", "true", "--lm_train_text", "more", "--stop_stage", "7")
    assert lm.refused(*options, "--stage", "7") == (
        f"{STATS}/train.txt was not made of data/train/text more as it is now: "
        "run from stage 6 (--stage 6)"
    )
    lm.asr(*options, "--stage", "6")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a-1 one\n", "lm.sh: utterance a-1 comes twice in data/train/text more"),
        ("", "lm.sh: more: no such file, or empty"),
    ],
)
def test_bad_text(lm: Recipe, text: str, message: str) -> None:
    (lm.directory / "more").write_text(text)
    assert lm.refused("--use_lm", "true", "--lm_train_text", "more") == f"{message}"
    assert "lm_train" not in lm.modules()
    assert not (lm.directory / STATS / "train.txt").exists()


def test_text_without_words(recipe: Recipe) -> None:
    text = recipe.directory / "text"
    text.write_text("a-1\n")
    options = ["--train_text", "text", "--valid_text", "text", "--token_list", "text"]
    options += ["--config", "text", "--stats", "stats", "--out", "lm"]
    done = recipe.run(str(ROOT / "local" / "lm.sh"), *options)
    assert done.returncode == 2
    assert done.stderr == "error: lm.sh: no utterance has words in text\n"


@pytest.mark.parametrize("option", ["train_text", "valid_text", "stats", "out"])
def test_needed_options(recipe: Recipe, option: str) -> None:
    options = [
        word
        for name in ("train_text", "valid_text", "token_list", "stats", "out")
        if name != option
        for word in (f"--{name}", "conf/train.yaml")
    ]
    done = recipe.run(str(ROOT / "local" / "lm.sh"), *options)
    assert (done.returncode, done.stderr) == (
        2,
        f"error: lm.sh: --{option} is needed\n",
    )


def test_failed_training_shows_the_first_error(lm: Recipe) -> None:
    done = lm.ends("--use_lm", "true", STUB_FAIL="lm_train")
    assert done.returncode == 1
    assert done.stderr.startswith(
        "error: collecting statistics of the language model failed (exit code 1): "
        "RuntimeError: rank 1 ran out of luck\n"
    )


def test_ngram(recipe: Recipe) -> None:
    (recipe.directory / "3gram.arpa").write_text("-\n")
    (recipe.directory / "conf" / "decode.yaml").write_text("ngram_weight: 0.3\n")
    recipe.asr("--ngram_file", "3gram.arpa")
    decodings = [call for call in recipe.calls() if "asr_inference" in " ".join(call)]
    for call in decodings:
        assert call[call.index("--ngram_file") + 1] == "3gram.arpa"
    assert (recipe.directory / "exp/asr_adpsgd_2/decode_ngram/test/text").exists()


@pytest.mark.parametrize(
    ("weights", "options", "message"),
    [
        ("", ("--use_lm", "true"), "lm_weight is missing or 0: say there what"),
        ("lm_weight: 0.0  # of words", ("--use_lm", "true"), "lm_weight is missing or"),
        ("lm_weight: 1", ("--ngram_file", "conf/lm.yaml"), "ngram_weight is missing"),
    ],
)
def test_a_language_model_without_a_weight(
    lm: Recipe, weights: str, options: tuple[str, ...], message: str
) -> None:
    (lm.directory / "conf" / "own.yaml").write_text(f"beam_size: 10\n{weights}\n")
    done = lm.refused(*options, "--decode_config", "conf/own.yaml")
    assert done.startswith(f"conf/own.yaml: {message}")
    assert not (lm.directory / "data").exists()


def test_other_weights_of_the_language_model(lm: Recipe) -> None:
    (lm.directory / "conf" / "own.yaml").write_text("lm_weight: 0.05\n")
    lm.asr("--use_lm", "true", "--decode_config", "conf/own.yaml")
    assert (lm.directory / "exp/asr_adpsgd_2/own_lm/test/text").exists()


@pytest.fixture
def words(recipe: Recipe) -> Recipe:
    (recipe.directory / "conf" / "decode.yaml").write_text("search: words  # of CTC\n")
    return recipe


def test_a_search_of_words_estimates_its_ngram(words: Recipe) -> None:
    words.asr("--ngram_order", "2", STUB_REAL="make_ngram", STUB_NO_KENLM="1")
    made = words.call("make_ngram")
    assert made[made.index("--order") + 1] == "2"
    arpa = words.directory / "data/ngram/words_2.arpa"
    assert arpa.read_text().startswith("\\data\\\n")
    decodings = [call for call in words.calls() if "ctc_inference" in " ".join(call)]
    assert len(decodings) == 2
    for call in decodings:
        assert call[call.index("--ngram_file") + 1] == "data/ngram/words_2.arpa"
        assert call[call.index("--config") + 1] == "conf/decode.yaml"
    assert (words.directory / "exp/asr_adpsgd_2/decode/test/text").exists()
    arpa.unlink()
    words.asr("--stage", "12", "--ngram_order", "2", STUB_REAL="make_ngram")
    assert arpa.exists()


def test_an_ngram_counts_no_copies_at_other_speeds(words: Recipe) -> None:
    options = ("--stop_stage", "5", "--speed_perturb_factors", "0.9 1.0 1.1")
    words.asr(*options, STUB_REAL="make_ngram")
    made = words.call("make_ngram")
    assert made[made.index("--text") + 1] == "data/train/text"


def check_made_anew_once(words: Recipe) -> None:
    """Check that stage 12 makes the n-gram of the new text, and then leaves it."""
    words.asr("--stage", "12", STUB_REAL="make_ngram")
    made = words.directory / "data" / "ngram" / "words_3.arpa"
    assert "seven" in read_arpa(made).words()
    again = len(words.calls())
    words.asr("--stage", "12", STUB_REAL="make_ngram")
    assert "make_ngram" not in words.modules()[again:]


def test_an_ngram_of_an_earlier_token_list_is_made_anew(words: Recipe) -> None:
    words.asr(STUB_REAL="make_ngram")
    (words.directory / "conf" / "greedy.yaml").write_text("search: best_path\n")
    data = words.directory / "local" / "data.sh"
    data.write_text(data.read_text() + "sed -i 's/one/seven/' data/train/text\n")
    options = ("--decode_config", "conf/greedy.yaml", "--stop_stage", "5")
    words.asr(*options, STUB_REAL="make_ngram")
    check_made_anew_once(words)


def test_an_ngram_of_another_training_set_is_made_anew(words: Recipe) -> None:
    words.asr(STUB_REAL="make_ngram")
    text = words.directory / "dump" / "train" / "text"
    text.write_text(text.read_text().replace("one", "seven"))
    check_made_anew_once(words)


def test_a_search_of_words_takes_another_ngram(words: Recipe) -> None:
    (words.directory / "own.arpa").write_text("-\n")
    words.asr("--ngram_file", "own.arpa", STUB_NO_KENLM="1")
    assert "make_ngram" not in words.modules()
    assert (words.directory / "exp/asr_adpsgd_2/decode_ngram/test/text").exists()


def test_the_demo_decodes_in_two_ways_and_shows_both(recipe: Recipe) -> None:
    demo = ROOT / "egs/mini_swbd/asr1"
    script = (demo / "run.sh").read_text()
    [both] = re.findall(r'--ctc_decode_config "(.*)"', script)
    for config in both.split():
        shutil.copy(demo / config, recipe.directory / config)
    options = ["--distopt", "adpsgd allreduce", "--ctc_decode_config", both]
    recipe.asr(*options, STUB_REAL="make_ngram")
    decodings = [call for call in recipe.calls() if "ctc_inference" in " ".join(call)]
    by_words = ["--ngram_file" in call for call in decodings]
    assert by_words == [False, False, True, True, False, False]
    report = (recipe.directory / "exp/RESULTS.md").read_text()
    for name in ("decode", "decode_words"):
        assert f"| asr_adpsgd_2/{name} | - |" in report
    assert "| asr_allreduce_2 | - |" in report
    recipe.asr("--stage", "12", "--decode_config", "conf/decode_words.yaml")
    assert recipe.modules().count("ctc_inference") == 8


def test_two_ways_to_decode_need_two_names(recipe: Recipe) -> None:
    assert (
        recipe.refused("--decode_config", "conf/decode.yaml conf/../conf/decode.yaml")
        == "--decode_config: two of its files are named decode.yaml"
    )


@pytest.mark.parametrize(
    ("config", "options", "message"),
    [
        ("words", ("--use_lm", "true"), "the search of words uses an n-gram, no lang"),
        ("greedy", (), "search: expected best_path or words"),
    ],
)
def test_a_search_that_cannot_be(
    words: Recipe, config: str, options: tuple[str, ...], message: str
) -> None:
    (words.directory / "conf" / "decode.yaml").write_text(f"search: {config}\n")
    options += ("--decode_config", "conf/decode.yaml", "--lm_config", "conf/train.yaml")
    done = words.refused(*options)
    assert done.startswith(f"conf/decode.yaml: {message}")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--use_lm", "true"), "conf/lm.yaml: no such file (in "),
        (("--use_lm", "true", "--lm_config", "x"), "x: no such file (in "),
        (("--ngram_file", "none.arpa"), "none.arpa: no such file (in "),
        (
            ("--ngram_file", "conf/train.yaml"),
            "--ngram_file needs the Python package kenlm: pip install kenlm",
        ),
    ],
)
def test_refused_before_stage_1(
    recipe: Recipe, options: tuple[str, ...], message: str
) -> None:
    done = recipe.refused(*options, STUB_NO_KENLM="1")
    assert done.startswith(f"{message}")
    assert not (recipe.directory / "data").exists()


def test_no_stage_6_without_it(recipe: Recipe) -> None:
    said = recipe.asr("--stage", "6", "--stop_stage", "7").stdout
    assert "no stage from 6 to 7, so none was run: there are 1 3 5 10 11" in said
    assert recipe.modules() == ["check"]
    assert not Path(recipe.directory, "exp").exists()

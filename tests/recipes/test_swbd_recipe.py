"""These tests run stage 1 of the swbd recipe, and of mini_swbd on its own discs."""

import shutil
from pathlib import Path

import pytest

from tests.recipes.toy_recipe import ROOT, Recipe

SWBD = ROOT / "egs" / "swbd" / "asr1"
MINI = ROOT / "egs" / "mini_swbd" / "asr1"
DATA = str(ROOT / "local" / "swbd_data.sh")
REQUIRED = {"SWBD": "LDC97S62", "EVAL2000_SPEECH": "LDC2002S09"}
REQUIRED |= {"EVAL2000_TEXT": "LDC2002T43"}
OPTIONAL = {"SWBD_TEXT": "ms98", "CONV_TAB": "conv.tab", "RT03": "rt03"}


@pytest.fixture
def swbd(recipe: Recipe) -> Recipe:
    """Return the toy recipe with db.sh of swbd and a directory per required disc."""
    shutil.copy(SWBD / "db.sh", recipe.directory)
    for name in REQUIRED.values():
        (recipe.directory / name).mkdir()
    return recipe


def prepared(recipe: Recipe, *options: str, **variables: str) -> dict[str, list[str]]:
    """Return the options with which data.sh starts prepare_swbd."""
    done = recipe.run(DATA, *options, **variables)
    assert (done.returncode, done.stderr) == (0, "")
    [call] = recipe.calls()
    assert call[:2] == ["-m", "distopt.prepare_swbd"]
    given: dict[str, list[str]] = {}
    for word in call[2:]:
        if word.startswith("--"):
            given[word[2:]] = []
        else:
            list(given.values())[-1].append(word)
    return given


def test_required_discs(swbd: Recipe) -> None:
    assert prepared(swbd, **REQUIRED) == {
        "swb1": ["LDC97S62"],
        "eval2000_speech": ["LDC2002S09"],
        "eval2000_text": ["LDC2002T43"],
        "out": ["data"],
        "dev_speakers": ["keep"],
        "max_lost": ["1"],
    }


def test_every_disc(swbd: Recipe) -> None:
    fisher = {"FISHER_SPEECH": "p1 p2", "FISHER_TEXT": "t1 t2"}
    given = prepared(swbd, "--dev-segments", "7", **REQUIRED, **OPTIONAL, **fisher)
    assert given["fisher_speech"] == ["p1", "p2"]
    assert given["fisher_text"] == ["t1", "t2"]
    assert given["dev_segments"] == ["7"]
    for name, key in (("SWBD_TEXT", "swb1_text"), ("CONV_TAB", "conv_tab")):
        assert given[key] == [OPTIONAL[name]]
    assert given["rt03"] == ["rt03"]


def test_the_lexicon_has_the_words_of_all_training_sets(swbd: Recipe) -> None:
    (swbd.directory / "LDC97S62" / "SW-MS98-DICT.TEXT").touch()
    fisher = {"FISHER_SPEECH": "p1", "FISHER_TEXT": "t1"}
    known = ["--text", "data/train_nodup/text", "--text", "data/train_dev/text"]
    for discs, more in (({}, []), (fisher, ["--text", "data/train_fisher/text"])):
        done = swbd.run(DATA, "--max_lost", "2", **REQUIRED, **discs)
        assert (done.returncode, done.stderr) == (0, "")
        assert swbd.calls()[-1] == [
            *("-m", "distopt.make_lexicon", *known, *more),
            *("--dictionary", "LDC97S62/SW-MS98-DICT.TEXT"),
            *("--max_lost", "2", "--out", "data/lexicon.txt"),
        ]


def test_an_option_goes_before_the_environment(swbd: Recipe) -> None:
    (swbd.directory / "with blank").mkdir()
    given = prepared(swbd, "--swbd", "with blank", "--rt03", "", RT03="x", **REQUIRED)
    assert given["swb1"] == ["with blank"]
    assert "rt03" not in given


@pytest.mark.parametrize("name", REQUIRED)
@pytest.mark.parametrize("place", ["", "/no/such/place"])
def test_missing_disc(swbd: Recipe, name: str, place: str) -> None:
    variables = {**REQUIRED, name: place}
    done = swbd.run(DATA, **variables)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {name}")
    assert done.stderr.count("\n") == 1
    assert REQUIRED[name] in done.stderr
    assert place in done.stderr
    assert not swbd.calls()


def test_mini_swbd_makes_its_discs_and_runs_the_same_script(recipe: Recipe) -> None:
    shutil.copy(MINI / "db.sh", recipe.directory)
    for name in ("swb1", "hub5e_00", "2000_hub5_eng_eval_tr"):
        (recipe.directory / "corpus" / name).mkdir(parents=True)
    script = str(MINI / "local" / "data.sh")
    # The synthetic corpus must not contain discs that the user's environment names.
    done = recipe.run(script, "--seed", "3", SWBD="/real", FISHER_SPEECH="/real")
    assert (done.returncode, done.stderr) == (0, "")
    made, prepared, lexicon = recipe.calls()
    assert made[1:] == [
        *("distopt.make_mini_swbd", "--out", "corpus"),
        *("--seed", "3"),
    ]
    assert prepared[1:] == [
        *("distopt.prepare_swbd", "--swb1", "corpus/swb1"),
        *("--eval2000_speech", "corpus/hub5e_00"),
        *("--eval2000_text", "corpus/2000_hub5_eng_eval_tr", "--out", "data"),
        *("--dev_speakers", "exclude", "--max_lost", "1"),
        *("--conv_tab", "corpus/swb1/tables/conv.tab"),
    ]
    assert lexicon[1:] == [
        "distopt.make_lexicon",
        *("--text", "data/train_nodup/text"),
        *("--text", "data/train_dev/text", "--synthesizer"),
        *("--out", "data/lexicon.txt"),
    ]


@pytest.mark.parametrize("kind", ["mini_swbd/asr1", "mini_ocr/ocr1"])
def test_no_set_of_an_earlier_corpus_is_left_beside_a_new_one(
    kind: str, recipe: Recipe
) -> None:
    shutil.copy(MINI / "db.sh", recipe.directory)
    for name in ("train_nodup", "train_dev", "eval2000", "train", "dev", "test"):
        (recipe.directory / "data" / name).mkdir(parents=True)
    script = str(ROOT / "egs" / kind / "local" / "data.sh")
    done = recipe.run(script, STUB_FAIL=f"make_{kind.partition('/')[0]}")
    assert done.returncode != 0
    left = {path.name for path in (recipe.directory / "data").iterdir()}
    swbd, ocr = {"train_nodup", "train_dev", "eval2000"}, {"train", "dev", "test"}
    assert left == (ocr if kind == "mini_swbd/asr1" else swbd)


def test_recipes_share_their_configurations() -> None:
    for recipe, decode in ((SWBD, "decode_ctc.yaml"), (MINI, "decode_best_path.yaml")):
        conf = recipe / "conf"
        assert (conf / "decode.yaml").resolve() == ROOT / "conf" / decode
        assert (conf / "distopt").resolve() == ROOT / "conf" / "distopt"
    train = SWBD / "conf" / "train.yaml"
    assert train.resolve() == ROOT / "conf" / "blstm.yaml"


def test_every_disc_of_the_recipe_has_its_number_in_db_sh() -> None:
    text = (SWBD / "db.sh").read_text()
    assert all(f"{name}=${{{name}:-}}" in text for name in (*REQUIRED, *OPTIONAL))
    assert all(number in text for number in REQUIRED.values())
    defined = [line.partition("=")[0] for line in text.splitlines() if "=${" in line]
    mini = (MINI / "db.sh").read_text().splitlines()
    assert [line.partition("=")[0] for line in mini if line[:1].isupper()] == defined


def test_paths_are_not_of_this_machine() -> None:
    for path in Path(SWBD).rglob("*"):
        if path.is_file():
            assert str(ROOT) not in path.read_text()

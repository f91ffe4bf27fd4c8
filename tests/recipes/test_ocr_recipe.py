"""These tests run asr.sh on text lines, and stage 1 of the mini_ocr and iam recipes."""

import os
import shutil

import pytest

from espnet_distopt.files.tables import read_table
from espnet_distopt.recipes.corpora.lines.iam import image_of
from espnet_distopt.recipes.hmm.ngram import read_arpa
from tests.recipes.corpora.lines.line_files import bars, save, write_page
from tests.recipes.toy_recipe import ROOT, Recipe

MINI, IAM, PAGES = (ROOT / "egs" / n / "ocr1" for n in ("mini_ocr", "iam", "pages"))
REAL = (
    "prepare_iam prepare_lines make_mini_ocr format_lines make_tokens make_ngram "
    "score_lines error_sheet"
)
NGRAM = ROOT / "conf" / "decode_ocr_ngram.yaml"
LINES = {
    "a01-000u-00": "A|MOVE|to|stop",
    "a01-000u-01": "them",
    "b02-001-00": "yes",
    "c03-003a-00": "nominating",
    "c03-003a-01": "any|more",
}
SETS = {
    "trainset.txt": "a01-000u",
    "validationset1.txt": "b02-001",
    "validationset2.txt": "b02-002",
    "testset.txt": "c03-003a",
}
OPTIONS = ["--feats_type", "lines", "--token_type", "char", "--distopt", "none"]


@pytest.fixture
def iam(recipe: Recipe) -> Recipe:
    """Return the toy recipe with the data.sh and the model of iam."""
    (recipe.directory / "conf" / "lm.yaml").write_text("seed: 0\n")
    root = recipe.directory / "archives"
    (root / "ascii").mkdir(parents=True)
    numbers = "ok 154 19 408 746 1661 89"
    lines = "".join(f"{line} {numbers} {text}\n" for line, text in LINES.items())
    (root / "ascii" / "lines.txt").write_text(lines)
    (root / "ascii" / "forms.txt").write_text(
        "a01-000u 000 2\nb02-001 001 2\nc03-003a 002 2\n"
    )
    for name, form in SETS.items():
        (root / name).write_text(f"{form}\n")
    for line in LINES:
        save(image_of(root, line))
    for name in ("cmd.sh", "local/data.sh", "conf/train.yaml"):
        shutil.copy(IAM / name, recipe.directory / name)
    variables = {"IAM": str(root), "STUB_REAL": REAL}
    return Recipe(recipe.directory, {**recipe.environment, **variables})


def test_iam_from_archives_to_table(iam: Recipe) -> None:
    iam.asr(*OPTIONS, "--halves", "first=-00$")
    assert iam.modules() == [
        *["check", "prepare_iam", "check", *["format_lines"] * 3, "make_tokens"],
        *["ocr_train", "ocr_train", "ocr_inference", "ocr_inference"],
        *["score_lines", "error_sheet", "wer_report"],
    ]
    decoded = iam.directory / "exp" / "ocr_none_1" / "decode" / "test"
    assert read_table(decoded / "text", str) == {
        "002-c03-003a-00": "nominating",
        "002-c03-003a-01": "any more",
    }
    assert (decoded / "errors.html").exists() and (decoded / "unfit").exists()
    report = (iam.directory / "exp" / "RESULTS.md").read_text()
    assert (
        "| CER first (jiwer) | CER all (jiwer) | WER first (jiwer) | WER all (jiwer) |"
    ) in report
    assert "| ocr_none_1 | - | - | - | - | 0.0 | 0.0 " in report


def test_pages_from_a_folder_to_a_table(iam: Recipe) -> None:
    shutil.copy(PAGES / "local" / "data.sh", iam.directory / "local")
    pages = iam.directory / "own pages"
    for number in range(3):
        write_page(pages / f"p{number}.xml", {"no more": bars(), "oh": bars(40)})
    (iam.directory / "conf" / "decode.yaml").write_text("search: ngram_beam\n")
    iam.asr(*OPTIONS, "--ngram_order", "4", PAGES=str(pages))
    assert iam.modules()[:7] == [
        *["check", "prepare_lines", *["format_lines"] * 3, "make_tokens", "make_ngram"]
    ]
    decoded = iam.directory / "exp" / "ocr_none_1" / "decode" / "test"
    assert read_table(decoded / "text", str) == {"p2-l0": "no more", "p2-l1": "oh"}
    ngram = read_arpa(iam.directory / "data/ngram/characters_4.arpa")
    assert ngram.order == 4 and ngram.words() == ["<space>", "<unk>", *"ehmnor"]
    calls = [call for call in iam.calls() if "ocr_inference" in call[1]]
    for call in calls:
        arpa = call[call.index("--ngram_file") + 1]
        assert arpa == "data/ngram/characters_4.arpa"
    assert "| ocr_none_1 |" in (iam.directory / "exp" / "RESULTS.md").read_text()


def test_pages_that_nobody_named(iam: Recipe) -> None:
    shutil.copy(PAGES / "local" / "data.sh", iam.directory / "local")
    for place, message in (("", "PAGES is not set"), ("/no/pages", "/no/pages: no su")):
        assert iam.refused(*OPTIONS, PAGES=place).startswith(message)
        assert not (iam.directory / "data").exists()


def test_low_images_are_padded_everywhere(iam: Recipe) -> None:
    with (iam.directory / "conf" / "train.yaml").open("a") as file:
        file.write("line_least_rows: 64   # of a scan\n")
    iam.asr(*OPTIONS, "--line_feats", "raw", "--stop_stage", "10")
    for call in iam.calls():
        if "format_lines" in call[1]:
            assert call[call.index("--least_rows") + 1] == "64"
    assert "dump/dev/images.scp,speech,line_image_40_64" in iam.call("ocr_train")


def test_training_needs_lines_that_are_scaled_as_it_says(iam: Recipe) -> None:
    iam.asr(*OPTIONS, "--stop_stage", "10")
    with (iam.directory / "conf" / "train.yaml").open("a") as file:
        file.write("line_least_rows: 64\n")
    assert iam.refused(*OPTIONS, "--stage", "11") == (
        "dump/train has lines of the height and least rows 40 0, and "
        "conf/train.yaml says 40 64: run from stage 3 (--stage 3)"
    )
    iam.asr(*OPTIONS, "--stage", "3", "--stop_stage", "11")


@pytest.mark.parametrize(
    ("line_feats", "expected"),
    [("ark", "feats.scp,speech,kaldi_ark"), ("raw", "images.scp,speech,line_image_40")],
)
def test_features(iam: Recipe, line_feats: str, expected: str) -> None:
    iam.asr(*OPTIONS, "--line_feats", line_feats, "--stop_stage", "11")
    formats = [call[2:] for call in iam.calls() if "format_lines" in call[1]]
    options = ["--nj", "2", "--height", "40", "--feats", line_feats]
    assert formats == [
        ["data/train", "dump/train", *options],
        ["data/dev", "dump/dev", *options],
        ["data/test", "dump/test", *options, "--keep_all"],
    ]
    statistics, training = (call for call in iam.calls() if "ocr_train" in call[1])
    for call in (statistics, training):
        assert f"dump/train/{expected}" in call and f"dump/dev/{expected}" in call
    assert training[training.index("--normalize") + 1] == "none"


def test_learners_and_language_model(iam: Recipe) -> None:
    (iam.directory / "conf" / "decode_lm.yaml").write_text("search: prefix_beam\n")
    options = [*OPTIONS[:-1], "bmuf_adam", "--nlearners", "2"]
    iam.asr(*options, "--use_lm", "true", "--stop_stage", "12")
    [launch] = [call for call in iam.calls() if call[1].endswith("launch")]
    assert launch[:9] == [
        *["-m", "espnet_distopt.bin.launch", "--nproc", "2", "--restarts", "3"],
        *["-m", "espnet_distopt.recipes.commands.ocr_train", "--distopt"],
    ]
    decodings = [call for call in iam.calls() if "ocr_inference" in call[1]]
    assert all(call[call.index("--lm") + 1] == "exp/lm_char" for call in decodings)
    assert all("conf/decode_lm.yaml" in call for call in decodings)
    assert (iam.directory / "exp/ocr_bmuf_adam_2/decode_lm/test/text").exists()


@pytest.mark.parametrize(
    ("stage", "missing", "earlier"),
    [(3, "data/train/images.scp", 1), (10, "dump/train/feats.scp", 3)],
)
def test_stage_without_what_it_needs(
    iam: Recipe, stage: int, missing: str, earlier: int
) -> None:
    assert iam.refused(*OPTIONS, "--stage", str(stage)) == (
        f"{missing} is missing: run from stage {earlier} (--stage {earlier})"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--feats_type", "fbank"), "--feats_type fbank: expected raw or lines"),
        (("--line_feats", "png"), "--line_feats png: expected ark or raw"),
        (("--ngram_file", "x"), "x: no such file"),
        (("--use_lm", "true"), "--use_lm needs 'search: prefix_beam' in conf/deco"),
        (("--speed_perturb_factors", "0.9"), "--speed_perturb_factors is for speech"),
        (
            ("--ngram_file", "conf/train.yaml"),
            "--ngram_file needs 'search: ngram_beam' in conf/decode.yaml",
        ),
        (
            ("--token_type", "bpe", "--decode_config", str(NGRAM)),
            f"{NGRAM}: the n-gram is over characters, not over --token_type bpe",
        ),
        (
            ("--use_lm", "true", "--decode_config", str(NGRAM)),
            f"--use_lm needs 'search: prefix_beam' in {NGRAM}",
        ),
        (
            ("--train_config", "conf/decode.yaml"),
            "conf/decode.yaml: expected input_size, the height of the lines",
        ),
    ],
)
def test_bad_option(iam: Recipe, options: tuple[str, ...], message: str) -> None:
    done = iam.refused(*OPTIONS, *options)
    assert done.startswith(f"{message}")
    assert iam.calls() == []


@pytest.mark.parametrize(
    ("name", "search", "options"),
    [("decode_lm", "prefix_beam", ("--use_lm", "true")), ("decode", "ngram_beam", ())],
)
def test_a_language_model_without_a_weight(
    iam: Recipe, name: str, search: str, options: tuple[str, ...]
) -> None:
    config = iam.directory / "conf" / f"{name}.yaml"
    config.write_text(f"search: {search}\nlm_weight: 0.0\n")
    done = iam.refused(*OPTIONS, *options)
    assert done.startswith(f"conf/{name}.yaml: lm_weight is missing or 0")


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("", "IAM is not set: IAM=/path must have lines.tgz and ascii.tgz unpacked"),
        ("/no/such/place", "IAM=/no/such/place: no such directory"),
        ("conf", "conf: expected ascii/lines.txt or xml/*.xml, unpacked from asc"),
    ],
)
def test_without_iam(iam: Recipe, place: str, message: str) -> None:
    if place == "conf":
        for name in SETS:
            shutil.copy(iam.directory / "archives" / name, iam.directory / "conf")
    done = iam.refused(*OPTIONS, IAM=place)
    assert done.startswith(f"{message}")
    assert not (iam.directory / "data").exists()


def test_mini_ocr_makes_its_lines(recipe: Recipe) -> None:
    script = str(MINI / "local" / "data.sh")
    sizes = [
        f"--{s}_{kind}" for s in ("train", "dev") for kind in ("printed", "digits")
    ]
    options = [word for size in sizes for word in (size, "2")]
    options += ["--test_printed", "2", "--test_digits", "2", "--nj", "1"]
    stale = recipe.directory / "data" / "train" / "stale"
    stale.parent.mkdir(parents=True)
    stale.touch()
    done = recipe.run(script, *options, STUB_REAL=REAL)
    assert (done.returncode, done.stderr) == (0, "")
    texts = read_table(recipe.directory / "data" / "test" / "text", str)
    parts = sorted(line.split("-")[1] for line in texts)
    assert parts == ["digits"] * 2 + ["known"] * 2 + ["unseen"] * 2
    for name, count in (("train", 4), ("dev", 4), ("test", 6)):
        images = read_table(recipe.directory / "data" / name / "images.scp", str)
        assert len(images) == count
        assert all((recipe.directory / image).exists() for image in images.values())
    assert not stale.exists()
    assert sorted(os.listdir(recipe.directory / "data")) == ["dev", "test", "train"]


def test_recipes_share_their_configurations() -> None:
    for recipe, train in (
        (IAM, "cnn_blstm.yaml"),
        (PAGES, "cnn_blstm.yaml"),
        (MINI, "cnn_blstm_small.yaml"),
    ):
        conf = recipe / "conf"
        greedy = ROOT / "conf" / "decode_ocr.yaml"
        assert (conf / "train.yaml").resolve() == ROOT / "conf" / train
        assert (conf / "decode.yaml").resolve() == NGRAM
        assert (conf / "decode_greedy.yaml").resolve() == greedy
        lm = ROOT / "conf" / "decode_ocr_lm.yaml"
        assert (conf / "decode_lm.yaml").resolve() == lm
        assert (conf / "distopt").resolve() == ROOT / "conf" / "distopt_ocr"


def test_no_passwords_and_no_downloads() -> None:
    for path in (*IAM.rglob("*.sh"), *MINI.rglob("*.sh"), *PAGES.rglob("*.sh")):
        text = path.read_text()
        assert not any(word in text for word in ("wget", "curl", "password"))
        assert str(ROOT) not in text

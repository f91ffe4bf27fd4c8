"""The corpus of rendered lines and handwritten digits: what its sets share."""

from collections import Counter
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from PIL import ImageFont
from scipy import ndimage

from espnet_distopt.files.tables import read_table
from espnet_distopt.recipes.commands.preparing import (
    make_mini_ocr_command,
    make_mini_ocr_parser,
)
from espnet_distopt.recipes.corpora.lines.images import line_features, read_image
from espnet_distopt.recipes.corpora.lines.sets import LineDir
from espnet_distopt.recipes.corpora.mini_ocr.corpus import (
    DEV_FORMS,
    FORMS,
    TEST_FORMS,
    TRAIN_FORMS,
    LineSizes,
    digits_of,
    make_corpus,
    plan_corpus,
    render_digits,
)
from espnet_distopt.recipes.corpora.mini_ocr.rendering import (
    ALPHABET,
    degrade,
    known_fonts,
    render_text,
    unseen_fonts,
)
from tests.recipes.contents import contents

TINY = LineSizes(
    train_printed=14,
    train_digits=10,
    dev_printed=2,
    dev_digits=1,
    test_printed=4,
    test_digits=3,
)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    out = tmp_path_factory.mktemp("mini") / "corpus"
    make_corpus(out, TINY, seed=0)
    return out


def test_data_directories(corpus):
    sets = {name: LineDir.read(corpus / name) for name in ("train", "dev", "test")}
    assert [len(lines.text) for lines in sets.values()] == [24, 3, 11]
    for lines in sets.values():
        for key, path in lines.images.items():
            ink = line_features(read_image(Path(path)), 32)
            assert len(ink) >= 2 * len(lines.text[key])
    parts = Counter(key.split("-")[1] for key in sets["test"].text)
    assert parts == {"known": 4, "unseen": 4, "digits": 3}
    digits = [text for key, text in sets["train"].text.items() if "-digits-" in key]
    assert all(text.isdigit() and 4 <= len(text) <= 10 for text in digits)


def test_result_depends_on_the_seed_and_not_on_the_processes(corpus, tmp_path):
    told = []
    make_corpus(
        tmp_path / "c", TINY, 0, nj=2, progress=lambda done, total: told.append(done)
    )
    assert told == list(range(1, 39))
    of_two, of_one = contents(tmp_path / "c"), contents(corpus)
    assert of_two.keys() == of_one.keys()
    changed = {name for name in of_one if of_two[name] != of_one[name]}
    assert changed == {f"{name}/images.scp" for name in ("train", "dev", "test")}
    other = {plan.id: plan for plan in plan_corpus(TINY, 1)}
    for plan in plan_corpus(TINY, 0):
        assert other.get(plan.id) is None or other[plan.id].text != plan.text


def test_sets_share_no_text_and_no_image():
    plans = plan_corpus(LineSizes(), 0)
    assert len({plan.text for plan in plans}) == len(plans) == 13600
    assert len({plan.id for plan in plans}) == len(plans)
    for one, other in combinations(("train", "dev", "test"), 2):
        strings = [plan for plan in plans if plan.set == one and plan.digits]
        others = [plan for plan in plans if plan.set == other and plan.digits]
        assert not {p.writer for p in strings} & {p.writer for p in others}
        images = {image for plan in strings for image in plan.digits}
        assert not images & {image for plan in others for image in plan.digits}
    fonts = {
        part: {p.writer for p in plans if f"-{part}-" in p.id and p.set == name}
        for name, part in (("train", "known"), ("test", "unseen"))
    }
    assert fonts["known"] == {font.name for font in known_fonts()}
    assert fonts["unseen"] == {font.name for font in unseen_fonts()}
    assert not fonts["known"] & fonts["unseen"]


def test_test_lines_do_not_depend_on_the_size_of_training():
    test = [plan for plan in plan_corpus(TINY, 0) if plan.set == "test"]
    larger = LineSizes(**{**vars(TINY), "train_printed": 30})
    assert [plan for plan in plan_corpus(larger, 0) if plan.set == "test"] == test


def test_every_character_is_trained_often():
    train = [plan.text for plan in plan_corpus(LineSizes(), 0) if plan.set == "train"]
    counts = Counter("".join(train))
    assert set(counts) == set(ALPHABET)
    assert min(counts.values()) > 50


def test_forms_are_where_the_labels_begin_anew():
    assert sorted([*TRAIN_FORMS, *DEV_FORMS, *TEST_FORMS]) == list(range(14))
    first = "".join(map(str, digits_of(0)[1]))
    for form in range(14):
        where, labels = digits_of(form)
        assert (where.start, where.stop) == (FORMS[form], FORMS[form + 1])
        text = "".join(map(str, labels))
        assert text.startswith("012345678901") and set(text) == set("0123456789")
        # The sequence of the form, of which some digits were lost.
        letters = iter(first)
        assert sum(label in letters for label in text) >= 100


@pytest.mark.parametrize("seed", range(8))
def test_strings_of_digits(seed):
    """With the same hand and pen, zeros take more room than ones."""

    def write(*digits):
        return render_digits(digits, np.random.default_rng(seed))

    zeros, ones = write(0, 10, 0, 10), write(1, 11, 1, 11)
    for line in (zeros, ones):
        assert line.min() >= 0 and 0.9 < line.max() <= 1
        assert ndimage.label(line > 0.5)[1] >= 4
    assert zeros.shape[1] > ones.shape[1]


@pytest.mark.parametrize(
    "font", [*known_fonts(), *unseen_fonts()], ids=lambda f: f.name
)
def test_fonts_have_the_alphabet_and_nothing_is_cut_off(font):
    face = ImageFont.truetype(font.path, 32, layout_engine=ImageFont.Layout.BASIC)
    drawn = [bytes(face.getmask(char)) for char in ALPHABET if char != " "]
    assert (
        all(any(each) for each in drawn) and bytes(face.getmask("\uffff")) not in drawn
    )
    for seed in range(5):
        ink = render_text("(Wjg/Q)", font.path, np.random.default_rng(seed))
        edges = ink[:, 0].max(), ink[:, -1].max(), ink[0].max(), ink[-1].max()
        assert max(edges) == 0 < ink.max()


@pytest.mark.parametrize("seed", range(20))
def test_degraded_lines_keep_their_text(seed):
    """All that happens to a line leaves most of its ink where it was."""
    rng = np.random.default_rng(seed)
    ink = render_text("minimum million", known_fonts()[3].path, rng)
    scan = degrade(ink, rng)
    assert scan.dtype == np.uint8 and 28 <= scan.shape[0] <= 56
    found, clean = (
        line_features(scan, 32),
        line_features((255 * (1 - ink)).astype(np.uint8), 32),
    )
    profile = np.interp(
        np.linspace(0, 1, len(clean)), np.linspace(0, 1, len(found)), found.sum(axis=1)
    )
    assert np.corrcoef(profile, clean.sum(axis=1))[0, 1] > 0.7


def test_a_set_without_lines_is_refused(tmp_path, refused):
    options = ["--out", str(tmp_path / "corpus"), "--train_printed", "0"]
    error = refused(make_mini_ocr_command, options)
    assert error == "--train_printed is 0, expected at least 1"
    assert not list(tmp_path.iterdir())


def test_defaults_of_the_command_are_those_of_the_library():
    args = make_mini_ocr_parser().parse_args(["--out", "x"])
    assert (
        LineSizes(**{name: getattr(args, name) for name in vars(LineSizes())})
        == LineSizes()
    )


def test_command_replaces_its_own(tmp_path, capsys):
    out = str(tmp_path / "corpus")
    sizes = [f"--{name}={size}" for name, size in vars(TINY).items()]
    for seed in ("0", "1"):
        make_mini_ocr_command(["--out", out, "--nj", "1", "--seed", seed, *sizes])
    assert "seed 1" in (tmp_path / "corpus" / "mini_ocr.txt").read_text()
    assert len(read_table(tmp_path / "corpus" / "dev" / "text", str)) == 3
    rows = capsys.readouterr().out.splitlines()[-3:]
    assert [row.split()[:2] for row in rows] == [
        ["train", "24"],
        ["dev", "3"],
        ["test", "11"],
    ]

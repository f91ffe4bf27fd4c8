"""Lines of a user's own: a table of images, and sets of pages."""

from pathlib import Path

import numpy as np
import pytest

from espnet_distopt.bin.prepare_lines import main
from espnet_distopt.corpora.kaldi.tables import read_table
from espnet_distopt.corpora.lines.images import read_image
from espnet_distopt.corpora.lines.sets import LineDir
from tests.corpora.lines.line_files import bars, refuses, save, write_page
from tests.refusal import error_of


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A table of three images, two in a directory."""
    for name in ("a.png", "more/b 1.jpg", "more/c.png"):
        save(tmp_path / "own" / name)
    rows = 'file\ttext\twriter\na.png\tone  two\tann\nmore/b 1.jpg\t"three"\tbob\n'
    (tmp_path / "own" / "lines.tsv").write_text(rows + "more/c.png\tfour\tann\n")
    return tmp_path / "own" / "lines.tsv"


def test_table(table: Path, tmp_path: Path) -> None:
    main(["--table", str(table), "--out", str(tmp_path / "data")])
    lines = LineDir.read(tmp_path / "data")
    assert lines.text == {
        "ann-a": "one two",
        "ann-more-c": "four",
        "bob-more-b_1": '"three"',
    }
    assert lines.images["bob-more-b_1"] == f"{table.parent}/more/b 1.jpg"
    assert lines.utt2spk["bob-more-b_1"] == "bob"


def test_a_word_from_right_to_left_in_another_text(table: Path, tmp_path: Path) -> None:
    text = "aleph: \u05d0\u05d1 12"
    table.write_text(f"a.png\t{text}\n", encoding="utf-8")
    main(["--table", str(table), "--out", str(tmp_path / "data")])
    assert LineDir.read(tmp_path / "data").text == {"a": text}


def test_table_without_writers_or_header(table: Path, tmp_path: Path) -> None:
    rows = "\ufeffa.png\tone\r\n\nmore/c.png\t\n"
    table.with_name("x.tsv").write_bytes(rows.encode())
    images = ["--images", str(table.parent)]
    main(["--table", f"{table.parent}/x.tsv", "--out", f"{tmp_path}/data", *images])
    lines = LineDir.read(tmp_path / "data")
    assert (lines.text, lines.utt2spk) == ({"a": "one"}, {"a": "a"})
    skipped = read_table(tmp_path / "data" / "skipped.txt", str)
    assert skipped == {
        "more-b_1.jpg": f"without a line in {table.parent}/x.tsv",
        "more-c": f"without text: {table.parent}/x.tsv:3",
    }


def _rows(text: str):
    return lambda table: table.write_text(text)


BAD_TABLES = {
    "missing": (lambda table: table.unlink(), "lines.tsv: no such file"),
    "empty": (_rows(""), "lines.tsv: empty"),
    "header only": (_rows("file\ttext\n"), "no line is left"),
    "latin-1": (
        lambda table: table.write_bytes(b"a.png\tcaf\xe9\n"),
        "lines.tsv:1: expected UTF-8",
    ),
    "commas": (_rows("a.png,one\n"), "lines.tsv:1: expected file, text and perhaps"),
    "four fields": (_rows("a.png\to\tann\tx\n"), "lines.tsv:1: expected file, text"),
    "no file": (_rows("\tone\n"), "lines.tsv:1: expected file, text"),
    "no image": (_rows("a.png\to\nx.png\tp\n"), "lines.tsv:2: "),
    "twice": (_rows("a.png\to\na.png\tp\n"), "is listed before, at"),
    "one id": (_rows("a.png\to\na.jpg\tp\n"), "two lines are called a"),
    "hebrew": (
        _rows("a.png\to\nmore/c.png\t12 \u05d0\u05d1 ab \u05d2.\n"),
        "lines.tsv:2: the text runs from right to left",
    ),
    "no text at all": (_rows("a.png\t\n"), "no line is left; 4 skipped, the first: a"),
}


@pytest.mark.parametrize("name", BAD_TABLES)
def test_bad_tables(
    name: str, table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(table.parent / "a.jpg")
    change, message = BAD_TABLES[name]
    change(table)
    refuses(["--table", str(table)], message, tmp_path, capsys)


def test_options_of_the_other_kind(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    message = "--images goes with --table, --writer and --sets with --pages"
    refuses(["--table", str(table), "--writer", "x"], message, tmp_path, capsys)
    images = ["--images", str(table.parent)]
    refuses(["--pages", str(table), *images], message, tmp_path, capsys)
    missing = ["--table", str(table), "--images", f"{tmp_path}/x"]
    refuses(missing, "x: no such directory of images", tmp_path, capsys)


def divided(pages: Path, out: Path) -> dict[str, list[str]]:
    main(["--pages", str(pages), "--sets", "--out", str(out)])
    return {
        name: sorted({*LineDir.read(out / name).utt2spk.values()})
        for name in ("train", "dev", "test")
    }


@pytest.mark.parametrize(
    ("count", "dev", "test"),
    [(3, ["p01"], ["p02"]), (5, ["p03"], ["p04"]), (12, ["p08"], ["p09"])],
)
def test_sets_of_a_folder_of_pages(
    count: int, dev: list[str], test: list[str], tmp_path: Path
) -> None:
    names = [f"p{number:02}" for number in range(count)]
    for name in names:
        write_page(tmp_path / "pages" / f"{name}.xml", {"a b": bars()})
    assert divided(tmp_path / "pages", tmp_path / "data") == {
        "train": [name for name in names if name not in (*dev, *test)],
        "dev": dev,
        "test": test,
    }
    assert np.array_equal(
        read_image(tmp_path / "data/dev/images" / f"{dev[0]}-l0.png"), bars()
    )


def test_a_broken_page_leaves_all_sets_as_they_were(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Else pages of the old test set would be in the new training set."""
    pages, out = tmp_path / "pages", tmp_path / "data"
    for number in range(10):
        write_page(pages / f"p{number}.xml", {"a b": bars()})
    before = divided(pages, out)
    # Two more pages move p8 and p9 into training, and the broken one into dev.
    for name in ("a0", "a1"):
        write_page(pages / f"{name}.xml", {"a b": bars()})
    (pages / "p6.png").unlink()
    options = ["--pages", str(pages), "--sets", "--out", str(out)]
    assert "p6.xml: no image " in error_of(main, options, capsys)
    assert before == {
        name: sorted({*LineDir.read(out / name).utt2spk.values()}) for name in before
    }
    assert sorted(path.name for path in out.iterdir()) == ["dev", "test", "train"]


def test_sets_that_a_folder_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pages, out = tmp_path / "pages", tmp_path / "data"
    for name, page in (("train", "z"), ("dev", "y"), ("test", "x")):
        write_page(pages / name / f"{page}.xml", {"a b": bars()})
    assert divided(pages, out) == {"train": ["z"], "dev": ["y"], "test": ["x"]}
    (pages / "dev").rename(pages / "more")
    options = ["--pages", str(pages), "--sets", "--out", str(tmp_path / "other")]
    message = "pages: there is train and test, but no directory dev"
    assert message in error_of(main, options, capsys)
    assert not (tmp_path / "other").exists()


def test_sets_of_too_few_pages(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = table.parent / "p.xml"
    write_page(page, {"a b": bars()})
    message = f"{page.parent}: 1 page(s), expected at least one each for train, dev and"
    refuses(["--pages", str(page.parent), "--sets"], message, tmp_path, capsys)
    message = "--sets goes with one directory of pages"
    refuses(["--pages", str(page), str(page), "--sets"], message, tmp_path, capsys)
    message = "--writer and --sets with --pages"
    refuses(["--table", str(table), "--sets"], message, tmp_path, capsys)

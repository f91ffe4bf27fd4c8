"""Lines of a user's own: a table of images, and sets of pages."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from espnet_distopt.files.tables import read_table
from espnet_distopt.recipes.commands.preparing import prepare_lines_command as main
from espnet_distopt.recipes.corpora.lines.images import read_image
from espnet_distopt.recipes.corpora.lines.own import PageLine, cut_line
from espnet_distopt.recipes.corpora.lines.sets import LineDir
from tests.recipes.corpora.lines.line_files import bars, refuses, save, write_page
from tests.refusal import Refused


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


def test_images_are_found_from_another_folder(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(table.parent)
    main(["--table", table.name, "--out", str(tmp_path / "data")])
    monkeypatch.chdir(tmp_path)
    images = LineDir.read(tmp_path / "data").images
    assert all(Path(image).is_file() for image in images.values())


def test_a_word_from_right_to_left_in_another_text(table: Path, tmp_path: Path) -> None:
    text = "aleph: \u05d0\u05d1 12"
    table.write_text(f"a.png\t{text}\n", encoding="utf-8")
    main(["--table", str(table), "--out", str(tmp_path / "data")])
    assert LineDir.read(tmp_path / "data").text == {"a": text}


def test_table_without_writers_or_header(table: Path, tmp_path: Path) -> None:
    rows = "\ufeffa.png\tone\r\n\nmore/c.png\t\n"
    table.with_name("x.tsv").write_bytes(rows.encode())
    main(["--table", f"{table.parent}/x.tsv", "--out", f"{tmp_path}/data"])
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
    "header only": (_rows("file\ttext\n"), "no line is left"),
    "commas": (_rows("a.png,one\n"), "lines.tsv:1: expected file, text and perhaps"),
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
    message = "--writer and --sets go with --pages"
    refuses(["--table", str(table), "--writer", "x"], message, tmp_path, capsys)
    refuses(["--table", str(table), "--sets"], message, tmp_path, capsys)


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
    tmp_path: Path, refused: Refused
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
    assert "p6.xml: no image " in refused(main, options)
    assert before == {
        name: sorted({*LineDir.read(out / name).utt2spk.values()}) for name in before
    }
    assert sorted(path.name for path in out.iterdir()) == ["dev", "test", "train"]


def test_sets_that_a_folder_names(tmp_path: Path, refused: Refused) -> None:
    pages, out = tmp_path / "pages", tmp_path / "data"
    for name, page in (("train", "z"), ("dev", "y"), ("test", "x")):
        write_page(pages / name / f"{page}.xml", {"a b": bars()})
    assert divided(pages, out) == {"train": ["z"], "dev": ["y"], "test": ["x"]}
    (pages / "dev").rename(pages / "more")
    options = ["--pages", str(pages), "--sets", "--out", str(tmp_path / "other")]
    message = "pages: there is train and test, but no directory dev"
    assert message in refused(main, options)
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


# Pages in PAGE XML: the lines that are cut out, those that are not, and bad pages.

PAGE = """\
<?xml version="1.0" encoding="UTF-8"?>
<PcGts xmlns="http://schema.primaresearch.org/PAGE/gts/pagecontent/2013-07-15">
<Page imageFilename="p1.png" imageWidth="100" imageHeight="60">
<TextRegion id="r"><Coords points="0,0 99,0 99,59 0,59"/>
<TextLine id="l1"><Coords points="10,10 89,10 89,29 10,29"/>
<Word id="w"><Coords points="10,10 20,10 20,29"/>
<TextEquiv><Unicode>First</Unicode></TextEquiv></Word>
<TextEquiv index="1"><Unicode>Fist  line</Unicode></TextEquiv>
<TextEquiv index="0"><Unicode>First  line</Unicode></TextEquiv></TextLine>
<TextLine id="l2"><Coords points="80,40 140,40 140,70 80,70"/>
<TextEquiv><Unicode>caf\u00e9</Unicode></TextEquiv></TextLine>
</TextRegion></Page></PcGts>
"""


@pytest.fixture
def page(tmp_path: Path) -> Path:
    image = np.arange(60 * 100).reshape(60, 100) % 251
    save(tmp_path / "own" / "p1.png", image.astype(np.uint8))
    (tmp_path / "own" / "page").mkdir()
    path = tmp_path / "own" / "page" / "p1.xml"
    path.write_text(PAGE)
    return path


@pytest.mark.parametrize("whole", [True, False], ids=["directory", "file"])
def test_pages(whole: bool, page: Path, tmp_path: Path) -> None:
    source = page.parent if whole else page
    main(["--pages", str(source), "--out", str(tmp_path / "data")])
    lines = LineDir.read(tmp_path / "data")
    assert lines.text == {"p1-l1": "First line", "p1-l2": "caf\u00e9"}
    assert set(lines.utt2spk.values()) == {"p1"}
    image = read_image(page.parent.parent / "p1.png")
    first, second = (read_image(Path(path)) for path in lines.images.values())
    assert np.array_equal(first, image[10:30, 10:90])
    assert np.array_equal(second, image[40:60, 80:100])  # what is on the page


def test_pages_of_a_writer(page: Path, tmp_path: Path) -> None:
    main(["--pages", str(page), "--out", f"{tmp_path}/data", "--writer", "Jane Doe"])
    assert list(LineDir.read(tmp_path / "data").text) == [
        "Jane_Doe-p1-l1",
        "Jane_Doe-p1-l2",
    ]


def turn(path: Path, orientation: int) -> None:
    """Mark an image as stored turned, without a change of its pixels."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    with Image.open(path) as image:
        Image.fromarray(np.asarray(image)).save(path, exif=exif)


@pytest.mark.parametrize("orientation", [5, 6, 7, 8])
@pytest.mark.parametrize("suffix", [".png", ".tif"])
@pytest.mark.parametrize("seen", ["stored", "upright"])
def test_a_photo_that_is_stored_turned(
    orientation: int, suffix: str, seen: str, page: Path, tmp_path: Path
) -> None:
    """The size that the PAGE file tells says which way the coordinates see it."""
    image = page.parent.parent / f"p1{suffix}"
    pixels = read_image(page.parent.parent / "p1.png")
    save(image, pixels)
    turn(image, orientation)
    changed = PAGE.replace("p1.png", image.name)
    if seen == "upright":
        changed = changed.replace('"100" imageHeight="60"', '"60" imageHeight="100"')
        pixels = read_image(image)
    page.write_text(changed)
    assert pixels.shape == ((100, 60) if seen == "upright" else (60, 100))
    main(["--pages", str(page), "--out", str(tmp_path / "data")])
    lines = LineDir.read(tmp_path / "data")
    cut = read_image(Path(lines.images["p1-l1"]))
    assert np.array_equal(cut, pixels[10:30, 10:90])


@pytest.mark.parametrize("orientation", [2, 3, 4])
def test_a_photo_whose_size_does_not_tell_how_it_is_turned(
    orientation: int, page: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    turn(page.parent.parent / "p1.png", orientation)
    message = f"{page}: its image {page.parent}/../p1.png is stored turned (EXIF), and"
    message = message.replace("page/../", "")
    refuses(["--pages", str(page)], message, tmp_path, capsys)


def test_points_of_the_first_version(page: Path, tmp_path: Path) -> None:
    points = "".join(f'<Point x="{x}" y="{y}"/>' for x, y in ((1, 2), (9, 2), (9, 30)))
    old = '<Coords points="10,10 89,10 89,29 10,29"/>\n<Word'
    page.write_text(PAGE.replace(old, f"<Coords>{points}</Coords><Word"))
    main(["--pages", str(page), "--out", str(tmp_path / "data")])
    assert read_image(tmp_path / "data/images/p1-l1.png").shape == (29, 9)


def test_outside_the_polygon_is_paper() -> None:
    image = np.full((40, 80), 200, np.uint8)
    image[:, 40:] = bars(40, 40)
    image[0:8] = 0  # the line above
    polygon = ((0.0, 0.0), (79.0, 39.0), (0.0, 39.0))
    cut = cut_line(image, PageLine("l", polygon, "x"))
    assert cut.shape == (40, 80)
    assert (cut[np.triu_indices(40, 2)[0], 40 + np.triu_indices(40, 2)[1]] >= 200).all()
    assert (image[0:8] == 0).all(), "the page is left as it is"


SKIPPED = {
    "outside": (
        "80,40 140,40 140,70 80,70",
        "100,40 140,40 140,70 100,70",
        "is outside",
    ),
    "left of the page": ("80,40 140,40 140,70 80,70", "-9,4 -2,4 -2,9", "is outside"),
    "a line of points": ("80,40 140,40 140,70 80,70", "80,40 90,40", "of 2 points"),
    "no points": ("80,40 140,40 140,70 80,70", "", "a polygon of 0 points"),
    "no text": ("caf\u00e9", "  ", "without text: "),
    "no transcript": (
        "<TextEquiv><Unicode>caf\u00e9</Unicode></TextEquiv>",
        "",
        "without text: ",
    ),
}


@pytest.mark.parametrize("name", SKIPPED)
def test_lines_that_are_skipped_and_listed(
    name: str, page: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new, reason = SKIPPED[name]
    assert old in PAGE
    page.write_text(PAGE.replace(old, new))
    main(["--pages", str(page), "--out", str(tmp_path / "data")])
    skipped = read_table(tmp_path / "data" / "skipped.txt", str)
    assert list(skipped) == ["p1-l2"] and reason in skipped["p1-l2"]
    assert f"{page}: line l2" in skipped["p1-l2"]
    assert len(list((tmp_path / "data" / "images").iterdir())) == 1
    assert "skipped.txt lists what was skipped" in capsys.readouterr().out


def _page(old: str, new: str):
    assert old in PAGE
    return lambda page: page.write_text(PAGE.replace(old, new))


BAD_PAGES = {
    "missing": (lambda page: page.unlink(), "p1.xml: no such file or directory"),
    "not closed": (_page("</Page>", ""), "p1.xml:12: bad XML: mismatched tag"),
    "alto": (
        lambda page: page.write_text("<alto><Layout/></alto>"),
        "p1.xml: expected PAGE XML with one Page, got 0: this is ALTO, and ",
    ),
    "no image name": (_page('imageFilename="p1.png"', ""), "has no imageFilename"),
    "no image": (
        lambda page: (page.parent.parent / "p1.png").unlink(),
        "p1.xml: no image ",
    ),
    "broken image": (
        lambda page: (page.parent.parent / "p1.png").write_bytes(b"P"),
        "p1.png: no image, or of none of the kinds",
    ),
    "other size": (
        _page('imageWidth="100"', 'imageWidth="200"'),
        "p1.xml: the page is 200 x 60 pixels, its image",
    ),
    "no size": (_page('imageWidth="100"', ""), "expected a number as the Page's image"),
    "no id": (_page('<TextLine id="l2">', "<TextLine>"), "a TextLine has no id"),
    "one id": (_page('id="l2"', 'id="l1"'), "p1.xml: two lines are called l1"),
    "ids that become one": (
        lambda page: page.write_text(
            PAGE.replace('"l1"', '"l/1"').replace('"l2"', '"l-1"')
        ),
        "p1.xml: two lines are called l-1",
    ),
    "no numbers": (_page("80,40 140", "80,a 140"), "line l2: expected points as"),
    "infinite": (_page("80,40 140", "80,inf 140"), "line l2: points that are not fin"),
    "arabic": (
        _page("caf\u00e9", "\u0643\u062a\u0627\u0628"),
        "p1.xml: line l2: the text runs from right to left",
    ),
    "no line": (
        lambda page: page.write_text(PAGE.replace("TextLine", "Line")),
        "no line is left",
    ),
    "same name": (
        lambda page: (
            save(page.parent / "x" / "p1.png")
            and (page.parent / "x" / "p1.xml").write_text(PAGE)
        ),
        "p1.xml: a page of the same name is ",
    ),
}


@pytest.mark.parametrize("name", BAD_PAGES)
def test_bad_pages(
    name: str, page: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change, message = BAD_PAGES[name]
    change(page)
    source = page.parent if name == "same name" else page
    refuses(["--pages", str(source)], message, tmp_path, capsys)


def test_no_pages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "own").mkdir()
    source = ["--pages", str(tmp_path / "own")]
    refuses(source, "own: no *.xml in it", tmp_path, capsys)

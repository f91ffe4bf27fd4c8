"""Pages in the manner of the programs that write PAGE XML: how lines lie, and texts."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from espnet_distopt.recipes.commands.preparing import prepare_lines_command as main
from espnet_distopt.recipes.corpora.lines.images import Gray, read_image
from espnet_distopt.recipes.corpora.lines.own import PageLine, cut_line
from espnet_distopt.recipes.corpora.lines.sets import LineDir
from tests.recipes.corpora.lines.line_files import save
from tests.refusal import Refused


def stairs() -> Gray:
    """A line, 60 x 20 pixels, that looks another way however it is turned."""
    image = np.full((20, 60), 230, np.uint8)
    for number, start in enumerate(range(4, 54, 10)):
        image[16 - 3 * number : 18, start : start + 4] = 20
    return image


# The angle by which each line of the page must be turned clockwise; left, top.
PLACES = {0: (10, 10), 180: (10, 50), 90: (90, 10), -90: (120, 10)}


def page_image() -> Gray:
    image = np.full((80, 150), 230, np.uint8)
    for angle, (left, top) in PLACES.items():
        line = np.rot90(stairs(), angle // 90)  # this turns it counter-clockwise
        image[top : top + len(line), left : left + line.shape[1]] = line
    return image


def corners(angle: int) -> list[tuple[int, int]]:
    left, top = PLACES[angle]
    width, height = (59, 19) if angle % 180 == 0 else (19, 59)
    right, bottom = left + width, top + height
    return [(left, top), (right, top), (right, bottom), (left, bottom)]


def points(places: list[tuple[int, int]]) -> str:
    return " ".join(f"{x},{y}" for x, y in places)


def coords(angle: int) -> str:
    return f'<Coords points="{points(corners(angle))}"/>'


def baseline(angle: int) -> str:
    """The lower side of a line, from its first letter to its last."""
    first = {0: 3, -90: 0, 180: 1, 90: 2}[angle]
    four = corners(angle)
    return f'<Baseline points="{points([four[first], four[first - 1]])}"/>'


def text(words: str, index: str = "") -> str:
    return f"<TextEquiv{index}><Unicode>{words}</Unicode></TextEquiv>"


def line(key: str, *content: str, more: str = "") -> str:
    return f'<TextLine id="{key}"{more}>{"".join(content)}</TextLine>'


def region(*content: str, more: str = "", kind: str = "TextRegion") -> str:
    around = '<Coords points="0,0 149,0 149,79 0,79"/>'
    return f'<{kind} id="r"{more}>{around}{"".join(content)}</{kind}>'


def word(key: str, *content: str, kind: str = "Word") -> str:
    return (
        f'<{kind} id="{key}"><Coords points="0,0 9,0 9,9"/>{"".join(content)}</{kind}>'
    )


def run_twice(angle: int) -> str:
    return f'<Coords points="{points(corners(angle) * 2)}"/>'


def first_version(angle: int) -> str:
    found = "".join(f'<Point x="{x}" y="{y}"/>' for x, y in corners(angle))
    return f"<Coords>{found}</Coords>"


TURNED = ' orientation="90.0"'
# For each file: the attributes of its Page, its regions, and what is to become of its
# lines: the text of one that is taken, or (why it is skipped,).
FILES: dict[str, tuple[str, str, dict[str, str | tuple[str]]]] = {
    "Transkribus, a region turned in the editor": (
        "",
        region(
            line("a", coords(90), baseline(90), text("one")),
            line("b", coords(0), baseline(0), text("two")),
            more=TURNED + ' custom="readingOrder {index:0;}"',
        ),
        {"a": "one", "b": ("turned by 90 degrees clockwise, and its baseline by 0",)},
    ),
    "Transkribus, cells of a table": (
        "",
        region(
            region(
                line("a", coords(0), baseline(0), text("one")),
                line("b", coords(180), baseline(180), text("two")),
                kind="TableCell",
            ),
            kind="TableRegion",
        ),
        {"a": "one", "b": "two"},
    ),
    "Transkribus, outlines that are the baselines": (
        "",
        region(
            line("a", coords(0), baseline(0), text("one")),
            line(
                "b",
                '<Coords points="10,60 69,64 10,60"/>',
                '<Baseline points="10,60 69,64"/>',
                text("two"),
            ),
        ),
        {"a": "one", "b": ("pixels high on average, expected at least 4",)},
    ),
    "eScriptorium, lines in all directions": (
        "",
        region(
            *(
                line(f"l{angle % 360}", coords(angle), baseline(angle), text("x y"))
                for angle in PLACES
            ),
            more=' custom="structure {type:Main;}"',
        ),
        {"l0": "x y", "l180": "x y", "l90": "x y", "l270": "x y"},
    ),
    "eScriptorium, no mask, and one that crosses itself": (
        "",
        region(
            line("a", run_twice(0), baseline(0), text("one")),
            line("b", baseline(180), text("two")),
        ),
        {"a": "one", "b": ("let the program that drew its baseline compute outlines",)},
    ),
    "OCR-D, the page and a region deskewed": (
        ' orientation="180.0"',
        region(line("a", coords(180), text("one")))
        + region(line("b", coords(-90), text("two")), more=' orientation="-90.0"')
        + region(line("c", coords(180), text("three")), more=' orientation="0.0"'),
        {"a": "one", "b": "two", "c": "three"},
    ),
    "OCR-D, versions by several recognizers": (
        "",
        region(
            line(
                "a",
                coords(0),
                text("wrong", ' index="2" conf="0.9"'),
                text("one", ' index="1" conf="0.3"'),
            ),
            line("b", coords(0), text("two"), text("tow")),
            line("c", coords(0), text("same"), text("same ")),
        ),
        {
            "a": "one",
            "b": ("2 versions, of which no index says which is right: 'tow', 'two'",),
            "c": "same",
        },
    ),
    "eynollah, the path of its own machine": (
        "",
        region(
            line("a", coords(0), text("one", ' conf="0.93"')),
            line("b", coords(0), text("")),
        ),
        {"a": "one", "b": ("without text: ",)},
    ),
    "Aletheia, words and glyphs without a line's text": (
        ' orientation="0.000000"',
        region(
            line("a", coords(0), word("w1", text("one")), word("w2", text("more"))),
            line(
                "b",
                coords(0),
                word("w3", *(word("g", text(x), kind="Glyph") for x in "two")),
                text(""),
            ),
            line("c", coords(0), word("w4", text("half")), word("w5", text(""))),
            line(
                "d",
                coords(0),
                "<TextEquiv><PlainText>four</PlainText><Unicode/></TextEquiv>",
            ),
            more=' orientation="0.000000" readingDirection="left-to-right"',
        ),
        {"a": "one more", "c": ("Word w5 has no text",), "d": "four", "b": "two"},
    ),
    "Aletheia, the first version, and text from top to bottom": (
        "",
        region(
            line("a", first_version(90), text("one")),
            more=' orientation="0" readingOrientation="90.000"',
        )
        + region(
            line("b", coords(-90), text("two")),
            line(
                "c", coords(0), text("three"), more=' readingDirection="left-to-right"'
            ),
            more=' readingDirection="top-to-bottom"',
        ),
        {"a": "one", "b": ("readingDirection is top-to-bottom, and",), "c": "three"},
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_lines_of_a_program(name: str, tmp_path: Path) -> None:
    """Each line that is taken is upright, whole and has the right text."""
    page, regions, expected = FILES[name]
    image = r"C:\scans\p.png" if name.startswith("eynollah") else "p.png"
    save(tmp_path / "p.png", page_image())
    (tmp_path / "page").mkdir()
    (tmp_path / "page" / "p.xml").write_text(
        '<?xml version="1.0" encoding="UTF-8" standalone="yes"?>\n'
        '<PcGts xmlns="http://schema.primaresearch.org/PAGE/gts/pagecontent/2019-07-15">'
        f"<Metadata><Creator>{name}</Creator></Metadata>"
        f'<Page imageFilename="{image}" imageWidth="150" imageHeight="80"{page}>'
        f"{regions}</Page></PcGts>"
    )
    main(["--pages", str(tmp_path / "page"), "--out", str(tmp_path / "data")])
    lines = LineDir.read(tmp_path / "data")
    listed = (tmp_path / "data" / "skipped.txt").read_text().splitlines()
    skipped = dict(row.split(" ", 1) for row in listed)
    taken = {
        f"p-{key}": text for key, text in expected.items() if isinstance(text, str)
    }
    assert lines.text == taken
    assert skipped.keys() == {f"p-{key}" for key in expected} - taken.keys()
    for key, why in skipped.items():
        assert expected[key.removeprefix("p-")][0] in why
    for path in lines.images.values():
        assert np.array_equal(read_image(Path(path)), stairs())


@pytest.mark.parametrize("by", ["orientation", "baseline"])
@pytest.mark.parametrize("angle", [3.0, -8.0, 93.0])
def test_a_skewed_line_becomes_level(angle: float, by: str) -> None:
    """Without the turn, a line of 400 pixels would be higher by 20 to 60 pixels."""
    level = np.full((500, 500), 230, np.uint8)
    level[240:260, 50:450] = np.tile(stairs(), 7)[:, :400]
    skewed = Image.fromarray(level).rotate(
        angle, Image.Resampling.BICUBIC, fillcolor=230
    )
    turn = np.exp(
        1j * np.radians(-angle)
    )  # clockwise on the page is anticlockwise here
    middle = 250 + 250j

    def moved(*places: complex) -> tuple[tuple[float, float], ...]:
        at = [middle + (place - middle) * turn for place in places]
        return tuple((z.real, z.imag) for z in at)

    outline = moved(50 + 240j, 449 + 240j, 449 + 259j, 50 + 259j)
    below = moved(50 + 256j, 449 + 256j)
    how = {"orientation": angle} if by == "orientation" else {"baseline": below}
    cut = cut_line(np.asarray(skewed), PageLine("l", outline, "x", **how))
    assert abs(cut.shape[0] - 20) <= 3 and abs(cut.shape[1] - 400) <= 3
    middle_row = cut[len(cut) // 2 + 5].astype(int)
    assert np.ptp(middle_row) > 150, "the letters are sharp, all along the line"
    parts = middle_row[:400].reshape(-1, 50).min(axis=1)
    assert (parts < 80).all()


def test_a_line_as_good_as_level_is_left_as_it_is() -> None:
    """Turning it would only blur it."""
    outline = tuple((float(x), float(y)) for x, y in corners(0))
    level = cut_line(page_image(), PageLine("l", outline, "x"))
    base = ((10.0, 28.0), (69.0, 29.0))
    assert np.array_equal(
        cut_line(page_image(), PageLine("l", outline, "x", base)), level
    )


def test_a_loop_in_an_outline_is_part_of_the_line() -> None:
    """Half the line lies twice within its outline, and a flourish leaves the page."""
    left, right = (10, 69)
    outline = [(left, 10), (right, 10), (right, 29), (left, 29), (left, 10)]
    outline += [(40, 10), (40, 29), (left, 29), (-9e9, 29), (-9e9, 10)]
    places = tuple((float(x), float(y)) for x, y in outline)
    cut = cut_line(page_image(), PageLine("l", places, "x"))
    assert np.array_equal(cut[:, 10:], stairs())


@pytest.mark.parametrize("value", ["left", "nan", ""])
def test_an_angle_that_is_none(value: str, tmp_path: Path, refused: Refused) -> None:
    save(tmp_path / "p.png", page_image())
    content = region(line("a", coords(0), text("x")), more=f' orientation="{value}"')
    (tmp_path / "p.xml").write_text(
        '<PcGts><Page imageFilename="p.png" imageWidth="150" imageHeight="80">'
        f"{content}</Page></PcGts>"
    )
    options = ["--pages", str(tmp_path), "--out", str(tmp_path / "data")]
    message = f"p.xml: TextRegion r: expected degrees as orientation: {value!r}"
    assert message in refused(main, options)

"""Finds the fonts of the printed lines: matplotlib's, and those that a user adds."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import ImageFont

from espnet_distopt.corpora.lines.sets import plain_id
from espnet_distopt.errors import InputError

# The keys are the names that the ids of lines start with. Computer Modern lacks "<",
# ">" and, in italics, the dollar sign, so the texts have none of these.
_KNOWN = {
    "CMBold": "cmb10",
    "CMItalic": "cmti10",
    "CMRoman": "cmr10",
    "DejaVuSans": "DejaVuSans",
    "DejaVuSansBold": "DejaVuSans-Bold",
    "DejaVuSansMono": "DejaVuSansMono",
    "DejaVuSansOblique": "DejaVuSans-Oblique",
    "DejaVuSerif": "DejaVuSerif",
    "DejaVuSerifItalic": "DejaVuSerif-Italic",
    "STIX": "STIXGeneral",
    "STIXBold": "STIXGeneralBol",
    "STIXItalic": "STIXGeneralItalic",
}
# These are two designs that training has in no style, and two new styles of known
# designs.
_UNSEEN = {
    "CMSans": "cmss10",
    "CMTypewriter": "cmtt10",
    "DejaVuSerifBold": "DejaVuSerif-Bold",
    "STIXBoldItalic": "STIXGeneralBolIta",
}
_SUFFIXES = (".ttf", ".otf", ".ttc")


@dataclass(frozen=True)
class Font:
    """A font's name, and its file."""

    name: str
    path: Path


def known_fonts() -> list[Font]:
    """Return the fonts of the training lines and of the test lines called known."""
    return _fonts_of_matplotlib(_KNOWN)


def unseen_fonts() -> list[Font]:
    """Return the fonts that only test lines have."""
    return _fonts_of_matplotlib(_UNSEEN)


def added_fonts(places: Sequence[Path], alphabet: str) -> tuple[list[Font], list[Path]]:
    """Find the fonts that a user adds.

    Args:
        places: Files of fonts, and directories of such files.
        alphabet: The characters that a font must have.

    Returns:
        The fonts, and the files of fonts that lack a character.

    Raises:
        InputError: A place does not exist, a file is no font, or a directory has none.
    """
    fonts, lacking = [], []
    for path in [file for place in places for file in _font_files(place)]:
        font = Font(plain_id(path.stem), path)
        if has_characters(path, alphabet):
            fonts.append(font)
        else:
            lacking.append(path)
    return fonts, lacking


def has_characters(path: Path, alphabet: str) -> bool:
    """Tell whether a font has each character, rather than a sign for a missing one.

    Raises:
        InputError: The file is no font.
    """
    try:
        font = ImageFont.truetype(path, 32, layout_engine=ImageFont.Layout.BASIC)
        missing = bytes(font.getmask("\uffff"))
        drawn = [bytes(font.getmask(char)) for char in alphabet if char != " "]
    except OSError as error:
        raise InputError(f"{path}: no font that can be read: {error}") from None
    return all(any(glyph) and glyph != missing for glyph in drawn)


def check_added(added: Sequence[Font]) -> None:
    """Check that no added font is one of the unseen fonts under another name.

    Raises:
        InputError: Two fonts have the same family and style, as the files tell them.
    """
    unseen = {_face(font): font.name for font in unseen_fonts()}
    for font in added:
        name = unseen.get(_face(font))
        if name is not None:
            raise InputError(
                f"{font.path}: the font {name} is for test lines only, and added fonts "
                "are for training, too: leave it out"
            )


def _face(font: Font) -> tuple[str | None, str | None]:
    """Return a font's family and style."""
    return ImageFont.truetype(font.path).getname()


def _fonts_of_matplotlib(names: dict[str, str]) -> list[Font]:
    try:
        import matplotlib
    except ModuleNotFoundError:
        raise InputError(
            "the fonts come with matplotlib: pip install matplotlib"
        ) from None
    directory = Path(matplotlib.get_data_path(), "fonts", "ttf")
    fonts = [Font(name, directory / f"{file}.ttf") for name, file in names.items()]
    for font in fonts:
        if not font.path.exists():
            raise InputError(f"{font.path}: no such font: is matplotlib complete?")
    return fonts


def _font_files(place: Path) -> list[Path]:
    if place.is_file():
        return [place]
    if not place.is_dir():
        raise InputError(f"{place}: no such font or directory")
    files = sorted(p for p in place.rglob("*") if p.suffix.lower() in _SUFFIXES)
    if not files:
        raise InputError(f"{place}: no font in it ({', '.join(_SUFFIXES)})")
    return files

"""Invents printed lines, draws them, and imitates ink, paper and scanner.

Every line gets its own random faults: ink bleeds or fades, the line is skewed, the
paper is uneven, and the image is blurred, noisy, of some resolution, and perhaps saved
as a JPEG.
"""

import io
import random
import string
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from scipy import ndimage

from espnet_distopt.errors import InputError

ALPHABET = string.ascii_letters + string.digits + " .,;:!?'\"()-/%&"
"""Every character that a text may have."""

_WORD_LINES = """
the of and to in is you that it he was for on are as with his they at be this have
from or one had by word but not what all were we when your can said there use an each
which she do how their if will up other about out many then them these so some her
would make like him into time has look two more write go see number no way could
people my than first water been call who oil its now find long down day did get come
made may part over new sound take only little work know place year live me back give
most very after thing our just name good sentence man think say great where help
through much before line right too mean old any same tell boy follow came want show
also around form three small set put end does another well large must big even such
because turn here why ask went men read need land different home us move try kind hand
picture again change off play spell air away animal house point page letter mother
answer found study still learn should world high every near add food between own below
country plant last school father keep tree never start city earth eye light thought
head under story saw left late run while press close night real life few north open
seem together next white children begin got walk example ease paper group always music
those both mark often book until mile river car feet care second enough plain girl
usual young ready above ever red list though feel talk bird soon body dog family
direct leave song measure door product black short class wind question happen complete
ship area half rock order fire south problem piece told knew pass since top whole king
space heard best hour better true during hundred five remember step early hold west
ground interest reach fast verb sing listen six table travel less morning ten simple
several vowel toward war lay against pattern slow center love person money serve
appear road map rain rule govern pull cold notice voice unit power town fine certain
fly fall lead cry dark machine note wait plan figure star box noun field rest correct
able pound done beauty drive stood contain front teach week final gave green quick
develop ocean warm free minute strong special mind behind clear tail produce fact
street inch multiply nothing course stay wheel full force blue object decide surface
deep moon island foot system busy test record boat common gold possible plane dry
wonder laugh thousand ago ran check game shape equate hot miss brought heat snow tire
bring yes distant fill east paint language among jazz quiz vex zebra fox lazy quartz
oxygen fizz buzz maximum exact equal jacket project major judge enjoy objective unique
liquid quiet quarter require
"""
_NAME_LINES = """
Adams Baker Carter Davis Evans Fisher Garcia Harris Irving Jones Kelly Lopez Miller
Nelson Owens Parker Quinn Roberts Smith Turner Underwood Vargas Wilson Xavier Young
Zimmer Boston Chicago Dublin Geneva Havana Istanbul Jakarta Kyoto London Madrid Naples
Oslo Paris Quito Rome Sydney Tokyo Utrecht Vienna Warsaw York Zurich
"""
_MONTH_LINES = """
January February March April May June July August September October November December
"""
_WORDS = _WORD_LINES.split()
_NAMES = _NAME_LINES.split()
_MONTHS = _MONTH_LINES.split()
_SHORT = ("Mr.", "Mrs.", "Dr.", "No.", "St.", "Ltd.", "Inc.", "etc.", "Vol.", "p.")
_POSSESSIVES = ("'s", "'ll", "'d", "n't", "'re")


def random_text(rng: random.Random, longest: int = 40) -> str:
    """Return the text of a line, of at least one and at most `longest` characters.

    >>> random_text(random.Random(5))
    'Rule rest? As: "through"'
    """
    limit = rng.randint(min(12, longest), longest)
    text = ""
    start = rng.random() < 0.4  # the line begins a sentence
    while True:
        piece = _piece(rng)
        if start:
            piece = piece[0].upper() + piece[1:]
        start = piece[-1] in ".!?"
        longer = f"{text} {piece}".lstrip()
        if len(longer) > limit:
            return text or longer[:limit].rstrip()
        text = longer


def _piece(rng: random.Random) -> str:
    """Return a word or a figure, with the punctuation that goes with it."""
    kind = rng.random()
    if kind < 0.16:
        return _figure(rng) + rng.choice(("", "", ",", "."))
    if kind < 0.30:
        return _capitalized(rng) + rng.choice(("", "", ",", ".", ";"))
    word = rng.choice(_WORDS)
    if kind < 0.62:
        return word
    if kind < 0.68:
        return f"{word}-{rng.choice(_WORDS)}"
    if kind < 0.73:
        return f"({word})"
    if kind < 0.78:
        return f'"{word}"'
    if kind < 0.82:
        return word + rng.choice(_POSSESSIVES)
    if kind < 0.86:
        return f"{word} & {rng.choice(_WORDS)}"
    return word + rng.choice(",.;:!?")


def _capitalized(rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.45:
        return rng.choice(_NAMES)
    if kind < 0.75:
        return rng.choice(_WORDS).upper()
    if kind < 0.9:
        return f"{rng.choice(_SHORT)} {rng.choice(_NAMES)}"
    return f"{rng.choice(string.ascii_uppercase)}. {rng.choice(_NAMES)}"


def _figure(rng: random.Random) -> str:
    day, month, year = rng.randint(1, 31), rng.randint(1, 12), rng.randint(1800, 2030)
    forms = (
        lambda: str(rng.randint(0, 999)),
        lambda: f"{rng.randint(1000, 999999):,}",
        lambda: f"{rng.randint(0, 99)}.{rng.randint(0, 99):02}",
        lambda: f"{rng.randint(0, 100)}%",
        lambda: f"{day} {_MONTHS[month - 1]} {year}",
        lambda: f"{day:02}/{month:02}/{year}",
        lambda: f"{year}-{month:02}-{day:02}",
        lambda: f"{rng.randint(0, 23)}:{rng.randint(0, 59):02}",
        lambda: f"{rng.randint(200, 999)}-{rng.randint(0, 9999):04}",
        lambda: f"{rng.choice(string.ascii_uppercase)}{rng.randint(1, 999)}",
    )
    return rng.choice(forms)()


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


Ink = NDArray[np.float32]
"""Ink on paper, shape (height, width), from 0 for paper to 1 for ink."""

_SIZES = (22, 40)  # pixels of the em square


def render_text(text: str, font: Path, rng: np.random.Generator) -> Ink:
    """Draw a text in one line with margins, at a random size and spacing.

    Returns:
        The line, shape (height, width).
    """
    size = int(rng.integers(_SIZES[0], _SIZES[1] + 1))
    face = _face(font, size)
    spacing = float(rng.uniform(0, 0.08)) * size if rng.random() < 0.3 else 0.0
    starts = [face.getlength(text[:n]) + n * spacing for n in range(len(text) + 1)]
    left, right = (int(m) for m in rng.integers(2, max(size // 2, 3), 2))
    above, below = (int(m) for m in rng.integers(1, max(size // 5, 2), 2))
    # The font's own ascent is of no use: some letters of Computer Modern are higher.
    _, top, _, bottom = (round(edge) for edge in face.getbbox(ALPHABET))
    y = above - top
    width = left + round(starts[-1]) + right + size // 4  # slanted letters lean out
    image = Image.new("L", (width, y + bottom + below), 0)
    draw = ImageDraw.Draw(image)
    if spacing:
        for start, letter in zip(starts, text, strict=False):
            draw.text((left + start, y), letter, font=face, fill=255)
    else:
        draw.text((left, y), text, font=face, fill=255)
    return np.asarray(np.asarray(image) / 255, np.float32)


@lru_cache(maxsize=1024)
def _face(font: Path, size: int) -> ImageFont.FreeTypeFont:
    # Every Pillow has the basic layout; the other one shapes letters in another way.
    return ImageFont.truetype(font, size, layout_engine=ImageFont.Layout.BASIC)


Gray = NDArray[np.uint8]
"""A grey image, shape (height, width), from 0 for black to 255 for white."""

_HEIGHTS = (28, 56)  # pixels of the finished image


def degrade(ink: Ink, rng: np.random.Generator) -> Gray:
    """Make a scan of a line of ink.

    Args:
        ink: The line, shape (height, width), from 0 for paper to 1 for ink.
        rng: Decides which faults the line gets, and how strong they are.

    Returns:
        The grey levels, in another shape (height, width), of the same text.
    """
    ink = _skew(ink, rng)
    ink = _spread(ink, rng)
    ink = ink * (1 - rng.uniform(0, 0.5) * _clouds(ink.shape, 12, rng))
    scan = _paper(ink.shape, rng) * (1 - ink) + rng.uniform(5, 90) * ink
    scan = _scale(scan, rng)
    if rng.random() < 0.5:
        scan = np.array(ndimage.gaussian_filter(scan, rng.uniform(0.2, 0.9)))
    scan += rng.normal(0, rng.uniform(0, 9), scan.shape).astype(np.float32)
    if rng.random() < 0.2:
        _specks(scan, rng)
    image = np.clip(scan, 0, 255).astype(np.uint8)
    return _jpeg(image, int(rng.integers(30, 91))) if rng.random() < 0.4 else image


def _skew(ink: Ink, rng: np.random.Generator) -> Ink:
    """Let the line rise or fall by up to a sixth of its height."""
    height, width = ink.shape
    drift = rng.uniform(-1, 1) * min(height / 6, 0.03 * width)
    room = int(abs(drift)) // 2 + 1
    padded = np.pad(ink, ((room, room), (0, 0)))
    slope = drift / width
    matrix = np.array([[1, slope], [0, 1]])
    skewed = ndimage.affine_transform(
        padded, matrix, offset=(-slope * width / 2, 0), order=1
    )
    return np.asarray(skewed, np.float32)


def _spread(ink: Ink, rng: np.random.Generator) -> Ink:
    """Let strokes grow (the ink bleeds) or shrink a little, with soft edges."""
    soft = ndimage.gaussian_filter(ink, rng.uniform(0.4, 0.8))
    edge = rng.uniform(0.25, 0.5)  # a low edge lets the ink spread
    return np.asarray(np.clip((soft - edge) * 2.5 + 0.5, 0, 1), np.float32)


def _paper(shape: tuple[int, ...], rng: np.random.Generator) -> Ink:
    """Return the grey levels of empty paper with a gradient, stains and a grain."""
    level = rng.uniform(170, 250)
    across = np.linspace(-1, 1, shape[1], dtype=np.float32) * rng.uniform(-30, 30)
    down = np.linspace(-1, 1, shape[0], dtype=np.float32) * rng.uniform(-12, 12)
    stains = rng.uniform(0, 40) * _clouds(shape, 40, rng)
    grain = rng.uniform(0, 12) * _clouds(shape, 3, rng)
    paper = level + across + down[:, np.newaxis] - stains - grain
    return np.asarray(paper, np.float32)


def _clouds(shape: tuple[int, ...], size: int, rng: np.random.Generator) -> Ink:
    """Return a smooth random field in [0, 1] with spots of about `size` pixels."""
    coarse = (max(shape[0] // size, 2), max(shape[1] // size, 2))
    field = Image.fromarray(rng.random(coarse, np.float32))
    smooth = field.resize((shape[1], shape[0]), Image.Resampling.BILINEAR)
    return np.asarray(smooth, np.float32)


def _scale(scan: Ink, rng: np.random.Generator) -> Ink:
    """Scale the line to a random height, as a scanner of some resolution would."""
    height = int(rng.integers(_HEIGHTS[0], _HEIGHTS[1] + 1))
    width = max(round(scan.shape[1] * height / scan.shape[0]), 1)
    image = Image.fromarray(scan.astype(np.float32))
    return np.array(image.resize((width, height), Image.Resampling.BICUBIC))


def _specks(scan: Ink, rng: np.random.Generator) -> None:
    """Add single dark or light pixels of dust, in place."""
    count = int(scan.size * rng.uniform(0, 0.004))
    rows = rng.integers(0, scan.shape[0], count)
    scan[rows, rng.integers(0, scan.shape[1], count)] = rng.choice((0, 255), count)


def _jpeg(image: Gray, quality: int) -> Gray:
    file = io.BytesIO()
    Image.fromarray(image).save(file, "JPEG", quality=quality)
    with Image.open(file) as decoded:
        return np.array(decoded)

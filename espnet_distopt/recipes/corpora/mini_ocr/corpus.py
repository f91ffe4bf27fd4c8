"""A corpus of text lines that needs no download: printed lines and handwritten digits.

The test lines have three parts, which their ids name: `known` (printed, in the fonts of
the training lines), `unseen` (printed, in other fonts) and `digits` (handwritten). No
text is in two sets. Each line has a seed of its own, so that the corpus doesn't depend
on the number of processes.

The digits come with scikit-learn: `load_digits` is the test half (1797 images, 8 x 8)
of the UCI set "Optical Recognition of Handwritten Digits", in that half's order. UCI
says that 13 people wrote it, and 30 others the training half; it does not say who wrote
which digit. But the digits come form by form: the labels repeat the same sequence of
130 digits, of which a few are lost, so that 14 forms can be told apart. All digits of a
form look alike, so each form has one writer. As 13 people filled in 14 forms, one of
them filled in two, and nobody knows which two. If whole forms are divided among the
sets, then no image and no writer is in two sets, except perhaps for this one person.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy import ndimage

from espnet_distopt.errors import InputError
from espnet_distopt.files.whole_directory import whole_directory
from espnet_distopt.recipes.corpora.lines.sets import LineDir, TextLine
from espnet_distopt.recipes.corpora.mini_ocr.rendering import (
    Font,
    Ink,
    degrade,
    known_fonts,
    random_text,
    render_text,
    unseen_fonts,
)
from espnet_distopt.recipes.corpora.parallel import do_shares

FORMS = (0, 130, 256, 386, 516, 646, 776, 915, 1029, 1157, 1287, 1415, 1545, 1667, 1797)
"""Where each form starts, and where the last one ends."""

TRAIN_FORMS = range(0, 10)
DEV_FORMS = range(10, 11)
TEST_FORMS = range(11, 14)

_SIZE = 30  # pixels: about the height of a digit


def digits_of(form: int) -> tuple[range, NDArray[np.int64]]:
    """Return the indices of a form's digits in the data set, and their labels."""
    where = range(FORMS[form], FORMS[form + 1])
    return where, _data()[1][where.start : where.stop]


def render_digits(indices: tuple[int, ...], rng: np.random.Generator) -> Ink:
    """Write digits in a row as one hand does, with similar sizes and slants.

    Args:
        indices: The indices of the digits' images in the data set, from left to right.
        rng: Decides slant, sizes, heights, gaps and margins.

    Returns:
        The line, shape (height, width), from 0 for paper to 1 for ink.
    """
    slant = rng.uniform(-0.25, 0.35)
    gap = rng.uniform(1, 8)
    edge, contrast = rng.uniform(0.5, 0.65), rng.uniform(1.5, 3)
    inks = [_glyph(_data()[0][index], slant, rng) for index in indices]
    glyphs = [_pen(ink, edge, contrast) for ink in inks]
    margins = rng.integers(2, 14, 2)
    lift = 3  # pixels by which a digit may stand higher or lower
    height = max(glyph.shape[0] for glyph in glyphs) + 2 * lift
    gaps = [max(round(gap + rng.uniform(-2, 3)), 0) for _ in glyphs]
    width = sum(g.shape[1] for g in glyphs) + sum(gaps) + int(margins.sum())
    line = np.zeros((height, width + lift), np.float32)
    x = int(margins[0])
    for glyph, space in zip(glyphs, gaps, strict=True):
        rows, columns = glyph.shape
        y = (height - rows) // 2 + int(rng.integers(-lift, lift + 1))
        y = min(max(y, 0), height - rows)
        place = line[y : y + rows, x : x + columns]
        np.maximum(place, glyph, out=place)
        x += columns + space
    return line


def _glyph(image: Ink, slant: float, rng: np.random.Generator) -> Ink:
    """Return a digit at full size, smooth and slanted."""
    zoom = _SIZE / 8 * rng.uniform(0.85, 1.15)
    stretch = rng.uniform(0.85, 1.15)
    # Each side gets 2 of the image's pixels of room.
    shape = (round(8 * zoom), round(12 * zoom * stretch))
    lean = slant + rng.uniform(-0.08, 0.08)
    # The matrix maps (row, column) of the output to the input; the middle of the image
    # stays where it is.
    matrix = np.array([[1 / zoom, 0], [lean / zoom, 1 / (zoom * stretch)]])
    middle = np.array([3.5, 3.5]) - matrix @ ((np.array(shape) - 1) / 2)
    smooth = ndimage.affine_transform(image, matrix, middle, shape, order=3)
    return np.asarray(smooth, np.float32)


def _pen(ink: Ink, edge: float, contrast: float) -> Ink:
    """Return the strokes of a pen, broad if `edge` is low, without empty margins."""
    strokes = np.clip((ink - edge) * contrast + 0.5, 0, 1)
    inked = np.flatnonzero(strokes.max(axis=0) > 0.5)
    return np.asarray(strokes[:, inked[0] : inked[-1] + 1], np.float32)


@lru_cache(maxsize=1)
def _data() -> tuple[Ink, NDArray[np.int64]]:
    """Return all images (1797, 8, 8), from 0 for paper to 1 for ink, and labels."""
    try:
        from sklearn.datasets import load_digits  # type: ignore[import-untyped]
    except ModuleNotFoundError:
        raise InputError(
            "the digits come with scikit-learn: pip install scikit-learn"
        ) from None
    bunch = load_digits()
    images = np.asarray(bunch.images / 16, np.float32)
    return images, np.asarray(bunch.target, np.int64)


KNOWN, UNSEEN, DIGITS = "known", "unseen", "digits"
MARKER = "mini_ocr.txt"
_DIGITS_IN_A_LINE = (4, 10)


@dataclass(frozen=True, kw_only=True)
class LineSizes:
    """How many lines the corpus has; the command has an option for each number."""

    train_printed: int = 4000
    train_digits: int = 8000
    dev_printed: int = 300
    dev_digits: int = 100
    test_printed: int = 400
    test_digits: int = 400


@dataclass(frozen=True)
class LinePlan:
    """A line to make, of the set `train`, `dev` or `test`.

    Printed lines have the file of a font, and handwritten ones the indices of digits in
    the data set. The seed decides everything that is drawn at random for the image.
    """

    set: str
    id: str
    text: str
    writer: str
    font: Path | None
    digits: tuple[int, ...]
    seed: int


LineShare = tuple[Path, Sequence[LinePlan]]
"""The directory of the corpus, and the lines that one process makes."""


def make_corpus(
    out: Path,
    sizes: LineSizes,
    seed: int,
    nj: int = 1,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, LineDir]:
    """Write the images and the data directories train, dev and test, all or nothing.

    Returns:
        The three sets, by name.

    Raises:
        InputError: The sizes are impossible, matplotlib or scikit-learn is missing, or
            `out` holds something else.
    """
    for name, value in {**vars(sizes), "nj": nj}.items():
        if value < 1:
            raise InputError(f"--{name} is {value}, expected at least 1")
    plans = plan_corpus(sizes, seed)
    with whole_directory(out, marker=MARKER) as new:
        for name in ("train", "dev", "test"):
            (new / "images" / name).mkdir(parents=True)
        shares = [(new, plans[job::nj]) for job in range(nj)]
        do_shares(_draw_share, shares, len(plans), progress)
        sets = {name: _line_dir(plans, name, out) for name in ("train", "dev", "test")}
        for name, lines in sets.items():
            lines.write(new / name)
        note = f"made by make_mini_ocr\nseed {seed}\n{sizes}\n"
        (new / MARKER).write_text(note, encoding="utf-8")
    return sets


def plan_corpus(sizes: LineSizes, seed: int) -> list[LinePlan]:
    """Decide what is written on each line, and by whom.

    Raises:
        InputError: matplotlib or scikit-learn is missing.
    """
    known, unseen = known_fonts(), unseen_fonts()
    rng = random.Random(f"lines {seed}")
    planner = _Planner(rng)
    # Test lines come first, so that the size of the training set does not change them.
    planner.printed("test", KNOWN, known, sizes.test_printed)
    planner.printed("test", UNSEEN, unseen, sizes.test_printed)
    planner.handwritten("test", TEST_FORMS, sizes.test_digits)
    planner.printed("dev", KNOWN, known, sizes.dev_printed)
    planner.handwritten("dev", DEV_FORMS, sizes.dev_digits)
    planner.printed("train", KNOWN, known, sizes.train_printed)
    planner.handwritten("train", TRAIN_FORMS, sizes.train_digits)
    return planner.plans


class _Planner:
    """Plans lines, and uses no text twice."""

    def __init__(self, rng: random.Random) -> None:
        self.plans: list[LinePlan] = []
        self._rng = rng
        self._texts: set[str] = set()

    def printed(self, name: str, part: str, fonts: Sequence[Font], count: int) -> None:
        """Plan `count` lines, in each of the fonts in turn."""
        for number in range(count):
            font = fonts[number % len(fonts)]
            text = random_text(self._rng)
            while text in self._texts:
                text = random_text(self._rng)
            self._add(name, part, text, font.name, font.path, ())

    def handwritten(self, name: str, forms: range, count: int) -> None:
        """Plan `count` lines, of each of the writers in turn."""
        for number in range(count):
            form = forms[number % len(forms)]
            text, digits = self._string(form)
            while text in self._texts:
                text, digits = self._string(form)
            self._add(name, DIGITS, text, f"writer{form:02}", None, digits)

    def _string(self, form: int) -> tuple[str, tuple[int, ...]]:
        where, labels = digits_of(form)
        chosen = self._rng.sample(
            range(len(where)), self._rng.randint(*_DIGITS_IN_A_LINE)
        )
        text = "".join(str(labels[index]) for index in chosen)
        return text, tuple(where[index] for index in chosen)

    def _add(
        self,
        name: str,
        part: str,
        text: str,
        writer: str,
        font: Path | None,
        digits: tuple[int, ...],
    ) -> None:
        self._texts.add(text)
        key = f"{writer}-{part}-{len(self.plans):06}"
        seed = self._rng.getrandbits(63)
        self.plans.append(LinePlan(name, key, text, writer, font, digits, seed))


def _draw_share(share: LineShare, progress: Callable[[int], None]) -> None:
    """Write the images of a process's lines."""
    directory, plans = share
    for plan in plans:
        rng = np.random.default_rng(plan.seed)
        if plan.font is None:
            ink = render_digits(plan.digits, rng)
        else:
            ink = render_text(plan.text, plan.font, rng)
        Image.fromarray(degrade(ink, rng)).save(directory / _place(plan))
        progress(1)


def _place(plan: LinePlan) -> Path:
    return Path("images", plan.set, f"{plan.id}.png")


def _line_dir(plans: Sequence[LinePlan], name: str, out: Path) -> LineDir:
    return LineDir.of(
        [
            TextLine(plan.id, str(out / _place(plan)), plan.text, plan.writer)
            for plan in plans
            if plan.set == name
        ]
    )

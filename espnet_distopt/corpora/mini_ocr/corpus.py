"""A corpus of text lines that needs no download: printed lines and handwritten digits.

The test lines have three parts, which their ids name: `known` (printed, in the fonts of
the training lines), `unseen` (printed, in other fonts) and `digits` (handwritten, by
people who wrote no training line, as far as the module `digits` knows). No text is in
two sets. Each line has a seed of its own, so that the corpus doesn't depend on the
number of processes.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from espnet_distopt.corpora.lines.sets import LineDir, TextLine
from espnet_distopt.corpora.mini_ocr.degradation import degrade
from espnet_distopt.corpora.mini_ocr.digits import (
    DEV_FORMS,
    TEST_FORMS,
    TRAIN_FORMS,
    digits_of,
    render_digits,
)
from espnet_distopt.corpora.mini_ocr.fonts import (
    Font,
    check_added,
    known_fonts,
    unseen_fonts,
)
from espnet_distopt.corpora.mini_ocr.rendering import render_text
from espnet_distopt.corpora.mini_ocr.texts import random_text
from espnet_distopt.corpora.parallel import do_shares
from espnet_distopt.errors import InputError
from espnet_distopt.files.whole_directory import whole_directory

KNOWN, UNSEEN, DIGITS = "known", "unseen", "digits"
MARKER = "mini_ocr.txt"
_DIGITS_IN_A_LINE = (4, 10)


@dataclass(frozen=True, kw_only=True)
class LineSizes:
    """How many lines the corpus has.

    Attributes:
        train_printed: Printed training lines.
        train_digits: Handwritten training lines.
        dev_printed: Printed development lines, in known fonts.
        dev_digits: Handwritten development lines.
        test_printed: Printed test lines in known fonts, and as many in unseen ones.
        test_digits: Handwritten test lines.
    """

    train_printed: int = 4000
    train_digits: int = 8000
    dev_printed: int = 300
    dev_digits: int = 100
    test_printed: int = 400
    test_digits: int = 400


@dataclass(frozen=True)
class LinePlan:
    """A line to make.

    Attributes:
        set: `train`, `dev` or `test`.
        id: The line's id, made of writer or font, part and number.
        text: The text of the line.
        writer: The writer or font.
        font: The file of the font; None for handwritten lines.
        digits: The indices of the digits' images; empty for printed lines.
        seed: Decides everything that is drawn at random for the image.
    """

    set: str
    id: str
    text: str
    writer: str
    font: Path | None
    digits: tuple[int, ...]
    seed: int


@dataclass(frozen=True)
class LineShare:
    """The lines that one process makes, and the directory of the corpus."""

    plans: Sequence[LinePlan]
    directory: Path


def make_corpus(
    out: Path,
    sizes: LineSizes,
    seed: int,
    nj: int = 1,
    fonts: Sequence[Font] = (),
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, LineDir]:
    """Write the images and the data directories train, dev and test, all or nothing.

    Args:
        out: The directory of the corpus, which is replaced if an earlier run made it.
        sizes: The numbers of lines.
        seed: Decides everything. Equal sizes, seeds and fonts give equal files with the
            same version of Pillow.
        nj: The number of processes.
        fonts: Known fonts in addition to matplotlib's.
        progress: Called with the number of lines done, and of all.

    Returns:
        The three sets, by name.

    Raises:
        InputError: The sizes are impossible, two fonts have the same name, an added
            font is an unseen one, matplotlib or scikit-learn is missing, or `out` holds
            something else.
    """
    for name, value in {**vars(sizes), "nj": nj}.items():
        if value < 1:
            raise InputError(f"--{name} is {value}, expected at least 1")
    plans = plan_corpus(sizes, seed, fonts)
    with whole_directory(out, marker=MARKER) as new:
        for name in ("train", "dev", "test"):
            (new / "images" / name).mkdir(parents=True)
        shares = [LineShare(plans[job::nj], new) for job in range(nj)]
        do_shares(draw_share, shares, len(plans), progress)
        sets = {name: _line_dir(plans, name, out) for name in ("train", "dev", "test")}
        for name, lines in sets.items():
            lines.write(new / name)
        note = f"made by make_mini_ocr\nseed {seed}\n{sizes}\n"
        note += "".join(f"font {font.path}\n" for font in fonts)
        (new / MARKER).write_text(note, encoding="utf-8")
    return sets


def plan_corpus(
    sizes: LineSizes, seed: int, fonts: Sequence[Font] = ()
) -> list[LinePlan]:
    """Decide what is written on each line, and by whom.

    Raises:
        InputError: Two fonts have the same name, an added font is an unseen one, or
            matplotlib or scikit-learn is missing.
    """
    known, unseen = [*known_fonts(), *fonts], unseen_fonts()
    names = [font.name for font in (*known, *unseen)]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"two fonts are called {name}: leave one out")
    check_added(fonts)
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


def draw_share(share: LineShare, progress: Callable[[int], None]) -> None:
    """Write the images of a process's lines."""
    for plan in share.plans:
        image = Image.fromarray(draw_line(plan))
        image.save(share.directory / _place(plan))
        progress(1)


def draw_line(plan: LinePlan) -> np.ndarray[tuple[int, int], np.dtype[np.uint8]]:
    """Draw a line, and return its grey levels, shape (height, width)."""
    rng = np.random.default_rng(plan.seed)
    if plan.font is None:
        return degrade(render_digits(plan.digits, rng), rng)
    return degrade(render_text(plan.text, plan.font, rng), rng)


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

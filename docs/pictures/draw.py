"""Draw the pictures of the documentation: `python docs/pictures/draw.py [FOLDER]`.

They are schemes. What happens when is computed from a few durations, by the rules of
the methods; nothing is measured. Colours and the grey of the text are readable on white
and on black.
"""

import math
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from xml.sax.saxutils import escape

TEXT, STEP, SLOW, WAIT, TALK = "#6b7280", "#3b82f6", "#1e40af", "#d1d5db", "#f97316"


@dataclass
class Svg:
    """A picture of a size in pixels, to which shapes are added."""

    width: int
    height: int
    title: str
    shapes: list[str] = field(default_factory=list)

    def box(self, x: float, y: float, w: float, h: float, fill: str) -> None:
        """Add a filled rectangle."""
        self.shapes.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{w:.1f}" height="{h:.1f}" rx="2" '
            f'fill="{fill}"/>'
        )

    def frame(self, x: float, y: float, w: float, h: float) -> None:
        """Add the outline of a rectangle."""
        self.shapes.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{w:.1f}" height="{h:.1f}" rx="8" '
            f'fill="none" stroke="{TEXT}" stroke-dasharray="4 3"/>'
        )

    def circle(self, x: float, y: float, r: float, fill: str) -> None:
        """Add a filled circle."""
        self.shapes.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{r:g}" fill="{fill}"/>'
        )

    def line(
        self, points: Iterable[tuple[float, float]], colour: str, w: float
    ) -> None:
        """Add a line through points."""
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self.shapes.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" '
            f'stroke-width="{w:g}" stroke-linecap="round"/>'
        )

    def text(
        self, x: float, y: float, words: str, anchor: str = "start", size: int = 13
    ) -> None:
        """Add a line of text; `anchor` is start, middle or end."""
        self.shapes.append(
            f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{TEXT}" '
            f'font-size="{size}">{escape(words)}</text>'
        )

    def xml(self) -> str:
        """Return the file's content."""
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" '
            f'viewBox="0 0 {self.width} {self.height}" role="img" '
            f'font-family="sans-serif"><title>{escape(self.title)}</title>'
        )
        return "\n".join([head, *self.shapes, "</svg>"]) + "\n"


# Four learners, the last of which is slow. Times are in steps of a fast one.

SECONDS = [1.0, 1.1, 0.9, 2.5]
END = 21.5


@dataclass
class Row:
    """What one learner does: its steps and waits as (from, to)."""

    steps: list[tuple[float, float]] = field(default_factory=list)
    waits: list[tuple[float, float]] = field(default_factory=list)


def together(period: int, talk: float) -> tuple[list[Row], list[tuple[float, float]]]:
    """Let all learners meet after each `period` steps, for a time of `talk`."""
    rows = [Row() for _ in SECONDS]
    meetings, now = [], 0.0
    while True:
        ends = [now + period * each for each in SECONDS]
        if max(ends) + talk > END:
            return rows, meetings
        for row, end, each in zip(rows, ends, SECONDS, strict=True):
            row.steps += [(now + n * each, now + (n + 1) * each) for n in range(period)]
            row.waits.append((end, max(ends)))
        meetings.append((max(ends), max(ends) + talk))
        now = max(ends) + talk


def gossip() -> tuple[list[Row], list[tuple[int, int, float, float]]]:
    """Let learners step without a wait, and pairs exchange beside that."""
    rows = [Row() for _ in SECONDS]
    for row, each in zip(rows, SECONDS, strict=True):
        count = int(END / each)
        row.steps = [(n * each, (n + 1) * each) for n in range(count)]
    ring = [(0, 1), (2, 3), (2, 1), (0, 3)]
    exchanges, free = [], [0.6, 0.6, 1.3, 1.3]
    for turn in range(100):
        active, passive = ring[turn % len(ring)]
        begin = max(free[active], free[passive])
        if begin + 0.8 > END:
            return rows, exchanges
        exchanges.append((active, passive, begin, begin + 0.8))
        free[active], free[passive] = begin + 1.3, begin + 0.9
    raise AssertionError("the time never ends")


def draw_time() -> Svg:
    """Draw who works and who waits: all-reduce, blocks, gossip."""
    unit, left, row_height = 30.5, 20.0, 17.0
    picture = Svg(700, 390, "Four learners, one of them slow: who works, who waits")

    def rows_at(top: float, name: str, rows: list[Row]) -> None:
        count = sum(len(row.steps) for row in rows)
        picture.text(left, top - 8, f"{name}: {count} steps")
        for n, row in enumerate(rows):
            y = top + n * row_height
            for begin, end in row.steps:
                colour = SLOW if n == len(rows) - 1 else STEP
                x, w = left + begin * unit, (end - begin) * unit
                picture.box(x + 1, y, w - 2, row_height - 4, colour)
            for begin, end in row.waits:
                x, w = left + begin * unit, (end - begin) * unit
                picture.box(x, y + 5, max(w - 1, 0), row_height - 14, WAIT)

    places = {
        30.0: ("all-reduce: all meet after each step", together(1, 0.5)),
        150.0: (
            "blocks (BMUF, local SGD): all meet after four steps",
            together(4, 0.5),
        ),
    }
    for top, (name, (rows, meetings)) in places.items():
        rows_at(top, name, rows)
        for begin, end in meetings:
            x, w = left + begin * unit, (end - begin) * unit
            picture.box(x + 2, top, w - 4, 4 * row_height - 4, TALK)
    top = 270.0
    rows, exchanges = gossip()
    rows_at(top, "gossip (AD-PSGD): pairs exchange while they train", rows)
    for active, passive, begin, end in exchanges:
        x = left + (begin + end) / 2 * unit
        ends = [(x, top + n * row_height + 6) for n in (active, passive)]
        picture.line(ends, TALK, 3)
        for x, y in ends:
            picture.circle(x, y, 4.5, TALK)
    legend = [(STEP, "step"), (SLOW, "step of a slow learner"), (WAIT, "waits")]
    x = left
    for colour, name in [*legend, (TALK, "communicates")]:
        picture.box(x, 364, 14, 12, colour)
        picture.text(x + 20, 375, name)
        x += 50 + 7.5 * len(name)
    return picture


def ring_points(
    count: int, x: float, y: float, radius: float
) -> list[tuple[float, float]]:
    """Return points on a circle, the first at its top."""
    angles = [2 * math.pi * n / count for n in range(count)]
    return [(x + radius * math.sin(a), y - radius * math.cos(a)) for a in angles]


def draw_gossip() -> Svg:
    """Draw three moments of a ring, and how a peak spreads over it."""
    picture = Svg(700, 250, "Pairs of learners average their models on a ring")
    values = [8.0, 0, 0, 0, 0, 0]
    pairs = [[], [(0, 1), (2, 3), (4, 5)], [(2, 1), (4, 3), (0, 5)], [(0, 1), (2, 3)]]
    for moment, meeting in enumerate(pairs):
        for one, other in meeting:
            values[one] = values[other] = (values[one] + values[other]) / 2
        points = ring_points(6, 95 + 170 * moment, 120, 60)
        picture.line([*points, points[0]], WAIT, 2)
        for one, other in meeting:
            picture.line([points[one], points[other]], TALK, 5)
        for n, ((x, y), value) in enumerate(zip(points, values, strict=True)):
            picture.circle(x, y, 17, SLOW if n % 2 else STEP)
            picture.shapes.append(
                f'<text x="{x:.1f}" y="{y + 4:.1f}" text-anchor="middle" '
                f'fill="#ffffff" font-size="12">{value:g}</text>'
            )
        words = f"exchange {moment}" if moment else "before"
        picture.text(95 + 170 * moment, 24, words, "middle")
    words = (
        "Each exchange replaces two models by their mean; the mean of all stays 8/6."
    )
    picture.text(350, 222, words, "middle")
    words = "Active learners (light) begin an exchange, passive ones (dark) answer it."
    picture.text(350, 242, words, "middle")
    return picture


def draw_blocks() -> Svg:
    """Draw two blocks of three learners: local paths, their mean, block momentum."""
    picture = Svg(700, 260, "Blocks: learners take local steps, then go on together")
    start = (40.0, 120.0)
    paths = [[(36, -38), (30, -10), (42, -22)], [(40, 2), (44, -14), (30, 8)]]
    paths.append([(26, 40), (42, 14), (34, 22)])
    moved = (0.0, 0.0)
    for block in range(3):
        ends = []
        for path in paths:
            points = [start]
            for dx, dy in path:
                points.append((points[-1][0] + dx, points[-1][1] + dy))
            picture.line(points, STEP, 2)
            for point in points[1:]:
                picture.circle(*point, 3.5, STEP)
            ends.append(points[-1])
        mean = (sum(x for x, _ in ends) / 3, sum(y for _, y in ends) / 3)
        for end in ends:
            picture.line([end, mean], WAIT, 1.5)
        # Block momentum 0.5: half of how far the block before has moved comes on top.
        moved = (
            0.5 * moved[0] + mean[0] - start[0],
            0.5 * moved[1] + mean[1] - start[1],
        )
        after = (start[0] + moved[0], start[1] + moved[1])
        picture.line([mean, after], TALK, 3)
        picture.circle(*after, 8, TALK)
        picture.circle(*mean, 5, TEXT)
        picture.text(mean[0], 24, f"block {block + 1}", "middle")
        start = after
    for x, colour, words in [
        (40, STEP, "local steps of three learners"),
        (290, TEXT, "their mean"),
        (420, TALK, "with momentum: the next start"),
    ]:
        picture.circle(x, 240, 6, colour)
        picture.text(x + 14, 245, words)
    return picture


def draw_super_learners() -> Svg:
    """Draw H-ADPSGD: all-reduce inside nodes, gossip between them."""
    picture = Svg(700, 250, "Super learners: all-reduce inside nodes, gossip between")
    for node in range(4):
        left = 20 + 172 * node
        picture.frame(left, 40, 140, 120)
        picture.text(left + 70, 30, f"node {node}", "middle")
        points = [(left + 35, 75), (left + 105, 75)]
        points += [(left + 105, 125), (left + 35, 125)]
        picture.line([*points, points[0]], STEP, 3)
        for x, y in points:
            picture.circle(x, y, 14, STEP)
        if node:
            picture.line([(left - 32, 100), (left, 100)], TALK, 4)
    picture.line([(90, 160), (90, 190), (606, 190), (606, 160)], TALK, 4)
    picture.box(30, 221, 14, 5, STEP)
    picture.text(52, 228, "all-reduce of gradients, in each step")
    picture.box(350, 221, 14, 5, TALK)
    picture.text(372, 228, "AD-PSGD of models, beside the training")
    return picture


def draw_work_queue() -> Svg:
    """Draw the batches of an epoch: each begins with a share, and helps at its end."""
    picture = Svg(
        700, 260, "The work queue: who is through takes from the longest rest"
    )
    seconds, share = [1.0, 1.1, 0.9, 4.0], 12
    left = {n: list(range(share)) for n in range(4)}
    clock = [0.0] * 4
    taken: dict[tuple[int, int], int] = {}
    while any(left.values()):
        learner = min(range(4), key=lambda n: clock[n])
        whose = learner if left[learner] else max(left, key=lambda n: len(left[n]))
        batch = left[whose].pop(0 if whose == learner else -1)
        taken[whose, batch] = learner
        clock[learner] += seconds[learner]
    colours = [STEP, "#0ea5e9", "#8b5cf6", SLOW]
    for n in range(4):
        picture.text(20, 62 + 40 * n, f"share of learner {n}")
        for batch in range(share):
            x = 150 + 44 * batch
            picture.box(x, 40 + 40 * n, 40, 32, colours[taken[n, batch]])
            picture.shapes.append(
                f'<text x="{x + 20}" y="{61 + 40 * n}" text-anchor="middle" '
                f'fill="#ffffff" font-size="13">{taken[n, batch]}</text>'
            )
    picture.text(20, 24, "The number and the colour of a batch: who has trained on it.")
    words = "Learner 3 is four times slower. The others take from the end of its share;"
    picture.text(20, 222, words)
    picture.text(20, 242, f"all end within {max(clock) - min(clock):.1f} steps.")
    return picture


PICTURES = {
    "time": draw_time,
    "gossip": draw_gossip,
    "blocks": draw_blocks,
    "super_learners": draw_super_learners,
    "work_queue": draw_work_queue,
}


def main() -> None:
    """Write all pictures into the folder given, or beside this file."""
    folder = Path(sys.argv[1]) if sys.argv[1:] else Path(__file__).parent
    for name, draw in PICTURES.items():
        (folder / f"{name}.svg").write_text(draw().xml(), encoding="utf-8")


if __name__ == "__main__":
    main()

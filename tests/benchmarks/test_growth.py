"""These tests cover the growth benchmark."""

from pathlib import Path

import growth
import pytest


def test_bytes_and_seconds_of_an_all_reduce() -> None:
    grown = growth.measure("allreduce", {}, 4, steps=4)
    sent = 2 * growth.MODEL_BYTES * 3 / 4
    # Learners send the gradients of each step, and their models at the end.
    assert grown.bytes * 4 == pytest.approx(sent * 5, rel=0.01)
    # The slowest of four learners sets the pace.
    assert grown.seconds > 0.151
    assert grown.speedup == pytest.approx(4 * 0.151 / grown.seconds, rel=0.01)


def test_more_learners_send_as_much_in_gossip() -> None:
    few, many = (growth.measure("adpsgd", {}, n, steps=4) for n in (4, 8))
    assert many.bytes == pytest.approx(few.bytes, rel=0.3)


def test_a_picture_shows_its_rows(tmp_path: Path) -> None:
    sizes = (4, 8)
    rows = {
        name: {n: growth.Growth(seconds=1.0, bytes=0.0, speedup=n / 2) for n in sizes}
        for name in ("one method", "another one")
    }
    growth.draw(tmp_path / "drawn.svg", rows)
    assert "<svg" in (tmp_path / "drawn.svg").read_text()

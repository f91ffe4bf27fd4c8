"""These tests cover the growth benchmark."""

import growth
import pytest


def test_bytes_and_seconds_of_an_all_reduce() -> None:
    grown = growth.measure("allreduce", 4, steps=4)
    sent = 2 * growth.MODEL_BYTES * 3 / 4
    # Learners send the gradients of each step, and their models at the end.
    assert grown.bytes * 4 == pytest.approx(sent * 5, rel=0.01)
    # All are in one node, and the slowest of four learners sets the pace.
    assert grown.seconds > growth.STEP_SECONDS + sent / growth.INSIDE.bandwidth


def test_more_learners_send_as_much_in_gossip() -> None:
    few, many = (growth.measure("adpsgd", n, steps=4) for n in (4, 8))
    assert many.bytes == pytest.approx(few.bytes, rel=0.3)

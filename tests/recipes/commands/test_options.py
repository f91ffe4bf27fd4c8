"""A command prints its progress every so many units of work."""

import pytest

from espnet_distopt.recipes.commands.options import ProgressLine


def test_a_line_of_every_so_many(capsys: pytest.CaptureFixture[str]) -> None:
    progress = ProgressLine("lines: {done} of {total}", every=10)
    for done in (4, 9, 10, 11, 34, 39, 40, 41):  # also past two tens at once
        progress(done, 41)
    assert capsys.readouterr().out.splitlines() == [
        "lines: 10 of 41",
        "lines: 34 of 41",
        "lines: 40 of 41",
    ]

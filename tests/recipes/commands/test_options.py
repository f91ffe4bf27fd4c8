"""A command prints its progress every so many units, or every so many seconds."""

import pytest

from espnet_distopt.recipes.commands.options import ProgressLine, TimedProgressLine


def test_a_line_of_every_so_many(capsys: pytest.CaptureFixture[str]) -> None:
    progress = ProgressLine("lines: {done} of {total}", every=10)
    for done in (4, 9, 10, 11, 34, 39, 40, 41):  # also past two tens at once
        progress(done, 41)
    assert capsys.readouterr().out.splitlines() == [
        "lines: 10 of 41",
        "lines: 34 of 41",
        "lines: 40 of 41",
    ]


def test_a_line_after_so_many_seconds(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    times = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: times[-1])
    progress = TimedProgressLine("decoded {done} of {total} lines", seconds=10)
    for time, done in ((109.9, 1), (110.0, 2), (119.9, 3), (125.0, 4), (134.0, 5)):
        times.append(time)
        progress(done, 9)
    assert capsys.readouterr().out.splitlines() == [
        "decoded 2 of 9 lines",
        "decoded 4 of 9 lines",
    ]

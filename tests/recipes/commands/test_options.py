"""What several commands print of their progress."""

import time

import pytest

from espnet_distopt.recipes.commands.options import ProgressLine


def test_what_takes_long_is_told_soon_and_then_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    progress = ProgressLine("lines: {done} of {total}")
    for seconds, done in enumerate(range(0, 20)):
        now = 100.0 + seconds
        progress(done, 41)
    assert capsys.readouterr().out.splitlines() == ["lines: 2 of 41", "lines: 17 of 41"]

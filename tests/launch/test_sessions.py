"""Sessions one after another, in which a learner was replaced."""

import json
from pathlib import Path

import pytest

from tests.launch.launched import HERE, Launched

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]


def test_a_replacement_begins_the_next_session_as_the_others_do(tmp_path: Path) -> None:
    """It is joined once; the others wait for it at the beginning of the next one."""
    options = "--nproc 3 --restarts 1 --on-death continue"
    program = str(HERE / "sessions.py")
    status, _, err = Launched(tmp_path, *options.split(), program=program).ended(90)
    assert status == 0, err
    after = [
        json.loads((tmp_path / name).read_text()) for name in ("0.0", "1.1", "2.0")
    ]
    assert len(after[0]) == 3
    assert after[0] == after[1] == after[2]


def test_a_death_between_two_sessions_ends_the_run(tmp_path: Path) -> None:
    """Nobody can join the second one, and the others would wait for half an hour."""
    options = "--nproc 3 --restarts 9 --on-death continue"
    launched = Launched(
        tmp_path, *options.split(), what="between", program=str(HERE / "sessions.py")
    )
    status, _, err = launched.ended(90)
    assert status == 1, err
    failed = "launch: the run failed: learner 1 has died before this session: "
    assert any(line.startswith(failed) for line in err), err

"""The learners' files: what is written is read, what a kill leaves is tolerated."""

import json
import math
from pathlib import Path

import pytest

from espnet_distopt.errors import InputError
from espnet_distopt.monitoring.lines import append, read
from tests.monitoring.written import line, step


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "distopt" / "learner0.jsonl"
    written = [
        line("begin", 0, slurm_job="77", slurm_restarts=1),
        step(30, 15, gpu=0.93, gpu_memory=2.0**30),
        line("epoch", 60, valid_loss=1.5, consensus_distance=1e-9),
        line("stop", 90, signal="SIGUSR1", saved=True),
        line("end", 91, error="ValueError: no"),
    ]
    for each in written:
        append(each, path)
    assert read(path) == written


def test_rates_are_in_the_file_for_other_readers(tmp_path: Path) -> None:
    append(step(30, 15), tmp_path / "file")
    content = json.loads((tmp_path / "file").read_text())
    assert (content["samples_per_s"], content["steps_per_s"]) == (8.0, 2.0)


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_not_finite_is_strict_json(loss: float, tmp_path: Path) -> None:
    append(step(30, 15, loss=loss), tmp_path / "file")
    assert '"loss": null' in (tmp_path / "file").read_text()
    [found] = read(tmp_path / "file")
    assert found.loss is not None
    assert math.isnan(found.loss)


@pytest.mark.parametrize("cut", [1, 30, 200])
def test_a_line_that_a_kill_has_cut_off_is_left_out(cut: int, tmp_path: Path) -> None:
    path = tmp_path / "file"
    for number in (30, 60):
        append(step(number, number), path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    first, *more = read(path)
    assert first.step == 30
    assert len(more) == (cut == 1)  # only the end of the line is missing
    append(line("resume", 90), path)
    assert [each.event for each in read(path)][-1] == "resume"
    assert path.read_text().count("\n") == 3


def test_zeros_that_a_power_cut_leaves_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "file"
    append(step(30, 15), path)
    with path.open("ab") as file:
        file.write(b"\0" * 100)
    append(line("resume", 90), path)
    assert [each.event for each in read(path)] == ["step", "resume"]


def test_of_old_steps_only_other_events_are_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    lines = [line("begin", 0), step(30, 15), line("epoch", 20), step(60, 30)]
    for each in lines:
        append(each, path)
    assert read(path, recent=2) == [lines[0], lines[2], lines[3]]


GOOD = {
    "time": 1.0,
    "event": "begin",
    "rank": 0,
    "learners": 1,
    "algorithm": "bmuf",
    "host": "a",
    "pid": 1,
    "epoch": 1,
    "max_epoch": 2,
    "step": 0,
}


def test_a_line_may_have_more_and_less_than_this_version_knows(tmp_path: Path) -> None:
    (tmp_path / "file").write_text(json.dumps({**GOOD, "colour": "red"}))
    [found] = read(tmp_path / "file")
    assert (found.algorithm, found.loss, found.steps) == ("bmuf", None, None)


BAD = {
    "not JSON": ("epoch 1 loss 2", "a JSON object"),
    "not JSON, but closed": ("{what}", "a JSON object"),
    "a number": ("7", "a JSON object"),
    "a list": ("[1, 2]", "a JSON object"),
    "not UTF-8": (b"\xff\xfe\x00", "a JSON object"),
    "another's object": ('{"loss": 3.5}', "time is None"),
    "no event": (json.dumps({**GOOD, "event": None}), "event is None"),
    "unknown event": (json.dumps({**GOOD, "event": "lunch"}), "event is 'lunch'"),
    "event of a wrong type": (json.dumps({**GOOD, "event": []}), "event is []"),
    "time in words": (json.dumps({**GOOD, "time": "noon"}), "time is 'noon'"),
    "fraction of a step": (json.dumps({**GOOD, "step": 1.5}), "step is 1.5"),
    "truth as a number": (json.dumps({**GOOD, "rank": True}), "rank is True"),
    "loss in words": (json.dumps({**GOOD, "loss": "low"}), "loss is 'low'"),
}


@pytest.mark.parametrize(("text", "message"), BAD.values(), ids=BAD)
def test_bad_input_is_named(text: str | bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "learner0.jsonl"
    append(line("begin", 0), path)
    with path.open("ab") as file:
        file.write((text if isinstance(text, bytes) else text.encode()) + b"\n")
    with pytest.raises(InputError) as error:
        read(path)
    assert str(error.value).startswith(f"{path}:2: not a line of a learner")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no-such-file: cannot be read"):
        read(tmp_path / "no-such-file")

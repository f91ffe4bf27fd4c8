"""Waiting for jobs: what is shown, and what it ends with. Time is virtual."""

import io
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from espnet_distopt.cluster.job import Record, parse
from espnet_distopt.cluster.watch import JobWatch

LINE = (
    "JobId=12 JobName=train UserId=me(1) JobState={state} Reason={reason} "
    "Dependency=(null) Requeue=1 Restarts={restarts} ExitCode={code} TimeLimit=1 "
    "ReqNodeList=(null) ExcNodeList=(null) NodeList={nodes} BatchHost=n1"
)
RUNNING = Record("12", "", "RUNNING", "None", "n[1-2]", 0, 0)
PENDING = replace(RUNNING, state="PENDING", reason="Resources", nodes="")
COMPLETED = replace(RUNNING, state="COMPLETED")
FAILED = replace(RUNNING, state="FAILED", reason="NonZeroExitCode", status=3)


class Story:
    """What Slurm answers at one asking after another, and the time that passes."""

    def __init__(self, answers: Iterable[list[Record] | None]) -> None:
        self.answers = iter(answers)
        self.now = 0.0

    def ask(self, job: str) -> list[Record] | None:
        return next(self.answers)

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def told(
    log: Path,
    answers: Iterable[list[Record] | None],
    array: int = 0,
    terminal: bool = False,
) -> tuple[int, str, str]:
    """Return status, stdout and stderr of a wait."""
    story = Story(answers)
    watch = JobWatch(
        "12", "train", log, array, story.ask, story.sleep, lambda: story.now
    )
    out, errors = io.StringIO(), io.StringIO()
    out.isatty = lambda: terminal  # type: ignore[method-assign]
    return watch.until_end(out, errors), out.getvalue(), errors.getvalue()


@pytest.mark.parametrize(
    ("state", "reason", "code", "status"),
    [
        ("PENDING", "Resources", "0:0", 0),
        ("PENDING", "Nodes required for job are DOWN, DRAINED", "0:0", 0),
        ("FAILED", "NonZeroExitCode", "75:0", 75),
        ("TIMEOUT", "TimeLimit", "0:9", 137),
        ("CANCELLED", "None", "0:15", 143),
    ],
)
def test_parse(state: str, reason: str, code: str, status: int) -> None:
    line = LINE.format(
        state=state, reason=reason, restarts=2, code=code, nodes="(null)"
    )
    assert parse(line) == Record("12", "", state, reason, "", 2, status)


def test_parse_a_task_of_an_array() -> None:
    line = "JobId=14 ArrayJobId=12 ArrayTaskId=3 JobName=x JobState=RUNNING Reason=None"
    assert parse(line).id == "12"
    assert parse(line).task == "3"


@pytest.mark.parametrize(
    ("task", "tasks"),
    [
        ("", []),
        ("7", ["7"]),
        ("3-5%2", ["3", "4", "5"]),
        ("1,4-6,9", ["1", "4", "5", "6", "9"]),
        ("2-6:2", ["2", "4", "6"]),
        ("1,3,...", ["1", "3"]),  # Slurm shortens a long list.
    ],
)
def test_a_record_of_several_tasks(task: str, tasks: list[str]) -> None:
    assert replace(PENDING, task=task).tasks == tasks


def test_a_job_that_is_requeued(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("0: epoch 7, loss 1.5\n")
    again = replace(PENDING, reason="BeginTime", restarts=1)
    rest = replace(RUNNING, restarts=1)
    end = [replace(COMPLETED, restarts=1)]
    status, out, errors = told(log, [[PENDING], [RUNNING], None, [again], [rest], end])
    assert status == 0
    assert errors == ""
    assert [line.split(" ", 1)[1] for line in out.splitlines()] == [
        "train (job 12): PENDING (Resources): epoch 7, loss 1.5",
        "train (job 12): RUNNING on n[1-2]: epoch 7, loss 1.5",
        "train (job 12): PENDING (BeginTime), requeued: restart 1: epoch 7, loss 1.5",
        "train (job 12): RUNNING on n[1-2], restart 1: epoch 7, loss 1.5",
        "train (job 12): COMPLETED on n[1-2], restart 1: epoch 7, loss 1.5",
    ]


def test_the_log_is_shown_now_and_then(tmp_path: Path) -> None:
    log = tmp_path / "train.log"

    def answers() -> Iterable[list[Record]]:
        for step in range(60):
            log.write_text(f"step {step}\n")
            yield [RUNNING]
        yield [COMPLETED]

    status, out, _ = told(log, answers())
    assert status == 0
    assert 5 <= len(out.splitlines()) <= 9  # of about 180 seconds
    _, out, _ = told(log, [*[[RUNNING]] * 60, [COMPLETED]])
    assert len(out.splitlines()) == 2  # the log has nothing new


def test_one_line_on_a_terminal(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("x" * 1000)
    _, out, _ = told(log, [[PENDING], [RUNNING], [COMPLETED]], terminal=True)
    assert out.count("\n") == 1
    assert out.count("\r") == 3
    assert all(len(part) < 90 for part in out.split("\r"))


def test_a_failure_is_told_with_its_rank(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    death = "launch: learner 1 on n2 was killed by SIGKILL: the others are ended"
    log.write_text(f"1: bad\n{death}\n")
    status, _, errors = told(log, [[RUNNING], [FAILED]])
    assert status == 3
    assert errors.splitlines() == [
        "last lines of rank 1:",
        "    bad",
        "error: train (job 12): failed, exit status 3; "
        "rank 1 on n2 failed first: killed by SIGKILL",
        f"full log: {log}",
    ]


def test_a_job_that_was_stopped_for_good(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    status, _, errors = told(log, [[RUNNING], [replace(FAILED, status=75)]])
    assert status == 75
    assert errors == f"train (job 12) was stopped, after its last requeue: {log}\n"


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (replace(FAILED, state="TIMEOUT", reason="TimeLimit"), "timeout (TimeLimit)"),
        (
            replace(FAILED, state="CANCELLED", reason="DependencyNeverSatisfied"),
            "cancelled (DependencyNeverSatisfied)",
        ),
        (replace(FAILED, state="NODE_FAIL", reason="NodeDown"), "node_fail (NodeDown)"),
    ],
)
def test_other_ends(tmp_path: Path, record: Record, message: str) -> None:
    status, _, errors = told(tmp_path / "train.log", [[RUNNING], [record]])
    assert status == 3
    assert message in errors


@pytest.mark.parametrize(
    ("written", "expected", "message"),
    [
        ("slurm: job 12 ended with status 0\n", 0, ""),
        ("slurm: job 12 ended with status 5\n", 5, "failed, exit status 5"),
        ("epoch 3\n", 1, "lost (Slurm has forgotten it)"),
    ],
)
def test_a_job_that_slurm_has_forgotten(
    tmp_path: Path, written: str, expected: int, message: str
) -> None:
    log = tmp_path / "train.log"
    log.write_text(written)
    status, _, errors = told(log, [[RUNNING], []])
    assert status == expected
    assert message in errors


def test_an_array(tmp_path: Path) -> None:
    log = tmp_path / "decode.JOB.log"
    (tmp_path / "decode.2.log").write_text("slurm: job 12_2 ended with status 0\n")
    (tmp_path / "decode.3.log").write_text("no such model\n")
    one = replace(COMPLETED, task="1")
    two = replace(RUNNING, task="2")
    three = replace(FAILED, task="3")
    rest = replace(PENDING, task="3%1")
    status, out, errors = told(log, [[one, two, rest], [three]], array=3)
    assert status == 3
    assert "1 completed, 1 running, 1 pending of 3" in out
    assert "error: task 3 of train (job 12): failed, exit status 3" in errors
    assert "    no such model" in errors
    assert f"full log: {tmp_path / 'decode.3.log'}" in errors


def test_an_array_that_was_cancelled_before_it_began(tmp_path: Path) -> None:
    rest = replace(PENDING, task="2-3%1")
    end = replace(rest, state="CANCELLED", reason="None")
    log = tmp_path / "decode.JOB.log"
    one = replace(COMPLETED, task="1")
    status, out, errors = told(log, [[one, rest], [one, end]], array=3)
    assert status == 1
    assert "1 completed, 2 pending of 3" in out
    assert errors.splitlines()[-2:] == [
        "error: task 2 of train (job 12) and 1 others: cancelled",
        f"full log: {tmp_path / 'decode.2.log'}",
    ]


def test_of_an_array_a_failure_is_told_rather_than_a_stop(tmp_path: Path) -> None:
    stopped = replace(FAILED, task="1", status=75)
    ends = [stopped, replace(FAILED, task="2"), replace(stopped, task="3")]
    status, _, errors = told(tmp_path / "decode.JOB.log", [ends], array=3)
    assert status == 3
    assert "error: task 2 of train (job 12) and 2 others: failed" in errors

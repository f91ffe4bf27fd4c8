"""A run that goes on where another one has ended: by itself, on a signal, or killed."""

import logging
import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import MultiStepLR

from espnet_distopt.distributed.run_lock import RunLock
from espnet_distopt.errors import InputError, PeerLostError
from espnet_distopt.session import Session
from espnet_distopt.work_queue import WorkQueue
from tests.processes import Lines, launch

ITEMS = 12


def run(
    folder: str,
    name: str = "adpsgd",
    epochs: int = 3,
    act: tuple[int, int, int] | None = None,
    cut: int | None = None,
) -> dict[str, Any]:
    """Train until the end of `epochs`, from where an earlier run has ended.

    `act` is (learner, step, signal): that learner signals itself in that step. Learner
    1 is killed half way through its save of the epoch `cut`.
    """
    rank = dist.get_rank() if dist.is_initialized() else 0
    logging.getLogger().addHandler(log := Lines())
    torch.manual_seed(7)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    optimizer = Adam(model.parameters(), lr=0.05)
    schedule = MultiStepLR(optimizer, [1, 2], gamma=0.5)
    done: dict[str, Any] = {"code": 0, "taken": [], "said": log.lines}
    try:
        with Session(model, optimizer, name) as session:
            session.resume(folder, schedule=schedule)
            done["first"] = session.first_epoch
            for epoch in range(session.first_epoch, epochs):
                for item in WorkQueue(session, ITEMS).read(list):
                    done["taken"].append((epoch, item))
                    if act and act[:2] == (rank, session.learner.steps + 1):
                        os.kill(os.getpid(), act[2])
                    optimizer.zero_grad()
                    x = torch.arange(12.0).view(4, 3).sin() + item + 0.1 * rank
                    model(x).square().mean().backward()
                    optimizer.step()
                    session.step()
                schedule.step()
                with session.consensus():
                    done["model"] = [p.tolist() for p in model.state_dict().values()]
                    if cut == epoch + 1 and rank == 1:
                        torch.save = half_a_save
                    session.save()
    except PeerLostError:
        done["code"] = "lost"
    except SystemExit as end:
        done["code"] = end.code
    return done | {"rate": optimizer.param_groups[0]["lr"]}


def half_a_save(content: object, file: Any) -> None:
    file.write(b"half a save")
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)


def go(size: int, *args: Any, dying: tuple[int, ...] = ()) -> list[dict[str, Any]]:
    return launch(size, run, *args, dying=dying)


@pytest.mark.parametrize("name", ["allreduce", "bmuf_adam", "adpsgd"])
def test_a_stop_within_an_epoch_loses_nothing(name: str, tmp_path: Path) -> None:
    whole = go(2, str(tmp_path / "whole"), name, 3)
    told = (1, 8 if name == "allreduce" else 5, signal.SIGTERM)
    stopped = go(2, str(tmp_path / "run"), name, 3, told)
    assert [each["code"] for each in stopped] == [75, 75]
    assert any("the same command goes on" in line for line in stopped[0]["said"])
    resumed = go(2, str(tmp_path / "run"), name, 3)
    assert [each["code"] for each in resumed] == [0, 0]
    assert {each["rate"] for each in whole + resumed} == {0.0125}
    taken = sorted(item for each in stopped + resumed for item in each["taken"])
    items = [(epoch, item) for epoch in range(3) for item in range(ITEMS)]
    if name == "adpsgd":
        assert taken == items  # No item is taken twice, and none is left.
        return
    assert resumed[0]["model"] == whole[0]["model"]


def test_ctrl_c_at_all_stops_all(tmp_path: Path) -> None:
    def codes(runs: list[dict[str, Any]]) -> list[Any]:
        return [each["code"] for each in runs]

    stopped = launch(2, interrupted, str(tmp_path))
    assert codes(stopped) == [75, 75]
    assert codes(go(2, str(tmp_path))) == [0, 0]


def interrupted(folder: str) -> dict[str, Any]:
    return run(folder, "adpsgd", 3, (dist.get_rank(), 2, signal.SIGINT))


def test_a_run_outlives_learner_0_and_goes_on_from_the_others(tmp_path: Path) -> None:
    folder = str(tmp_path)
    lived = go(3, folder, "adpsgd", 3, (0, 2, signal.SIGKILL), dying=(0,))
    assert [each and each["code"] for each in lived] == [None, 0, 0]
    resumed = go(3, folder, "adpsgd", 4)
    assert [each["first"] for each in resumed] == [3, 3, 3]
    [said] = [line for line in resumed[0]["said"] if "begin anew" in line]
    assert said.startswith(f"{folder}: saved after 3 epochs of adpsgd by 2 of the")
    assert resumed[0]["model"][0] == resumed[2]["model"][0]
    assert {each["rate"] for each in resumed} == {0.0125}
    # Another number, and another algorithm.
    fewer = go(2, folder, "bmuf_adam", 5)
    assert [each["first"] for each in fewer] == [4, 4]
    assert any("2 go on by bmuf_adam" in line for line in fewer[0]["said"])
    again = go(3, folder, "adpsgd", 6)  # Learner 2's save of epoch 4 is outdated.
    assert [each["first"] for each in again] == [5, 5, 5]
    assert len([*tmp_path.glob("epoch6.*of3.pt")]) == 3


def shares() -> list[str]:
    """Train without a work queue; learner 1 is killed."""
    logging.getLogger().addHandler(log := Lines())
    model = nn.Linear(2, 1)
    optimizer = SGD(model.parameters(), lr=0.1)
    with Session(model, optimizer, "adpsgd", heartbeat_seconds=3) as session:
        for epoch in range(3):
            for step in range(4):
                if (dist.get_rank(), epoch, step) == (1, 1, 2):
                    os.kill(os.getpid(), signal.SIGKILL)
                optimizer.zero_grad()
                model(torch.ones(1, 2)).sum().backward()
                optimizer.step()
                session.step()
            session.finish()
    return log.lines


def test_a_share_that_a_dead_learner_leaves_is_told_once() -> None:
    said = launch(2, shares, dying=(1,))[0]
    told = [line for line in said if "WorkQueue would deal it out" in line]
    assert len(told) == 1
    assert re.match("learner 1 has (died|been silent).* 1 of 2 go on", told[0])


def test_a_save_that_was_cut_off_leaves_the_one_before(tmp_path: Path) -> None:
    whole = go(2, str(tmp_path / "whole"), "allreduce", 3)
    folder = tmp_path / "run"
    cut = go(2, str(folder), "allreduce", 3, None, 2, dying=(1,))
    assert cut[0]["code"] == "lost"
    assert [*folder.glob(".*.part")]
    resumed = go(2, str(folder), "allreduce", 3)
    assert [each["first"] for each in resumed] == [1, 1]
    assert resumed[0]["model"] == whole[0]["model"]
    assert not [*folder.glob(".*.part")]


def test_the_first_save_of_all_that_was_cut_off_leaves_the_model(
    tmp_path: Path,
) -> None:
    cut = go(2, str(tmp_path), "allreduce", 3, None, 1, dying=(1,))
    assert cut[0]["code"] == "lost"
    resumed = go(2, str(tmp_path), "allreduce", 3)
    assert [(each["code"], each["first"]) for each in resumed] == [(0, 1), (0, 1)]
    [said] = [line for line in resumed[0]["said"] if "begin anew" in line]
    assert said.startswith(f"{tmp_path}: saved after 1 epochs, though not by all")


class Alone:
    """A model alone, its optimizer and its session."""

    def __init__(self, model: nn.Module | None = None) -> None:
        self.model = model or nn.Linear(2, 1)
        self.optimizer = SGD(self.model.parameters(), lr=0.1)
        self.session = Session(self.model, self.optimizer, "bmuf")

    def epoch(self) -> None:
        self.model(torch.ones(1, 2)).sum().backward()
        self.optimizer.step()
        self.session.step()


def test_what_cannot_be_saved_or_resumed_is_refused_in_a_line(tmp_path: Path) -> None:
    one = Alone()
    with one.session:
        with (
            one.session.consensus(),
            pytest.raises(InputError, match=r"call session\.resume\(folder\)"),
        ):
            one.session.save()
        (tmp_path / "file").touch()
        with pytest.raises(InputError, match=r"file.*: cannot be written: File exists"):
            one.session.resume(tmp_path / "file")
    one = Alone()
    with one.session:
        one.session.resume(tmp_path)
        with pytest.raises(InputError, match="called once"):
            one.session.resume(tmp_path)
        one.epoch()
        with pytest.raises(InputError, match=r"within session\.consensus\(\)"):
            one.session.save()
        with one.session.consensus():
            one.session.save()
    other = Alone(nn.Linear(2, 1, bias=False))
    missing = r"not of this model.*: Unexpected key.*: \"bias\".*; name another folder"
    with other.session, pytest.raises(InputError, match=missing):
        other.session.resume(tmp_path)
    other = Alone()
    best: Any = 1.5
    with other.session, pytest.raises(InputError, match="resume: best is a float: "):
        other.session.resume(tmp_path, best=best)
    other = Alone()
    schedule = MultiStepLR(other.optimizer, [1])
    with other.session, pytest.raises(InputError, match="the save has no 'schedule'"):
        other.session.resume(tmp_path, schedule=schedule)
    next(tmp_path.glob("epoch1.*")).write_bytes(b"broken")
    other = Alone()
    with other.session, pytest.raises(InputError, match=r"epoch1\.bmuf.* cannot read"):
        other.session.resume(tmp_path)


@pytest.mark.parametrize(
    "error",
    [KeyboardInterrupt(), InputError("bad"), PeerLostError("bad"), OSError()],
)
def test_what_a_user_can_mend_ends_the_process_in_a_line(
    capsys: pytest.CaptureFixture[str], error: BaseException
) -> None:
    before = sys.excepthook
    try:
        with pytest.raises(type(error)) as end, Alone().session:
            raise error
        sys.excepthook(end.type, end.value, end.tb)
        err = capsys.readouterr().err
    finally:
        sys.excepthook = before
    if isinstance(error, KeyboardInterrupt):
        assert err == "learner 0: stopped by Ctrl-C\n"
    elif isinstance(error, InputError | PeerLostError):
        what = f"{re.escape(__file__)}:\\d+: {type(error).__name__}: bad\n"
        assert re.fullmatch(what, err)
    else:
        assert "Traceback" in err


def test_the_place_in_the_line_is_that_of_the_users_program(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The mistake is found below a context manager of Python's own."""
    before = sys.excepthook
    try:
        one = Alone()
        consensus = one.session.consensus
        with pytest.raises(InputError) as end, one.session, consensus(), consensus():
            pass
        sys.excepthook(end.type, end.value, end.tb)
        err = capsys.readouterr().err
    finally:
        sys.excepthook = before
    assert re.fullmatch(rf"{re.escape(__file__)}:\d+: InputError: [^\n]+\n", err)


def test_a_second_run_in_the_folder_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RunLock.take, "__defaults__", (0.0,))
    first, second = Alone(), Alone()
    with first.session:
        first.session.resume(tmp_path)
        with second.session, pytest.raises(InputError, match="another run trains"):
            second.session.resume(tmp_path)
        first.epoch()
        with first.session.consensus():
            first.session.save()
    third = Alone()
    with third.session:
        third.session.resume(tmp_path)
        assert third.session.first_epoch == 1

"""The learners' own files: what they have in common is written once."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from espnet_distopt.errors import InputError
from espnet_distopt.espnet.training.saving import LARGE, SavedStates, load_learner
from tests.espnet.toy import arguments
from tests.espnet.training.learners import trained


def save(state: dict[str, Any], folder: Path, rank: int) -> None:
    saved = SavedStates(folder, rank, 3)
    saved.stage(state)
    saved.write()


def state(own: float, common: float, epoch: int = 1) -> dict[str, Any]:
    """Return a state with one tensor of the learner's own and one of all learners."""
    return {
        "epoch": epoch,
        "session": {
            "params": torch.full((LARGE,), own),
            "init": {"exp_avg": torch.full((2, LARGE), common)},
            "steps": 3,
        },
        "optimizer": {"state": {0: {"step": torch.tensor(2.0)}}, "betas": (0.9, 0.99)},
        "random": torch.arange(LARGE),
        "saves": 1,
    }


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    return bool(one == other and type(one) is type(other))


def parts(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("distopt/*epoch.*.pth")} - {
        path.name for path in folder.glob("distopt/learner*")
    }


def test_tensors_that_learners_have_in_common_are_written_once(tmp_path: Path) -> None:
    for rank in range(3):
        save(state(float(rank), common=7.0), tmp_path, rank)
    assert len(parts(tmp_path)) == 4  # three of the learners' own, one of all
    for rank in range(3):
        assert same(load_learner(tmp_path, rank, 1), state(float(rank), common=7.0))


def test_later_states_of_all_learners_are_forgotten(tmp_path: Path) -> None:
    for epoch in (3, 4):
        for rank in range(2):
            save(state(float(rank), 7.0, epoch), tmp_path, rank)
    other = tmp_path / "distopt" / "checkpoint.pth"
    other.touch()
    kept = len(list(tmp_path.glob("distopt/*3epoch*")))
    SavedStates(tmp_path, 0, 1).forget_later(3)
    assert len(list(tmp_path.glob("distopt/*"))) == kept + 1
    assert same(load_learner(tmp_path, 1, 3), state(1.0, 7.0, 3))
    SavedStates(tmp_path, 0, 1).forget_later(0)
    assert list(tmp_path.glob("distopt/*")) == [other]


def test_a_file_that_a_kill_has_cut_off_is_written_again(tmp_path: Path) -> None:
    save(state(0.0, common=7.0), tmp_path, 0)
    for name in parts(tmp_path):
        path = tmp_path / "distopt" / name
        path.write_bytes(path.read_bytes()[:500])
    save(state(0.0, common=7.0), tmp_path, 1)
    assert same(load_learner(tmp_path, 0, 1), state(0.0, common=7.0))
    assert same(load_learner(tmp_path, 1, 1), state(0.0, common=7.0))


def test_a_state_that_lacks_a_file_counts_as_none(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save(state(0.0, 7.0), tmp_path, 0)
    lost = min(parts(tmp_path))
    (tmp_path / "distopt" / lost).unlink()
    assert load_learner(tmp_path, 0, 1) is None
    assert f"{lost} is missing" in caplog.text


def test_a_later_save_in_an_epoch_leaves_what_others_refer_to(tmp_path: Path) -> None:
    for rank in (0, 1):
        save(state(float(rank), common=7.0), tmp_path, rank)
    save(state(5.0, common=8.0), tmp_path, 0)
    assert same(load_learner(tmp_path, 0, 1), state(5.0, common=8.0))
    assert same(load_learner(tmp_path, 1, 1), state(1.0, common=7.0))


def test_two_epochs_are_kept(tmp_path: Path) -> None:
    for epoch in (1, 2, 3):
        save(state(0.0, 7.0, epoch), tmp_path, 0)
    assert load_learner(tmp_path, 0, 1) is None
    for epoch in (2, 3):
        assert same(load_learner(tmp_path, 0, epoch), state(0.0, 7.0, epoch))
    assert {name.partition("epoch")[0] for name in parts(tmp_path)} == {"2", "3"}


def test_rates_that_a_scheduler_computed_by_numpy_can_be_read_again(
    tmp_path: Path,
) -> None:
    rate = np.interp(1, [0, 4], [0.0, 2.0])  # as 202511's piecewiselinearwarmuplr does
    assert isinstance(rate, np.generic)
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.ones(2))], lr=1.0)
    optimizer.param_groups[0]["lr"] = rate
    rates = {"epoch": 1, "optimizer": optimizer.state_dict(), "rates": [rate]}
    save(rates, tmp_path, 0)
    loaded = load_learner(tmp_path, 0, 1)
    assert loaded == {**rates, "saves": 1}
    assert type(loaded["rates"][0]) is float


@pytest.mark.parametrize("name", ["learner0.1epoch.pth", "1epoch.*.pth"])
def test_a_file_that_is_cut_off_is_named(name: str, tmp_path: Path) -> None:
    save(state(0.0, 7.0), tmp_path, 0)
    path = next(tmp_path.glob(f"distopt/{name}"))
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(InputError, match=rf"{path.name} cannot be read"):
        load_learner(tmp_path, 0, 1)


def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = SavedStates(tmp_path, 0, 1)

    def no_room(*_: object) -> None:
        raise OSError(28, "No space left on device", "1epoch.pth")

    monkeypatch.setattr(torch, "save", no_room)
    saved.stage(state(0.0, 7.0))
    with pytest.raises(OSError, match="No space left on device"):
        saved.write()
    assert list(tmp_path.glob("distopt/*")) == []


@pytest.mark.processes
@pytest.mark.parametrize(("algorithm", "each_own"), [("bmuf_adam", 2), ("dpsgd", 4)])
def test_four_learners_save_little_more_than_one(
    algorithm: str, each_own: int, data: Path, tmp_path: Path
) -> None:
    # Of these, one and two have what learners compare, which is at most 8,192 elements.
    # D-PSGD deals the batches. Learners that took them from a queue, as AD-PSGD's do,
    # would be alike where a slow machine lets them come too late for any batch.
    exp = tmp_path / "exp"
    options = arguments(data, exp, "--distopt", algorithm, "--max_epoch", "1")
    trained(options, 4, tmp_path)
    files = [exp / "distopt" / f"learner{rank}.1epoch.pth" for rank in range(4)]
    named = [references(torch.load(file, weights_only=True)) for file in files]
    together = set().union(*named)
    assert parts(exp) == together
    common = set.intersection(*named)
    assert [len(each - common) for each in named] == [each_own] * 4
    assert len(together) == len(common) + 4 * each_own


def references(value: Any) -> set[str]:
    """Return the names of the files that a learner's file refers to."""
    if isinstance(value, list):
        return set().union(*map(references, value))
    if not isinstance(value, dict):
        return set()
    own = {value["in file"]} if "in file" in value else set()
    return own.union(*(references(each) for each in value.values()))

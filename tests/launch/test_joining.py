"""Real trainings by adpsgd, whose learners are killed and replaced by the launcher."""

import json
import socket
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.launch.launched import HERE, Launched
from tests.ports import free_ports

pytestmark = [pytest.mark.processes, pytest.mark.timeout(900)]

JOINER = str(HERE / "joiner.py")
ITEMS, EPOCHS, SIZE = 120, 4, 4
CONTINUE = "--restarts 2 --on-death continue"


def train(
    directory: Path, *words: str, size: int = SIZE, options: str = CONTINUE
) -> tuple[int, str, dict[str, Any]]:
    """Train; return the status, stderr, and what each process (RANK.N) has seen."""
    options = f"--nproc {size} {options}"
    launched = Launched(
        directory, *options.split(), program=JOINER, what=" ".join(words)
    )
    status, _, err = launched.ended(500)
    seen = {
        file.name.removesuffix(".json"): json.loads(file.read_text())
        for file in directory.glob("*.json")
    }
    return status, "\n".join(err), seen


def check_epochs(
    seen: dict[str, Any], lost: int, twice: tuple[tuple[int, int], ...] = ()
) -> None:
    """Check what all processes have trained on, and what they have agreed on.

    Args:
        seen: what each process has seen.
        lost: the number of learners that are missing at the end of an epoch.
        twice: the items that are trained on twice, as (epoch, item).
    """
    for epoch in range(EPOCHS):
        here = [
            (each, epoch - each["first_epoch"])
            for each in seen.values()
            if 0 <= epoch - each["first_epoch"] < len(each["items"])
        ]
        trained = Counter(item for each, at in here for item in each["items"][at])
        again = [item for number, item in twice if number == epoch]
        assert trained == Counter([*range(ITEMS), *again]), epoch
        bits = [each["bits"][at] for each, at in here if at < len(each["bits"])]
        assert len(bits) >= SIZE - lost
        assert all(each == bits[0] for each in bits), epoch


def check_joined(seen: dict[str, Any], victim: int, err: str) -> None:
    """Check what a replacement has seen that has joined the epoch of the death."""
    joined = seen[f"{victim}.1"]
    assert joined["ended"]
    assert joined["first_epoch"] == joined["schedule"] == 1, err
    assert joined["steps"] > 0
    assert joined["moments"] > 0
    assert all(count > 0 for count in joined["exchanges"]), err
    assert len(joined["bits"]) == EPOCHS - 1
    assert f"learner {victim} has joined again (restart 1)" in err


@pytest.mark.parametrize(("victim", "host"), [(0, "127.0.0.1"), (1, "127.0.0.2")])
def test_a_replacement_joins_the_epoch(tmp_path: Path, victim: int, host: str) -> None:
    """No item is lost or done twice.

    The launcher's own client has to reach the store where it listens.
    """
    with socket.create_server((host, 0)) as free:
        master = f"{host}:{free.getsockname()[1]}"
    options = f"{CONTINUE} --master {master}"
    status, err, seen = train(tmp_path, f"{victim}:1:6", options=options)
    assert status == 0, err
    check_joined(seen, victim, err)
    check_epochs(seen, lost=0)


def test_a_replacement_that_comes_too_late_for_an_epoch_waits_for_the_next(
    tmp_path: Path,
) -> None:
    """The only member is passive, so its gossip ends with the death of the other."""
    status, err, seen = train(tmp_path, "0:1:6", "--next", size=2)
    assert status == 0, err
    assert seen["0.1"]["ended"]
    assert seen["0.1"]["first_epoch"] == 2
    assert seen["1.0"]["states"] <= 2, "the state is written down when it is of use"


def test_an_item_that_a_dead_learner_had_begun_is_repeated(tmp_path: Path) -> None:
    status, err, seen = train(tmp_path, "2:1:6", "--repeat")
    assert status == 0, err
    check_joined(seen, 2, err)
    begun = seen["2.0"]["items"][1][-1]
    check_epochs(seen, lost=0, twice=((1, begun),))
    assert f"trains again on item {begun} of the work queue" in err


def test_one_that_dies_at_the_end_of_an_epoch_joins_the_next(tmp_path: Path) -> None:
    status, err, seen = train(tmp_path, "3:0:end")
    assert status == 0, err
    joined = seen["3.1"]
    assert joined["ended"]
    assert joined["first_epoch"] in range(1, EPOCHS)
    check_epochs(seen, lost=1)


@pytest.mark.parametrize(
    ("words", "restarts", "said"),
    [
        (
            ("1:1:6", "--algorithm=allreduce"),
            2,
            "learner 1 was started again, and no learner can join a training by "
            "allreduce",
        ),
        # Without an end, each would be started until all its restarts are used up.
        (
            ("0:0:6", "1:0:6"),
            999999,
            "the run failed: all learners have died, and nobody is left to join",
        ),
        # The others wait in the process group for one that will never come.
        (
            ("1:start:group",),
            2,
            "learner 1 has died before the learners had begun their session",
        ),
    ],
)
def test_where_nobody_can_join_the_run_ends(
    tmp_path: Path, words: tuple[str, ...], restarts: int, said: str
) -> None:
    options = f"--restarts {restarts} --on-death continue"
    status, err, seen = train(tmp_path, *words, size=2, options=options)
    assert status != 0, err
    assert said in err
    assert "1.1" not in seen


def patience() -> int:
    """Return seconds in which a replacement begins on this machine, as it is now."""
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", "import espnet_distopt.session"], check=True)
    return max(12, round(6 * (time.monotonic() - began)))


def test_a_replacement_that_hangs_is_killed_and_another_one_joins(
    tmp_path: Path,
) -> None:
    seconds = patience()
    status, err, seen = train(
        tmp_path, "1:1:6", "--hang", options=f"{CONTINUE} --join_seconds {seconds}"
    )
    assert status == 0, err
    late = f"has not joined the others for {seconds} s: killed"
    assert "learner 1 on" in err and late in err
    assert "1.1" not in seen
    assert seen["1.2"]["ended"]
    check_epochs(seen, lost=0)


def test_a_replacement_is_not_killed_while_a_member_validates(tmp_path: Path) -> None:
    """However long that takes: it has found one to wait for."""
    seconds = patience()
    status, err, seen = train(
        tmp_path,
        "1:0:end",
        f"--validation={seconds + 4}",
        size=2,
        options=f"{CONTINUE} --join_seconds {seconds}",
    )
    assert status == 0, err
    assert "has not joined the others" not in err
    assert seen["1.1"]["ended"]


def test_a_death_is_noticed_on_another_node_while_nobody_exchanges(
    tmp_path: Path,
) -> None:
    """The others wait in the store, and an hour of silence would give it up."""
    words = f"--nproc 1,2 --nnodes 2 --master 127.0.0.1:{free_ports(1)[0]}"
    both = [
        Launched(
            tmp_path,
            *f"{words} --on-death continue --node_rank {node}".split(),
            program=JOINER,
            what="1:0:consensus --heartbeat=3600",
        )
        for node in (0, 1)
    ]
    for node, run in enumerate(both):
        status, _, err = run.ended(500)
        assert status == 0, err
        assert any("learner 1 has died: its process is gone" in line for line in err)
        assert json.loads((tmp_path / f"{2 * node}.0.json").read_text())["ended"]

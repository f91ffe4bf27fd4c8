"""A session of one learner: the loop's point of view."""

import copy
import logging
import os
import signal
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Adam

from espnet_distopt.algorithms import ALGORITHMS
from espnet_distopt.algorithms.block.options import BmufAdamConfig
from espnet_distopt.distributed.process_group import ProcessGroupDriver
from espnet_distopt.errors import InputError, PeerLostError
from espnet_distopt.session import Session
from espnet_distopt.work_queue import WorkQueue
from tests.processes import Lines, launch
from tests.virtual import STEPS_ALONE


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


def train(
    model: nn.Module, optimizer: Adam, session: Session | None, steps: int
) -> None:
    for step in range(steps):
        optimizer.zero_grad()
        if session is not None:
            session.begin_batch(2)
        model(torch.full((2, 3), 1.0 + step)).square().sum().backward()
        optimizer.step()
        if session is not None:
            session.step()


def flat(model: nn.Module) -> torch.Tensor:
    return nn.utils.parameters_to_vector(model.parameters()).detach().clone()


@pytest.mark.parametrize("name", sorted(ALGORITHMS.keys() - STEPS_ALONE))
def test_one_learner_is_the_plain_optimizer_bit_for_bit(name: str) -> None:
    model, plain = net(), net()
    optimizer, other = Adam(model.parameters()), Adam(plain.parameters())
    with Session(model, optimizer, name) as session:
        train(model, optimizer, session, 11)
        train(plain, other, None, 11)
        with session.consensus() as distance:
            assert torch.equal(flat(model), flat(plain))
        assert distance == 0
    assert torch.equal(flat(model), flat(plain))
    for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        for key, value in other.state[theirs].items():
            assert torch.equal(optimizer.state[mine][key], value)


def block(**options: Any) -> tuple[nn.Module, Adam, Session]:
    model = net()
    optimizer = Adam(model.parameters(), lr=0.1)
    options = {"period": 4, "momentum": 0.5, **options}
    return model, optimizer, Session(model, optimizer, "bmuf", **options)


def test_a_consensus_that_is_not_finite_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The learners' models do not just differ."""
    model, optimizer, session = block()
    with session:
        train(model, optimizer, session, 6)
        with session.consensus():
            assert not caplog.text
        with torch.no_grad():
            next(model.parameters()).fill_(torch.nan)
        session.step()
        with session.consensus():
            assert "step 7: the learners' mean model is not finite" in caplog.text


def test_the_consensus_is_set_aside_the_own_parameters() -> None:
    model, optimizer, session = block()
    train(model, optimizer, session, 6)
    with session.consensus() as distance:
        inside = flat(model)
        saved = session.state_dict()["learner"]["params"]
    own = flat(model)
    assert distance == pytest.approx(float((own - inside).norm() / inside.norm()))
    assert distance > 0
    assert torch.equal(saved, own)  # what is saved inside is not the consensus
    session.leave_consensus()
    assert torch.equal(flat(model), own)


GO_ON: list[Callable[[Session], Any]] = [
    Session.step,
    Session.finish,
    Session.enter_consensus,
    Session.agree_to_stop,
    Session.pause,
    lambda session: session.begin_batch(2),
]


@pytest.mark.parametrize("go_on", GO_ON)
def test_nothing_is_trained_in_the_consensus(go_on: Callable[[Session], Any]) -> None:
    """It would be lost with the end of the consensus."""
    model, optimizer, session = block()
    train(model, optimizer, session, 3)
    with (
        session.consensus(),
        pytest.raises(InputError, match="step 3: the model holds the consensus: leave"),
    ):
        go_on(session)
    train(model, optimizer, session, 1)


@pytest.mark.parametrize(
    "go_on", [*GO_ON, Session.barrier, lambda session: session.mean(1.0)]
)
def test_one_that_has_left_waits_for_nobody(go_on: Callable[[Session], Any]) -> None:
    session = block()[2]
    session.close()
    with pytest.raises(InputError, match="the session was left: begin a new one"):
        go_on(session)


@pytest.mark.parametrize("samples", [-1, float("nan"), float("inf")])
def test_a_batch_has_a_number_of_samples(samples: float) -> None:
    session = block()[2]
    with pytest.raises(InputError, match="begin_batch needs the number of samples"):
        session.begin_batch(samples)
    session.begin_batch(0)


def test_an_error_inside_the_consensus_restores_the_parameters() -> None:
    model, optimizer, session = block()
    train(model, optimizer, session, 4)
    own = flat(model)
    with pytest.raises(OSError, match="disk full"), session.consensus():
        raise OSError("disk full")
    assert torch.equal(flat(model), own)


def test_resume_between_epochs_is_the_uninterrupted_run() -> None:
    model, optimizer, session = block()
    train(model, optimizer, session, 6)
    with session.consensus():
        state = session.state_dict()
        moments = copy.deepcopy(optimizer.state_dict())
    again, other, resumed = block()
    other.load_state_dict(moments)
    resumed.load_state_dict(state)
    train(again, other, resumed, 6)
    train(model, optimizer, session, 6)
    assert torch.equal(flat(again), flat(model))
    assert resumed.learner.steps == 12


def test_state_of_another_algorithm_is_refused() -> None:
    state = block()[2].state_dict()
    model = net()
    with pytest.raises(InputError, match="is of bmuf, not of adpsgd"):
        Session(model, Adam(model.parameters()), "adpsgd").load_state_dict(state)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("bmuff", {}, "unknown algorithm 'bmuff'"),
        ("bmuf", {"perid": 3}, "options of bmuf: unknown option 'perid'"),
    ],
)
def test_wrong_options_are_refused(
    name: str, options: dict[str, Any], words: str
) -> None:
    model = net()
    with pytest.raises(InputError, match=words):
        Session(model, Adam(model.parameters()), name, **options)


@pytest.mark.parametrize("go_on", [Session.step, Session.finish])
def test_moved_parameters_are_noticed(go_on: Callable[[Session], Any]) -> None:
    model, optimizer, session = block()
    train(model, optimizer, session, 1)
    model.double()
    with pytest.raises(InputError, match=r"step 1: .*'0\.weight' .* left the flat"):
        go_on(session)


def test_metrics_start_again_after_each_call() -> None:
    session = block()[2]
    session.driver.spent["bytes"] = 7.0
    assert session.metrics()["bytes"] == 7.0
    assert session.metrics() == {"comm_time": 0.0, "wait_time": 0.0, "bytes": 0.0}
    assert session.mean(2.5) == 2.5


def test_changed_options_at_resume_do_not_end_in_a_bare_key_error() -> None:
    state = block(moments="extrapolate")[2].state_dict()
    _, _, session = block(moments="average")
    with pytest.raises(InputError):
        session.load_state_dict(state)


def test_the_learner_knows_what_the_launcher_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    session = block()[2]
    assert session.learner.per_node == session.driver.per_node == 1
    assert session.driver.record is None


def test_what_trains_is_recorded_and_nothing_else() -> None:
    model = net()
    optimizer = Adam(model.parameters())
    driver = ProcessGroupDriver(recording=True)
    session = Session(model, optimizer, "bmuf", driver, period=4)
    assert driver.record == []  # the start is no part of an epoch
    train(model, optimizer, session, 2)
    assert driver.record == [("training", None)] * 2
    with session.consensus():
        recorded = len(driver.record)
        session.mean(1.0)
    assert len(driver.record) == recorded


def stopped_after_unequal_epochs() -> int:
    rank = dist.get_rank()
    model, optimizer, session = block()
    with session:
        train(model, optimizer, session, (10, 5)[rank])
        session.finish()
        for step in range(1, 40):
            if step == 6 and rank == 0:
                session.request_stop()
            train(model, optimizer, session, 1)
            if session.agree_to_stop():
                session.pause()
                return step
    raise AssertionError("was not told to stop")


def asked_after_the_last_step(name: str) -> tuple[int, int]:
    """Learner 1 is told to stop when the others have looked for the last time."""
    rank, options = dist.get_rank(), {"period": 8} if name == "bmuf" else {}
    model = net()
    optimizer = Adam(model.parameters())
    store = dist.distributed_c10d._get_default_store()
    with Session(model, optimizer, name, **options) as session:
        for epoch in range(3):
            for step in range(1, 5):
                train(model, optimizer, session, 1)
                if (epoch, step, rank) == (0, 4, 1):
                    store.wait(["looked"])
                    session.request_stop()
                if session.agree_to_stop():
                    session.pause()
                    return epoch, step
            if rank == 0:
                store.set("looked", "")
            session.finish()
    raise AssertionError("was not told to stop")


@pytest.mark.parametrize("name", ["allreduce", "dpsgd", "bmuf", "adasum"])
def test_learners_stop_together_in_the_epoch_after_the_proposal(name: str) -> None:
    assert launch(2, asked_after_the_last_step, name) == [(1, 1), (1, 1)]


def stopped_before_the_consensus() -> str:
    """Learner 1 stops within the epoch, and learner 0 has looked for the last time."""
    rank, store = dist.get_rank(), dist.distributed_c10d._get_default_store()
    model = net()
    optimizer = Adam(model.parameters())
    with Session(model, optimizer, "adpsgd") as session:
        train(model, optimizer, session, 4)
        if rank == 1:
            store.wait(["looked"])
            session.request_stop()
            assert session.agree_to_stop()
            session.pause()
            return "stopped"
        assert not session.agree_to_stop()
        store.set("looked", "")
        try:
            with session.consensus():
                return "entered"
        except InputError as error:
            session.state_dict()
            return str(error)


def test_there_is_no_consensus_when_another_learner_has_stopped() -> None:
    here, there = launch(2, stopped_before_the_consensus)
    assert there == "stopped"
    assert "another learner has stopped within the epoch" in here


def asked_when_the_other_has_no_data_left() -> tuple[int, int]:
    rank = dist.get_rank()
    model, optimizer, session = block()
    with session:
        for epoch in range(3):
            for step in range(1, (5, 15)[rank]):
                train(model, optimizer, session, 1)
                if (epoch, step) == (0, 10):
                    session.request_stop()
                if session.agree_to_stop():
                    session.pause()
                    return epoch, step
            session.finish()
    raise AssertionError("was not told to stop")


def test_a_learner_without_data_stops_with_the_other_in_the_next_epoch() -> None:
    assert launch(2, asked_when_the_other_has_no_data_left) == [(1, 1), (1, 1)]


def test_learners_stop_at_one_block_after_unequal_epochs() -> None:
    first, second = launch(2, stopped_after_unequal_epochs)
    assert first == second
    assert first % 4 == 0


def open_a_queue_late() -> str:
    """Learner 1 stops before its first step; learner 0 has asked before that."""
    rank, store = dist.get_rank(), dist.distributed_c10d._get_default_store()
    model = net()
    try:
        with Session(model, Adam(model.parameters()), "adpsgd") as session:
            if rank == 1:
                store.wait(["looked"])
                session.request_stop()
                assert session.agree_to_stop()
                session.pause()
                return "paused"
            assert not session.agree_to_stop()
            store.set("looked", "")
            WorkQueue(session, 6)
    except (InputError, PeerLostError) as error:
        return str(error)
    return "opened"


@pytest.mark.processes
def test_a_queue_does_not_wait_for_one_that_may_have_stopped() -> None:
    here, there = launch(2, open_a_queue_late, timeout=30)
    assert here.startswith("learner 0, step 0: this training can stop within an epoch")
    assert "learner 0 ended with InputError" in there


def meet_after_asking(name: str) -> list[str]:
    """Return what happens where learners meet after they have asked for a stop."""
    model = net()
    optimizer, found = Adam(model.parameters()), []

    def meet(*meetings: Callable[[], Any]) -> None:
        assert not session.agree_to_stop()
        for each in meetings:
            try:
                each()
                found.append("met")
            except InputError:
                found.append("refused")

    with Session(model, optimizer, name) as session:
        train(model, optimizer, session, 2)
        meet(session.barrier, lambda: session.mean(1.0))
        session.finish()
        session.barrier()
        meet(session.restart_from_model, session.enter_consensus)
        session.leave_consensus()
        session.finish()
        assert session.mean(float(session.learner.rank)) == 0.5
    return found


@pytest.mark.processes
@pytest.mark.parametrize(("name", "found"), [("adpsgd", "refused"), ("bmuf", "met")])
def test_who_may_stop_apart_meets_after_the_epoch(name: str, found: str) -> None:
    assert launch(2, meet_after_asking, name) == [[found] * 4] * 2


def advised(name: str, **options: Any) -> list[str]:
    handler, logger = Lines(), logging.getLogger("espnet_distopt.session")
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    model = net()
    with Session(model, Adam(model.parameters()), name, **options):
        pass
    return handler.lines


@pytest.mark.processes
def test_learner_0_says_which_rate_suits_block_momentum() -> None:
    (line,), *others = launch(4, partial(advised, warmup=100), "bmuf_adam")
    assert line.startswith("bmuf_adam: block momentum moves the model 4 times as far")
    assert line.endswith("(begin with 0.5 of that)")
    assert others == [[]] * 3
    assert launch(2, advised, "local_sgd") == [[], []]


def test_one_learner_plain_averages_and_the_default_need_no_other_rate() -> None:
    assert advised("bmuf_adam") == []
    assert BmufAdamConfig().advice(workers=4) == ""
    assert BmufAdamConfig(momentum=0.0, warmup=0).advice(workers=4) == ""
    more = BmufAdamConfig(momentum=0.9, block_lr=0.7, warmup=0)
    assert "7 times" in more.advice(workers=4)


def closed_within_an_epoch() -> float:
    """Close a session without `with`; return what a collective then adds up."""
    rank = dist.get_rank()
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session = Session(model, optimizer, "adpsgd")
    for _ in range(3):
        optimizer.zero_grad()
        (model(torch.ones(1, 3)).sum() * (1 + rank)).backward()
        optimizer.step()
        session.step()
    session.close()
    total = torch.ones(1)
    dist.all_reduce(total)
    return total.item()


@pytest.mark.processes
def test_close_ends_the_gossip_and_leaves_the_process_group_alone() -> None:
    assert launch(2, closed_within_an_epoch) == [2, 2]


OF_A_LOADER = "Caught RuntimeError in DataLoader worker 0: /home/me/pipeline/closest.py"


def fail_in_the_data() -> str:
    model = net()
    try:
        with Session(model, Adam(model.parameters()), "allreduce") as session:
            if session.learner.rank == 0:
                raise RuntimeError(OF_A_LOADER)
            session.finish()
    except RuntimeError as error:
        return f"{isinstance(error, PeerLostError)} {error}"
    return "nothing"


@pytest.mark.processes
def test_an_error_of_the_program_stays_what_it_was() -> None:
    own, other = launch(2, fail_in_the_data)
    assert own == f"False {OF_A_LOADER}"
    assert other.startswith("True ")
    assert f"learner 0 ended with RuntimeError: {OF_A_LOADER}" in other


class Unsendable:
    """What keeps something that no learner can send to another one."""

    def state_dict(self) -> dict[str, Any]:
        return {"schedule": lambda step: 0.1}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise AssertionError


def carry_what_cannot_be_sent() -> str:
    model = net()
    with pytest.raises(InputError) as found:
        Session(model, Adam(model.parameters()), "adpsgd", carries=Unsendable())
    return str(found.value)


@pytest.mark.processes
def test_what_no_replacement_could_read_is_refused_at_once() -> None:
    for rank, line in enumerate(launch(2, carry_what_cannot_be_sent)):
        assert line.startswith(f"learner {rank}, step 0: the state of `carries` cannot")


def train_until_one_fails() -> str:
    """Leave by `close` in a `finally`, which sees the error of learner 0."""
    model = net()
    optimizer = Adam(model.parameters())
    session = Session(model, optimizer, "adpsgd")
    try:
        train(model, optimizer, session, 3)
        if session.learner.rank == 0:
            raise OSError("disk full")
        while True:
            train(model, optimizer, session, 1)
    finally:
        session.close()


def fail_in_a_finally() -> str:
    try:
        return train_until_one_fails()
    except (OSError, PeerLostError) as error:
        return str(error)


@pytest.mark.processes
def test_close_in_a_finally_tells_the_others_of_the_error() -> None:
    failed, other = launch(2, fail_in_a_finally)
    assert failed == "disk full"
    assert other.endswith("learner 0 ended with OSError: disk full")


def led() -> tuple[bool, bool]:
    """Return whether this learner leads before the first one dies, and after."""
    model = nn.Linear(3, 1)
    driver = ProcessGroupDriver(silence=2)
    optimizer = Adam(model.parameters())
    with Session(model, optimizer, "adpsgd", driver) as session:
        before = session.is_leader
        session.barrier()
        if dist.get_rank() == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        session.step()
        with session.consensus():
            return before, session.is_leader


def test_the_first_of_those_that_live_leads() -> None:
    assert launch(3, led, dying={0})[1:] == [(False, True), (False, False)]


def forgetful(name: str, batches: int) -> str:
    model = nn.Linear(3, 1)
    optimizer = Adam(model.parameters())
    try:
        with Session(model, optimizer, name) as session:
            for _ in range(batches):
                model(torch.ones(1, 3)).sum().backward()
                optimizer.step()
            session.finish()
    except InputError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("name", ["adpsgd", "local_sgd", "allreduce"])
def test_an_epoch_without_the_sessions_steps_is_refused(name: str) -> None:
    assert all(
        "session.step() was not called" in t for t in launch(2, forgetful, name, 2)
    )


def test_an_epoch_without_batches_is_none_without_steps() -> None:
    assert launch(2, forgetful, "adpsgd", 0) == ["", ""]


def without_consensus(name: str, *calls: str) -> list[str]:
    """Train, make some calls, and return what the end of the session says."""
    lines = Lines()
    logging.getLogger("espnet_distopt").addHandler(lines)
    model = net()
    optimizer = Adam(model.parameters())
    with Session(model, optimizer, name) as session:
        train(model, optimizer, session, 3)
        for call in calls:
            getattr(session, call)()
    return [line for line in lines.lines if "without a consensus" in line]


@pytest.mark.processes
@pytest.mark.parametrize(
    ("name", "calls", "told"),
    [
        ("adpsgd", (), 1),
        ("bmuf", ("consensus",), 1),  # It is no call, but for `with`.
        ("adpsgd", ("finish", "enter_consensus", "leave_consensus"), 0),
        ("adpsgd", ("pause",), 0),
        ("allreduce", (), 0),
    ],
)
def test_who_asks_for_no_consensus_is_told(
    name: str, calls: tuple[str, ...], told: int
) -> None:
    first, second = launch(2, without_consensus, name, *calls)
    assert len(first) == told
    assert all(
        f"step 3: the session ends without a consensus after its last steps by "
        f"{name}" in line
        for line in first
    )
    assert not second

"""Sessions on a GPU. Learners share it, and communicate through gloo or NCCL."""

import io
import os
import re
import signal
import time
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from processes import launch
from torch import nn
from torch.optim import SGD, Adam

from espnet_distopt.algorithms import ALGORITHMS
from espnet_distopt.distributed.nccl import NcclGroup
from espnet_distopt.distributed.process_group import ProcessGroupDriver
from espnet_distopt.errors import PeerLostError
from espnet_distopt.session import Session

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="this machine has no GPU"
)

BACKENDS = ["gloo", "cpu:gloo,cuda:nccl"]
OPTIONS: dict[str, dict[str, Any]] = {
    "hadpsgd": {"per_node": 2},
    "bmuf_adam": {"period": 3, "delay": 2, "exchange": "bfloat16"},
    "bmuf": {"period": 4, "momentum": 0.5},
    "diloco": {"period": 4},
    "local_sgd": {"period": 2, "second_moment": "consistent"},
}


def net(width: int) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, width), nn.Tanh(), nn.Linear(width, 1))


def train(session: Session, model: nn.Module, optimizer: Any, steps: int) -> None:
    source = torch.Generator().manual_seed(dist.get_rank())
    place = next(model.parameters()).device
    for _ in range(steps):
        x = torch.randn(16, 8, generator=source).to(place)
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        session.step()


def trained(name: str, device: str, fused: bool = False) -> list[float]:
    model = net(32).to(device)
    optimizer = Adam(model.parameters(), lr=0.01, fused=fused)
    with Session(model, optimizer, name, **OPTIONS.get(name, {})) as session:
        train(session, model, optimizer, 11)
        with session.consensus():
            found = nn.utils.parameters_to_vector(model.parameters())
            return found.tolist()  # type: ignore[no-any-return]


TOGETHER = [name for name, e in ALGORITHMS.items() if not e.algorithm.wants_gossip]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", [*TOGETHER, "hadpsgd"])
def test_a_training_is_that_of_the_cpu(name: str, backend: str) -> None:
    # The two are one node of hadpsgd, so that no gossip makes a difference.
    ours = launch(2, trained, name, "cuda", backend=backend)
    cpu = launch(2, trained, name, "cpu")
    np.testing.assert_allclose(ours[0], ours[1])
    np.testing.assert_allclose(ours[0], cpu[0], rtol=0, atol=1e-3)


def test_a_fused_optimizer_is_corrected_as_another_one() -> None:
    """It keeps the number of its steps on the GPU."""
    fused = launch(2, trained, "local_sgd", "cuda", True)
    other = launch(2, trained, "local_sgd", "cuda", False)
    np.testing.assert_allclose(fused[0], other[0], rtol=0, atol=1e-5)


WIDTH = 1 << 20
"""The width of a layer for which copies take as long as layers."""


def gossiped(exchange: str, own_stream: bool) -> tuple[float, float, float]:
    """Return the mean before and after, and the number of exchanges.

    The layers are wide, so that copies, layers and corrections overlap.
    """
    model = net(WIDTH).to("cuda")
    for parameter in model.parameters():
        nn.init.zeros_(parameter)  # The reference that bfloat16 rounds against.
    optimizer = SGD(model.parameters(), lr=0.0)
    stream = torch.cuda.Stream() if own_stream else torch.cuda.current_stream()
    with (
        torch.cuda.stream(stream),
        Session(model, optimizer, "adpsgd", exchange=exchange) as session,
    ):
        params = session.learner.params
        with torch.no_grad():
            params.fill_(float(dist.get_rank()))
        before = session.mean(float(params.mean()))
        # Steps are fast while the other learner waits for its turn on the GPU.
        exchanges, steps = 0.0, 0
        while exchanges <= 3 and steps < 5000:
            train(session, model, optimizer, 20)
            exchanges += session.metrics()["exchanges"]
            steps += 20
        session.finish()
        exchanges += session.metrics()["exchanges"]
        after = session.mean(float(params.double().mean()))
        spread = float(params.max() - params.min())
    assert spread < 1e-5, "a correction has met parameters that were being written"
    return before, after, exchanges


@pytest.mark.parametrize("own_stream", [False, True])
@pytest.mark.parametrize("exchange", ["float32", "bfloat16"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_gossip_conserves_the_mean(
    backend: str, exchange: str, own_stream: bool
) -> None:
    found = launch(2, gossiped, exchange, own_stream, backend=backend)
    for before, after, exchanges in found:
        assert exchanges > 3
        assert after == pytest.approx(before, abs=1e-5)


def gossiped_losses(name: str) -> tuple[float, float]:
    """Return the loss before and after, the mean over the learners."""
    model = net(64).to("cuda")
    optimizer = Adam(model.parameters(), lr=0.01)
    x = torch.randn(256, 8, generator=torch.Generator().manual_seed(7)).to("cuda")

    def loss() -> float:
        with torch.no_grad():
            return float(model(x).square().mean())

    before = loss()
    with Session(model, optimizer, name, **OPTIONS.get(name, {})) as session:
        train(session, model, optimizer, 100)
        with session.consensus():
            return before, loss()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["adpsgd", "hadpsgd"])
def test_gossip_learns_with_a_corrected_second_moment(name: str, backend: str) -> None:
    found = launch(4, gossiped_losses, name, backend=backend)
    assert len({after for _, after in found}) == 1, "each has the consensus"
    for before, after in found:
        assert after < 0.1 * before


def interrupted(name: str, scaled: bool) -> tuple[list[float], list[float]]:
    """Return the parameters of a whole training, and of one that went on from a file.

    With `scaled`, gradients are scaled, and one step is skipped.
    """

    def run(session: Session, model: nn.Module, optimizer: Any, steps: range) -> None:
        for step in steps:
            source = torch.Generator().manual_seed(100 * step + dist.get_rank())
            x = torch.randn(16, 8, generator=source).cuda()
            optimizer.zero_grad()
            with torch.autocast("cuda", torch.float16, enabled=scaled):
                loss = model(x).square().mean()
            if scaled and step == 2:
                loss = loss * float("inf")
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            session.step()
        session.finish()

    found = []
    for halves in (False, True):
        scaler = torch.amp.GradScaler("cuda", init_scale=2.0, enabled=scaled)
        model = net(32).cuda()
        optimizer = Adam(model.parameters(), lr=0.01)
        options = OPTIONS.get(name, {})
        saved = io.BytesIO()
        with Session(model, optimizer, name, **options) as session:
            run(session, model, optimizer, range(6))
            if halves:
                torch.save([session.state_dict(), optimizer.state_dict()], saved)
            else:
                run(session, model, optimizer, range(6, 12))
        if halves:
            model = net(32).cuda()
            optimizer = Adam(model.parameters(), lr=0.01)
            saved.seek(0)
            of_session, of_optimizer = torch.load(saved, map_location="cpu")
            with Session(model, optimizer, name, **options) as session:
                optimizer.load_state_dict(of_optimizer)
                session.load_state_dict(of_session)
                run(session, model, optimizer, range(6, 12))
        found.append(nn.utils.parameters_to_vector(model.parameters()).tolist())
    return found[0], found[1]


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("name", ["allreduce", "bmuf_adam", "local_sgd", "adasum"])
def test_a_training_goes_on_from_a_file(name: str, scaled: bool) -> None:
    for whole, halves in launch(2, interrupted, name, scaled, backend=BACKENDS[1]):
        assert np.isfinite(whole).all()
        np.testing.assert_allclose(halves, whole, rtol=0, atol=1e-6)


VICTIM = 1


def losing(name: str, survives: bool) -> tuple[float, str]:
    """Train beside a learner that dies; return the last loss, and the error's words."""
    model = net(64).cuda()
    optimizer = Adam(model.parameters(), lr=0.01)
    driver = ProcessGroupDriver(silence=3.0)
    loss = torch.full((), torch.nan)
    try:
        with Session(
            model, optimizer, name, driver, **OPTIONS.get(name, {})
        ) as session:
            for step in range(60):
                if step == 20 and dist.get_rank() == VICTIM:
                    os.kill(os.getpid(), signal.SIGKILL)
                optimizer.zero_grad()
                loss = model(torch.randn(16, 8).cuda()).square().mean()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                session.step()
                time.sleep(0.02)
            with session.consensus():
                members = session.learner.members.ranks
            assert members == (0, 2)
    except PeerLostError as error:
        return float(loss), str(error)
    assert survives
    return float(loss), ""


SURVIVORS = {"adpsgd": True, "bmuf_adam": True, "local_sgd": True, "allreduce": False}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", SURVIVORS)
def test_the_loss_of_a_learner(name: str, backend: str) -> None:
    found = launch(
        3,
        losing,
        name,
        SURVIVORS[name],
        dying=[VICTIM],
        backend=backend,
        timeout=100,
    )
    for rank in (0, 2):
        loss, error = found[rank]
        if SURVIVORS[name]:
            assert loss < 0.3
        else:
            # A GPU's driver may take seconds to end a killed process, whose sockets
            # stay open so long; then its silence comes first.
            assert re.search("learner 1 (has died|has been silent)", error)


IMPATIENT = {
    "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "500",
    "TORCH_NCCL_COORD_CHECK_MILSEC": "200",
    "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "4",
}
"""With these, a watchdog of torch that sees a collective fail ends its process after
seven seconds, and not after one to nine minutes."""

AFTERWARDS = 500
"""Steps of the survivors, which take ten seconds and so outlast such a watchdog."""


def dying_inside(name: str, launched: bool) -> tuple[float, str]:
    """Train beside a learner that dies in a collective; return as `losing` does.

    Args:
        name: the algorithm.
        launched: whether the victim dies in the midst of its part of the all-reduce,
            and not while those of the others wait on the GPU for it to begin.
    """
    allreduce: Any = NcclGroup.allreduce
    model = net(1 << 18).cuda()
    optimizer = Adam(model.parameters(), lr=1e-4)
    driver = ProcessGroupDriver(silence=3.0)
    loss = torch.full((), torch.nan)

    def die(group: NcclGroup, tensors: list[torch.Tensor]) -> None:
        if launched:
            allreduce(group, tensors)
        else:
            time.sleep(1)
        os.kill(os.getpid(), signal.SIGKILL)

    def steps(count: int) -> None:
        nonlocal loss
        for _ in range(count):
            optimizer.zero_grad()
            loss = model(torch.randn(16, 8).cuda()).square().mean()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            session.step()
            time.sleep(0.02)

    try:
        with Session(
            model, optimizer, name, driver, **OPTIONS.get(name, {})
        ) as session:
            steps(12)
            if dist.get_rank() == VICTIM:
                NcclGroup.allreduce = die  # type: ignore[method-assign, assignment]
            steps(12)
            with session.consensus():  # Gossip has no all-reduce before this one.
                pass
            torch.cuda.synchronize()  # No kernel waits for the dead one any more.
            steps(AFTERWARDS)
            with session.consensus():
                assert session.learner.members.ranks == (0, 2)
                assert session.learner.params.isfinite().all()
    except PeerLostError as error:
        torch.cuda.synchronize()
        time.sleep(AFTERWARDS * 0.02)
        return float(loss), str(error)
    return float(loss), ""


@pytest.mark.parametrize(
    ("name", "launched"),
    [
        ("adpsgd", False),
        ("bmuf_adam", False),
        ("bmuf_adam", True),
        ("local_sgd", False),
        ("allreduce", False),
        ("allreduce", True),
    ],
)
def test_the_loss_of_a_learner_in_an_all_reduce(name: str, launched: bool) -> None:
    found = launch(
        3,
        dying_inside,
        name,
        launched,
        dying=[VICTIM],
        backend=BACKENDS[1],
        timeout=120,
        variables=IMPATIENT,
    )
    for rank in (0, 2):
        loss, error = found[rank]
        assert np.isfinite(loss)
        if SURVIVORS[name]:
            assert not error
        else:
            assert "learner 1 has died" in error


def one_after_the_other() -> list[list[float]]:
    return [trained("local_sgd", "cuda") for _ in range(3)]


def test_sessions_after_each_other_have_groups_of_their_own() -> None:
    """Each begins by the end of the groups of NCCL of the one before."""
    found = launch(2, one_after_the_other, backend=BACKENDS[1])
    for sessions in found:
        for parameters in sessions:
            np.testing.assert_allclose(parameters, sessions[0], rtol=0, atol=1e-5)

"""Steps that CUDA graphs compute are the eager ones."""

import logging
from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from espnet_distopt.espnet.models import captured
from espnet_distopt.espnet.models.captured import IGNORED, CapturedLoss
from espnet_distopt.session import Session

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="this machine has no GPU"
)
FRAMES, FEATURES, LABELS = 7, 24, 11


class Chunks(nn.Module):
    """A BLSTM with a score for each label."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(FEATURES, 32, 2, batch_first=True, bidirectional=True)
        self.scores = nn.Linear(64, LABELS)

    def forward(self, x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        scores = self.scores(self.rnn(x)[0])
        loss = cross_entropy(
            scores.flatten(0, 1), labels.flatten(), ignore_index=IGNORED
        )
        return loss, (scores.argmax(-1) == labels).sum()


def batch(size: int, seed: int) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(size, FRAMES, FEATURES, generator=rng)
    labels = torch.randint(LABELS, (size, FRAMES), generator=rng)
    labels[0, 3] = IGNORED
    return x.cuda(), labels.cuda()


@pytest.fixture(autouse=True)
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute float32 as such, which cuDNN rounds to 10 bits unless it is told."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


def start() -> tuple[Chunks, list[Tensor]]:
    """Return a new model, and its parameters' values."""
    torch.manual_seed(0)
    model = Chunks().cuda()
    return model, [p.detach().clone() for p in model.parameters()]


def assert_same_way(found: list[Tensor], expected: list[Tensor], share: float) -> None:
    """Compare trained parameters, but for a share of the way that each has come."""
    for one, other, before in zip(found, expected, start()[1], strict=True):
        way = torch.linalg.vector_norm(other - before)
        assert torch.linalg.vector_norm(one - other) <= share * way


def trained(
    sizes: list[int],
    capture: bool,
    precision: torch.dtype | None = None,
    algorithm: str | None = None,
    every: int = 1,
) -> tuple[list[Tensor], list[float]]:
    """Train on batches of some sizes; return the parameters, losses and figures."""
    model, _ = start()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    scaler = torch.amp.GradScaler("cuda", enabled=precision is torch.float16)
    loss_of: Callable[[Tensor, Tensor], tuple[Tensor, ...]] = model
    if capture:
        loss_of = CapturedLoss(model)
    session = None
    found = []
    for number, size in enumerate(sizes, 1):
        if algorithm is not None and number == 3:  # The parameters move.
            session = Session(model, optimizer, algorithm)
        with torch.autocast("cuda", precision, precision is not None):
            loss, right = loss_of(*batch(size, number))
        scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        found += [float(loss), float(right)]
        if number % every == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            if session is not None:
                session.step()
    if session is not None:
        session.close()
    return [p.detach().clone() for p in model.parameters()], found


@pytest.mark.parametrize("precision", [None, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "sizes", [[8, 8, 8, 8, 8], [8, 7, 8, 5, 7], [5, 8, 6, 9, 9]], ids=str
)
def test_a_captured_step_is_the_eager_one(
    sizes: list[int], precision: torch.dtype | None, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        found, figures = trained(sizes, True, precision)
    largest = [max(sizes[: n + 1]) for n in range(len(sizes))]
    assert caplog.text.count("are captured as CUDA graphs") == len(set(largest))
    expected, known = trained(sizes, False, precision)
    # A sum over more rows, which are zeros, may take its terms in another order.
    tolerance = 1e-5 if precision is None else 5e-3
    torch.testing.assert_close(figures[::2], known[::2], rtol=tolerance, atol=0)
    assert_same_way(found, expected, 1e-4 if precision is None else 2e-2)


def test_ddp_keeps_nodes_of_earlier_steps(caplog: pytest.LogCaptureFixture) -> None:
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        model = Chunks().cuda()
        loss_of = CapturedLoss(model)

        class Wrapped(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.model = model

            def forward(self, x: Tensor, labels: Tensor) -> Tensor:
                return loss_of(x, labels)[0]

        wrapped = nn.parallel.DistributedDataParallel(Wrapped())
        with caplog.at_level(logging.INFO):
            for size in (6, 8, 8):
                x, labels = batch(size, size)
                expected = torch.autograd.grad(model(x, labels)[0], model.parameters())
                model.zero_grad()
                wrapped(x, labels).backward()
                for one, other in zip(model.parameters(), expected, strict=True):
                    torch.testing.assert_close(one.grad, other, rtol=0, atol=1e-5)
        assert caplog.text.count("are captured as CUDA graphs") == 2
    finally:
        torch.distributed.destroy_process_group()


def test_gradients_accumulate() -> None:
    found, _ = trained([8, 8, 6, 8, 8, 8], True, every=3)
    expected, _ = trained([8, 8, 6, 8, 8, 8], False, every=3)
    assert_same_way(found, expected, 1e-4)


@pytest.mark.parametrize("algorithm", ["adpsgd", "allreduce", "bmuf"])
def test_a_session_moves_the_parameters(
    algorithm: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        found, _ = trained([8] * 6, True, algorithm=algorithm)
    assert caplog.text.count("are captured as CUDA graphs") == 2
    expected, _ = trained([8] * 6, False, algorithm=algorithm)
    assert_same_way(found, expected, 1e-4)


def test_an_eager_pass_between_steps_changes_no_graph(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model, _ = start()
    loss_of = CapturedLoss(model)
    with caplog.at_level(logging.INFO):
        for number in range(4):
            loss_of(*batch(8, number))[0].backward()  # type: ignore[no-untyped-call]
            with torch.no_grad():
                model.eval()(*batch(3, number))
            model.train()
    assert caplog.text.count("are captured as CUDA graphs") == 1


def test_a_captured_step_does_not_wait_for_the_gpu() -> None:
    model = Chunks().cuda()
    loss_of = CapturedLoss(model)
    x, labels = batch(8, 0)
    loss_of(x, labels)[0].backward()  # type: ignore[no-untyped-call]
    try:
        torch.cuda.set_sync_debug_mode("error")
        loss_of(x, labels)[0].backward()  # type: ignore[no-untyped-call]
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_what_cannot_be_captured_is_computed_eagerly(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = Chunks().cuda()

    class Waiting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
            loss, right = self.model(x, labels)
            return loss * float(right > -1), right

    loss_of = CapturedLoss(Waiting())
    for size in (8, 8, 5):
        x, labels = batch(size, size)
        loss, _ = loss_of(x, labels)
        torch.testing.assert_close(loss, model(x, labels)[0])
        model.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        assert all(p.grad is not None for p in model.parameters())
    assert caplog.text.count("not captured as CUDA graphs, but eager") == 1


def test_batches_that_grow_on_and_on_are_computed_eagerly(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(captured, "CAPTURES", 2)
    model = Chunks().cuda()
    loss_of = CapturedLoss(model)
    for size in (2, 3, 4, 5, 2):
        x, labels = batch(size, size)
        torch.testing.assert_close(loss_of(x, labels)[0], model(x, labels)[0])
    assert "batches have changed 2 times" in caplog.text


@pytest.mark.parametrize("casts", [False, True])
def test_there_is_no_gradient_without_grad_mode(casts: bool) -> None:
    model = Chunks().cuda()
    loss_of = CapturedLoss(model)
    with torch.no_grad(), torch.autocast("cuda") if casts else nullcontext():
        assert not loss_of(*batch(4, 0))[0].requires_grad

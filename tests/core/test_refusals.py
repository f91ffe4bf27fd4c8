"""What cannot be trained is refused before anything is changed."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import LBFGS, SGD, AdamW, RMSprop

from espnet_distopt.algorithms import build
from espnet_distopt.core.learner import Learner
from espnet_distopt.core.refusals import check_algorithm, check_eps
from espnet_distopt.errors import InputError
from espnet_distopt.session import Session
from tests.processes import launch


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (AdamW, "AdamW's eps of 1e-08 is 0 in torch.float16.* float32 .* autocast"),
        (RMSprop, "RMSprop's eps of 1e-08 is 0"),
    ],
)
def test_an_eps_that_is_zero_is_refused_where_torch_fails(
    make: Any, words: str
) -> None:
    model = net().half()
    optimizer = make(model.parameters())
    with pytest.raises(InputError, match=words):
        Session(model, optimizer, "local_sgd")
    model(torch.zeros(1, 3).half()).sum().backward()
    optimizer.step()
    optimizer.step()
    assert not all(p.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize(
    "make",
    [
        lambda p: AdamW(p, eps=1e-7),
        lambda p: AdamW(p, fused=True),
        lambda p: SGD(p, lr=0.1),
    ],
)
def test_what_divides_by_more_is_not_refused(make: Any) -> None:
    check_eps(make(net().half().parameters()))
    check_eps(AdamW(net().bfloat16().parameters()))


def closures(name: str) -> Any:
    rank = dist.get_rank()
    model = net()
    optimizer = LBFGS(model.parameters(), lr=0.1, max_iter=4 + 3 * rank)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = model(torch.full((2, 3), 1.0 + rank)).square().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    try:
        with (
            Session(model, optimizer, name, per_node=2)
            if name == "hadpsgd"
            else (Session(model, optimizer, name)) as session
        ):
            for _ in range(3):
                optimizer.step(closure)  # type: ignore[arg-type]
                session.step()
            with session.consensus():
                model_ = [p.tolist() for p in model.parameters()]
            return model_, session.learner.updates
    except InputError as error:
        return str(error)


@pytest.mark.parametrize("name", ["allreduce", "hadpsgd", "d1d_grad"])
def test_lbfgs_is_refused_where_gradients_are_averaged(name: str) -> None:
    for message in launch(2, closures, name):
        assert f"{name} averages gradients" in message and "LBFGS" in message


@pytest.mark.parametrize("name", ["local_sgd", "adpsgd", "dpsgd"])
def test_lbfgs_is_right_where_models_are(name: str) -> None:
    first, second = launch(2, closures, name)
    assert first == second and first[1] == 3


def wrapped() -> list[str]:
    from torch.distributed.fsdp import fully_shard

    messages = []
    for wrap in (
        DistributedDataParallel,
        lambda m: nn.Sequential(DistributedDataParallel(m)),
        lambda m: fully_shard(m, mesh=dist.init_device_mesh("cpu", (2,))),
    ):
        model = wrap(net())
        with pytest.raises(InputError) as caught:
            Session(model, SGD(model.parameters(), lr=0.1), "local_sgd")
        messages.append(str(caught.value))
    return messages


def test_models_that_something_else_distributes_are_refused() -> None:
    for whole, part, sharded in launch(2, wrapped):
        assert whole.startswith("the model is wrapped in DistributedDataParallel")
        assert "pass model.module" in whole
        assert part.startswith("module '0' is wrapped in DistributedDataParallel")
        assert "DTensor" in sharded


class FullyShardedDataParallel(nn.Module):
    """Has the name of torch's, whose instances need an accelerator."""


def test_a_wrapper_that_shards_is_refused() -> None:
    model = nn.Sequential(nn.Linear(2, 2), FullyShardedDataParallel())
    with pytest.raises(InputError, match="module '1' is wrapped in FullySharded"):
        Session(model, SGD(model.parameters(), lr=0.1), "local_sgd")


def test_lazy_modules_are_refused() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.LazyBatchNorm1d())
    with pytest.raises(InputError, match="lazy modules"):
        Session(model, SGD(model[0].parameters(), lr=0.1), "local_sgd")


@pytest.mark.parametrize(
    ("name", "options", "size", "right"),
    [
        ("allreduce", {}, 2, True),
        ("d1d_grad", {}, 2, True),
        ("dpsgd", {}, 2, True),
        ("hadpsgd", {"per_node": 2}, 2, True),
        ("hadpsgd", {"per_node": 2}, 4, False),
        ("adasum", {}, 2, False),
        ("local_sgd", {}, 2, False),
        ("adpsgd", {}, 2, False),
        ("adpsgd", {}, 1, True),
    ],
)
def test_synchronised_norms_need_learners_that_step_together(
    name: str, options: dict[str, Any], size: int, right: bool
) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.SyncBatchNorm(2))
    learner = Learner(model, SGD(model.parameters(), lr=0.1), 0, size)
    algorithm = build(name, options, learner)
    check: Callable[[], None] = lambda: check_algorithm(name, algorithm, learner, model)  # noqa: E731
    if right:
        check()
    else:
        with pytest.raises(InputError, match="module '1' is a SyncBatchNorm"):
            check()


def test_a_session_before_its_process_group_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = net()
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InputError, match=r"WORLD_SIZE is 2.*init_process_group"):
        Session(model, SGD(model.parameters(), lr=0.1), "local_sgd")
    monkeypatch.setenv("WORLD_SIZE", "1")
    Session(model, SGD(model.parameters(), lr=0.1), "local_sgd").close()

"""Learners that do not train the same are told at once, all of them."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import SGD, Adam

from espnet_distopt.errors import InputError
from espnet_distopt.session import Session
from tests.processes import launch


class Net(nn.Module):
    def __init__(self, width: int = 4, buffer: Any = torch.zeros(2)) -> None:  # noqa: B008
        super().__init__()
        self.body = nn.Linear(3, width)
        self.head = nn.Linear(width, 1)
        self.register_buffer("seen", buffer)


def begin(model: nn.Module, name: str = "local_sgd", **options: Any) -> None:
    optimizer = options.pop("optimizer", None) or SGD(model.parameters(), lr=0.1)
    with Session(model, optimizer, name, **options):
        pass


def renamed(odd: bool) -> nn.Module:
    model = Net()
    if odd:
        model.tail, model.head = model.head, None  # type: ignore[assignment]
    return model


def optimized(make: Callable[[Net], Any]) -> None:
    model = Net()
    begin(model, optimizer=make(model))


def groups(model: Net) -> list[dict[str, Any]]:
    return [{"params": part.parameters()} for part in (model.body, model.head)]


KINDS = torch.float32, torch.int32
CASES: dict[str, tuple[Callable[[bool], None], str, str]] = {
    "shapes": (
        lambda odd: begin(Net(5 if odd else 4)),
        "parameter 'body.weight' is float32 (4, 3) in group 0",
        "(5, 3)",
    ),
    "dtypes": (
        lambda odd: begin(Net().to(torch.float64 if odd else torch.float32)),
        "'body.weight' is float32",
        "'body.weight' is float64",
    ),
    "names": (
        lambda odd: begin(renamed(odd)),
        "parameter 'head.weight' is",
        "parameter 'tail.weight' is",
    ),
    "groups": (
        lambda odd: optimized(lambda m: SGD(groups(m) if odd else m.parameters(), 0.1)),
        "'head.weight' is float32 (1, 4) in group 0",
        "in group 1",
    ),
    "orders": (
        lambda odd: optimized(lambda m: SGD([*m.parameters()][:: 1 - 2 * odd], 0.1)),
        "parameter 'body.weight' is",
        "parameter 'head.bias' is",
    ),
    "numbers": (
        lambda odd: optimized(lambda m: SGD((m.body if odd else m).parameters(), 0.1)),
        "parameter 'head.weight' is",
        "'head.weight', which is not trained, is",
    ),
    "more": (
        lambda odd: begin(nn.Sequential(Net(), nn.Linear(1, 1)) if odd else Net()),
        "has 5 parameters and buffers, learner 2 has 7",
        "learner 2 has 7 parameters",
    ),
    "algorithms": (
        lambda odd: begin(Net(), "adpsgd" if odd else "allreduce"),
        "the algorithm is allreduce",
        "the algorithm is adpsgd",
    ),
    "options": (
        lambda odd: begin(Net(), "local_sgd", period=4 if odd else 3),
        "option 'period' is 3, and not",
        "option 'period' is 4, and not",
    ),
    "optimizers": (
        lambda odd: optimized(lambda m: (SGD, Adam)[odd](m.parameters(), lr=0.1)),
        "the optimizer is SGD, and not",
        "the optimizer is Adam, and not",
    ),
    "momenta": (
        lambda odd: optimized(lambda m: SGD(m.parameters(), 0.1, 0.9 * odd)),
        "the optimizer is SGD, and not",
        "the optimizer is SGD with momentum",
    ),
    "rates": (lambda odd: optimized(lambda m: SGD(m.parameters(), 0.1 + odd)), "", ""),
    "buffers": (
        lambda odd: begin(Net(buffer=torch.zeros(2, dtype=KINDS[odd]))),
        "'seen', which is not trained, is float32 (2,)",
        "int32 (2,)",
    ),
    "equal": (lambda odd: begin(Net()), "", ""),
}
"""What each learner begins, and what learners 0 and 1 are told, and the odd one."""


def refusals() -> list[str]:
    """What each case says on this learner; the last one is odd."""
    rank, messages = dist.get_rank(), []
    for case, _, _ in CASES.values():
        try:
            case(rank == dist.get_world_size() - 1)
            messages.append("")
        except InputError as error:
            messages.append(str(error))
    return messages


def test_all_learners_are_told_what_differs_and_where() -> None:
    results = launch(3, refusals, timeout=100)
    for number, (case, (_, here, odd)) in enumerate(CASES.items()):
        messages = [result[number] for result in results]
        for rank, words in enumerate([here, here, odd]):
            assert words in messages[rank], case
            assert "\n" not in messages[rank]
            if words:
                other = "learner 0" if rank == 2 else "learner 2"
                assert f"learner {rank}" in messages[rank]
                assert other in messages[rank], case

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

Options = dict[str, Any]


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


def shapes(odd: bool) -> None:
    begin(Net(5 if odd else 4))


def dtypes(odd: bool) -> None:
    begin(Net().to(torch.float64 if odd else torch.float32))


def names(odd: bool) -> None:
    model = Net()
    if odd:
        model.tail, model.head = model.head, None  # type: ignore[assignment]
    begin(model)


def groups(odd: bool) -> None:
    model = Net()
    parts = [{"params": model.body.parameters()}, {"params": model.head.parameters()}]
    optimizer = SGD(parts if odd else model.parameters(), lr=0.1)  # type: ignore[arg-type]
    begin(model, optimizer=optimizer)


def orders(odd: bool) -> None:
    model = Net()
    parameters = list(model.parameters())
    begin(model, optimizer=SGD(parameters[::-1] if odd else parameters, lr=0.1))


def numbers(odd: bool) -> None:
    model = Net()
    begin(model, optimizer=SGD((model.body if odd else model).parameters(), lr=0.1))


def more(odd: bool) -> None:
    begin(nn.Sequential(Net(), nn.Linear(1, 1)) if odd else Net())


def algorithms(odd: bool) -> None:
    begin(Net(), "adpsgd" if odd else "allreduce")


def options(odd: bool) -> None:
    begin(Net(), "local_sgd", period=4 if odd else 3)


def optimizers(odd: bool) -> None:
    model = Net()
    kind: Any = Adam if odd else SGD
    begin(model, optimizer=kind(model.parameters(), lr=0.1))


def momenta(odd: bool) -> None:
    model = Net()
    momentum = 0.9 if odd else 0.0
    begin(model, optimizer=SGD(model.parameters(), lr=0.1, momentum=momentum))


def rates(odd: bool) -> None:
    model = Net()
    begin(model, optimizer=SGD(model.parameters(), lr=0.1 if odd else 0.2))


def buffers(odd: bool) -> None:
    begin(Net(buffer=torch.zeros(2, dtype=torch.int32) if odd else torch.zeros(2)))


def equal(odd: bool) -> None:
    begin(Net())


CASES = {
    shapes: ["parameter 'body.weight' is float32 (4, 3) in group 0", "(5, 3)"],
    dtypes: ["'body.weight' is float32", "'body.weight' is float64"],
    names: ["parameter 'head.weight' is", "parameter 'tail.weight' is"],
    groups: ["'head.weight' is float32 (1, 4) in group 0", "in group 1"],
    orders: ["parameter 'body.weight' is", "parameter 'head.bias' is"],
    numbers: ["parameter 'head.weight' is", "'head.weight', which is not trained, is"],
    more: [
        "has 5 parameters and buffers, learner 2 has 7",
        "learner 2 has 7 parameters",
    ],
    algorithms: ["the algorithm is allreduce", "the algorithm is adpsgd"],
    options: ["option 'period' is 3, and not", "option 'period' is 4, and not"],
    optimizers: ["the optimizer is SGD, and not", "the optimizer is Adam, and not"],
    momenta: ["the optimizer is SGD, and not", "the optimizer is SGD with momentum"],
    rates: ["", ""],
    buffers: ["'seen', which is not trained, is float32 (2,)", "int32 (2,)"],
    equal: ["", ""],
}


def refusals(cases: list[Callable[[bool], None]]) -> list[str]:
    """What each case says on this learner; the last one is odd."""
    rank, messages = dist.get_rank(), []
    for case in cases:
        try:
            case(rank == dist.get_world_size() - 1)
            messages.append("")
        except InputError as error:
            messages.append(str(error))
    return messages


def test_all_learners_are_told_what_differs_and_where() -> None:
    results = launch(3, refusals, list(CASES), timeout=100)
    for number, (case, (here, odd)) in enumerate(CASES.items()):
        messages = [result[number] for result in results]
        for rank, words in enumerate([here, here, odd]):
            assert words in messages[rank], case
            assert "\n" not in messages[rank]
            if words:
                other = "learner 0" if rank == 2 else "learner 2"
                assert f"learner {rank}" in messages[rank]
                assert other in messages[rank], case

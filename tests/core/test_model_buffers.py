"""What is not trained comes from learner 0, whatever its type and place in memory."""

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import SGD

from espnet_distopt.errors import InputError
from espnet_distopt.session import Session
from tests.processes import launch

DTYPES = [
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.int8,
    torch.uint8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint16,
    torch.bool,
    torch.complex64,
    torch.complex128,
]


def tensors(rank: int) -> dict[str, Tensor]:
    """What one learner begins with: other values on each."""
    values = torch.arange(1, 6) + 10.0 * rank
    found = {str(d): (values + rank).to(d) for d in DTYPES}
    found["bool"] = values % 2 == rank % 2
    found["scalar"] = torch.tensor(3 + rank, dtype=torch.int16)
    found["empty"] = torch.zeros(0)
    found["expanded"] = torch.tensor([[1.0 + rank], [5.0 + rank]]).expand(2, 3)
    found["one"] = torch.tensor(1.0 + rank).expand(4)
    found["transposed"] = (torch.arange(6.0).view(2, 3) + rank).t()
    found["column"] = torch.full((4, 3), float(rank))[:, 1]
    found["conjugated"] = torch.tensor([1 + 2j * (rank + 1)]).conj()
    return found


def begun() -> dict[str, list[list[float]]]:
    """Values after the session's start, and what lies around the column."""
    rank = dist.get_rank()
    model = nn.Linear(1, 1)
    for name, tensor in tensors(rank).items():
        model.register_buffer(name.replace(".", "_"), tensor)
    model.frozen = nn.Parameter(torch.full((3, 2), float(rank)).t(), False)
    optimizer = SGD(model.parameters(), lr=0.1)
    with Session(model, optimizer, "local_sgd"):
        pass
    found = {
        name: [
            t.to(torch.complex128).real.tolist(),
            t.to(torch.complex128).imag.tolist(),
        ]
        for name, t in model.named_buffers()
    }
    found["frozen"] = model.frozen.tolist()
    around = model.column.as_strided((12,), (1,), 0)  # type: ignore[operator]
    found["around"] = around.tolist()
    return found


def test_untrained_tensors_of_every_kind_begin_as_learner_0s() -> None:
    first, second = launch(2, begun)
    around = torch.ones(4, 3)
    around[:, 1] = 0
    assert second.pop("around") == around.flatten().tolist()
    first.pop("around")
    assert first == second
    for name, tensor in tensors(0).items():
        assert first[name.replace(".", "_")] == [
            tensor.to(torch.complex128).real.tolist(),
            tensor.to(torch.complex128).imag.tolist(),
        ]
    assert first["frozen"] == torch.zeros(2, 3).tolist()


@pytest.mark.parametrize(
    ("buffer", "words"),
    [
        (torch.eye(2).to_sparse(), "'buffer', which is not trained, is torch.sparse_c"),
        (torch.zeros(4).as_strided((3, 2), (1, 1)), "elements of 'buffer'.* share mem"),
        (torch.quantize_per_tensor(torch.zeros(2), 1, 0, torch.qint8), "is quantized"),
    ],
)
def test_what_cannot_be_sent_is_refused(buffer: Tensor, words: str) -> None:
    model = nn.Linear(1, 1)
    model.register_buffer("buffer", buffer)
    with pytest.raises(InputError, match=words):
        Session(model, SGD(model.parameters(), lr=0.1), "local_sgd")


def strided_statistics() -> list[list[float]]:
    rank = dist.get_rank()
    model = nn.BatchNorm1d(3)
    whole = torch.full((3, 2), float(rank))
    model.running_mean = whole[:, 0]
    with Session(model, SGD(model.parameters(), lr=0.1), "local_sgd") as session:
        model.running_mean.fill_(4.0 * rank)
        with session.consensus():
            return whole.tolist()


def test_strided_statistics_are_averaged_in_place() -> None:
    first, second = launch(2, strided_statistics)
    assert first == [[2.0, 0.0]] * 3
    assert second == [[2.0, 1.0]] * 3


def open_one_beside_another() -> tuple[list[float], list[float]]:
    """Return what one session has trained, before and after another one begins."""
    model = nn.ModuleList([nn.Linear(2, 1), nn.Linear(2, 1)])
    first, second = (SGD(part.parameters(), lr=0.1) for part in model)
    with Session(model, first, "local_sgd", period=100) as session:
        model[0](torch.full((1, 2), float(dist.get_rank()))).sum().backward()
        first.step()
        session.step()
        before = session.learner.params.tolist()
        with Session(model, second, "local_sgd"):
            return before, session.learner.params.tolist()


@pytest.mark.processes
def test_a_session_leaves_alone_what_another_one_trains() -> None:
    found = launch(2, open_one_beside_another)
    assert found[0][0] != found[1][0]
    for before, after in found:
        assert after == before

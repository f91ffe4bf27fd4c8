"""A state comes to the other end as it was, in containers of the same kinds."""

import socket
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from espnet_distopt.distributed.state_transfer import (
    check_sendable,
    frozen,
    receive_bytes,
    receive_state,
    send_state,
)
from espnet_distopt.errors import InputError


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    one, other = socket.socketpair()
    with one, other:
        yield one, other


def sent(ends: tuple[socket.socket, socket.socket], state: Any) -> Any:
    sender = threading.Thread(target=send_state, args=(ends[0], frozen(state)))
    sender.start()
    try:
        return receive_state(ends[1], lambda: None)
    finally:
        sender.join()


def test_tensors_of_all_shapes_and_types_arrive(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    tensors = [
        torch.randn(700, 1000),  # more than the kernel takes at once
        torch.randn(6, 5).t(),
        torch.tensor(3),
        torch.zeros(0, 4),
        torch.tensor([True, False]),
        torch.randn(5).to(torch.bfloat16),
        torch.arange(8)[::2],
    ]
    state = {"tensors": tensors, "betas": (0.9, 0.999), 7: [None, {"name": "x"}]}
    found = sent(ends, state)
    assert list(found) == ["tensors", "betas", 7]
    assert (found["betas"], found[7]) == ((0.9, 0.999), [None, {"name": "x"}])
    for before, after in zip(tensors, found["tensors"], strict=True):
        assert (before.dtype, before.shape) == (after.dtype, after.shape)
        assert torch.equal(before, after)
        after.fill_(0)  # It has memory of its own.


def test_what_is_frozen_does_not_follow_the_training() -> None:
    params = torch.ones(3)
    copy = frozen({"params": params, "steps": 1})
    params.add_(1)
    assert copy["params"].tolist() == [1, 1, 1]


def test_an_end_that_is_closed_is_an_error(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    ends[0].sendall(b"half")
    ends[0].close()
    with pytest.raises(ConnectionResetError, match="has closed the connection"):
        receive_bytes(ends[1], 8)


def test_a_wait_for_the_other_end_may_become_pointless(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    class PointlessError(Exception):
        pass

    def check() -> None:
        raise PointlessError

    ends[1].settimeout(0.05)
    with pytest.raises(PointlessError):
        receive_state(ends[1], check)
    with pytest.raises(TimeoutError):
        receive_bytes(ends[1], 8)


class Range(NamedTuple):
    """A namedtuple takes its elements one by one."""

    low: float
    high: float


def test_a_namedtuple_is_copied_as_one() -> None:
    assert frozen({"range": Range(0.0, 1.0)}) == {"range": Range(0.0, 1.0)}


def test_plain_states_can_be_sent() -> None:
    check_sendable({"a": [torch.ones(3), (1, "b", None)], 2: 0.5}, "it")


@pytest.mark.parametrize("value", [np.float64(1), lambda: 1, Range(0.0, 1.0)])
def test_what_cannot_be_read_at_the_other_end_is_refused_at_the_start(
    value: Any,
) -> None:
    with pytest.raises(InputError, match="it cannot be sent to a learner that repl"):
        check_sendable({"value": value}, "it")

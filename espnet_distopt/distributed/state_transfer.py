"""The state of a learner on its way to another: containers, with tensors in them.

The containers go first, by `torch.save`, with a stand-in for each tensor: it has the
tensor's shape and type, and a single element in memory. The bytes of the tensors
follow in their order, from memory to the kernel and back, without another copy: a model
of 35 million parameters and Adam's moments of it are 420 MB.
"""

import io
import socket
import struct
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from espnet_distopt.distributed.channel import memory_of
from espnet_distopt.errors import InputError, in_words

CHUNK = 1 << 22
"""Bytes that are sent within the connection's time limit, or it is broken."""

_SIZE = struct.Struct("<Q")

State = Any
"""Tensors, numbers, strings, lists, tuples and dicts."""


def check_sendable(state: State, whose: str) -> None:
    """Raise InputError if a state cannot be sent, or cannot be read at the other end.

    Its tensors take no time. `whose` says what the state is of, for the message.
    """
    buffer = io.BytesIO()
    try:
        torch.save(_mapped(lambda tensor: tensor.new_zeros(()), state), buffer)
        torch.load(io.BytesIO(buffer.getvalue()), weights_only=True)
    except Exception as error:
        raise InputError(
            f"{whose} cannot be sent to a learner that replaces another one: keep "
            "tensors, numbers, strings, lists, tuples and dicts in it "
            f"({in_words(error)})"
        ) from None


def frozen(state: State) -> State:
    """Return a copy of a state, on the CPU. Cost: a pass over its tensors."""

    def copied(tensor: Tensor) -> Tensor:
        return tensor.detach().to("cpu", copy=True).contiguous()

    return _mapped(copied, state)


def send_state(connection: socket.socket, state: State) -> None:
    """Send a frozen state.

    Raises:
        OSError: the connection is broken, or a chunk has taken too long.
    """
    tensors: list[Tensor] = []

    def stand_in(tensor: Tensor) -> Tensor:
        tensors.append(tensor)
        return tensor.new_zeros(()).expand(tensor.shape)

    buffer = io.BytesIO()
    torch.save(_mapped(stand_in, state), buffer)
    containers = buffer.getbuffer()
    connection.sendall(_SIZE.pack(len(containers)))
    for sent in (containers, *map(memory_of, tensors)):
        for start in range(0, len(sent), CHUNK):
            connection.sendall(sent[start : start + CHUNK])


def receive_state(connection: socket.socket, check: Callable[[], None]) -> State:
    """Return the state that the other end sends; arguments as for `receive_bytes`.

    Raises:
        OSError: the other end has closed the connection.
    """

    def receive(tensor: Tensor) -> Tensor:
        received = torch.empty(tensor.shape, dtype=tensor.dtype)
        _receive_into(connection, memory_of(received), check)
        return received

    (size,) = _SIZE.unpack(receive_bytes(connection, _SIZE.size, check))
    containers = io.BytesIO(receive_bytes(connection, size, check))
    return _mapped(receive, torch.load(containers, weights_only=True))


def receive_bytes(
    connection: socket.socket, size: int, check: Callable[[], None] | None = None
) -> bytearray:
    """Return `size` bytes of a connection that has a time limit.

    Whenever nothing has come for so long, `check` is called, which may raise; if it is
    None, that is an error.

    Raises:
        OSError: the other end has closed the connection, or is too slow.
    """
    received = bytearray(size)
    _receive_into(connection, memoryview(received), check)
    return received


def _receive_into(
    connection: socket.socket, left: memoryview, check: Callable[[], None] | None
) -> None:
    while left:
        try:
            count = connection.recv_into(left)
        except TimeoutError:
            if check is None:
                raise
            check()
            continue
        if count == 0:
            raise ConnectionResetError("the other end has closed the connection")
        left = left[count:]


def _mapped(change: Callable[[Tensor], Tensor], state: State) -> State:
    """Return a state whose tensors are changed, one after the other."""
    match state:
        case Tensor():
            return change(state)
        case dict():
            return {key: _mapped(change, value) for key, value in state.items()}
        case list() | tuple():
            elements = [_mapped(change, each) for each in state]
            named = hasattr(state, "_fields")  # A namedtuple takes them one by one.
            return type(state)(*elements) if named else type(state)(elements)
        case _:
            return state

"""The port at which a process is asked for, without a heartbeat."""

import socket
from collections.abc import Iterator

import pytest
import torch.distributed as dist

from espnet_distopt.distributed.addresses import BACKLOG, reachable, refuses
from espnet_distopt.distributed.bell import Bell


@pytest.fixture
def bell() -> Iterator[Bell]:
    bell = Bell(dist.HashStore())
    yield bell
    bell.close()


def test_who_has_rung_is_let_go(bell: Bell) -> None:
    with socket.create_connection(reachable(bell.address), 5) as ringing:
        bell.answer()
        assert ringing.recv(1) == b""


def test_it_answers_however_often_it_was_rung(bell: Bell) -> None:
    for _ in range(3):
        for _ in range(BACKLOG // 2):
            assert not refuses(bell.address, 5)
        bell.answer()
    socket.create_connection(reachable(bell.address), 5).close()


def test_it_refuses_once_it_is_closed(bell: Bell) -> None:
    bell.close()
    assert refuses(bell.address, 5)

"""Groups of NCCL are aborted; a stand-in for torch's, as no GPU is needed for that."""

import logging
import os
import signal
import threading
from datetime import timedelta
from typing import Any, ClassVar, cast

import pytest
import torch
import torch.distributed as dist
from processes import launch

from espnet_distopt import Session
from espnet_distopt.core.membership import Members
from espnet_distopt.distributed import groups
from espnet_distopt.distributed.collectives import _poll
from espnet_distopt.distributed.connections import Connections
from espnet_distopt.distributed.groups import Made
from espnet_distopt.distributed.nccl import NcclGroup, advice, advised
from espnet_distopt.distributed.process_group import ProcessGroupDriver
from espnet_distopt.errors import InputError

DEVICE = torch.device("cuda", 0)
VARIABLE = "TORCH_NCCL_BLOCKING_WAIT"


class Work:
    """An operation that only an abort ends."""

    def __init__(self, ended: threading.Event) -> None:
        self._ended = ended
        self.synchronized = 0

    def is_completed(self) -> bool:
        return self._ended.is_set()

    def synchronize(self) -> None:
        self.synchronized += 1

    def wait(self) -> None:
        raise AssertionError("the aborted operation was taken for a complete one")


class Backend:
    """What `NcclGroup` calls of `ProcessGroupNCCL`."""

    class Options:
        _timeout = timedelta()

    made: ClassVar[list[Any]] = []

    def __init__(self, store: Any, rank: int, size: int, options: Options) -> None:
        self.told: list[Any] = [os.environ.get(VARIABLE)]
        self.ended = threading.Event()
        self.made.append(self)

    def eager_connect_single_device(self, device: torch.device) -> None:
        self.told.append(device)

    def allreduce(self, tensors: list[torch.Tensor]) -> Work:
        return Work(self.ended)

    def abort(self) -> None:
        self.told.append("abort")
        self.ended.set()

    def shutdown(self) -> None:
        self.told.append("shutdown")


class TwoOnOneGpu(Backend):
    def eager_connect_single_device(self, device: torch.device) -> None:
        raise RuntimeError(
            "NCCL error: invalid usage\nLast error:\nDuplicate GPU detected : rank 1 "
            "and rank 0 both on CUDA device 9000"
        )


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> type[Backend]:
    monkeypatch.setattr(dist, "ProcessGroupNCCL", Backend, raising=False)
    monkeypatch.setattr(Backend, "made", [])
    return Backend


def group(limit: float = 60) -> tuple[NcclGroup, Backend]:
    made = NcclGroup(None, 0, 2, DEVICE, timedelta(seconds=limit))
    return made, Backend.made[-1]


def hope() -> None:
    """Say that no wait is in vain."""


@pytest.mark.parametrize("before", [None, "0"])
def test_torch_does_not_watch_over_a_group(
    before: str | None, backend: type[Backend], monkeypatch: pytest.MonkeyPatch
) -> None:
    if before is None:
        monkeypatch.delenv(VARIABLE, raising=False)
    else:
        monkeypatch.setenv(VARIABLE, before)
    assert group()[1].told == ["1", DEVICE]
    assert os.environ.get(VARIABLE) == before


def test_an_aborted_operation_is_not_taken_for_a_complete_one(
    backend: type[Backend],
) -> None:
    made, told = group()
    operation = made.allreduce([])
    assert not operation.is_completed()
    threading.Timer(0.2, made.sever).start()
    with pytest.raises(RuntimeError, match="aborted its operations of NCCL"):
        _poll(operation, hope)
    with pytest.raises(RuntimeError, match="aborted"):
        made.allreduce([])
    made.abort()
    made.end(well=True)
    assert told.told[2:] == ["abort"], "once"
    assert cast(Any, operation)._work.synchronized, "the stream waits for its end"


def test_an_operation_has_a_time_limit(backend: type[Backend]) -> None:
    made, _ = group(limit=0.1)
    with pytest.raises(RuntimeError, match="NCCL has timed out after"):
        _poll(made.allreduce([]), hope)


@pytest.mark.parametrize(("well", "ends"), [(True, "shutdown"), (False, "abort")])
def test_a_group_ends_as_its_session(
    well: bool, ends: str, backend: type[Backend]
) -> None:
    made, told = group()
    groups._destroy([Made(made, Connections(), left=well)])
    assert told.told[2:] == [ends]


def test_two_learners_on_a_gpu_are_told_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dist, "ProcessGroupNCCL", TwoOnOneGpu, raising=False)
    with pytest.raises(InputError, match=r"a GPU for each.*--dist_backend gloo"):
        group()


class OnGpu:
    is_cuda = True
    device = DEVICE


def lose_one() -> list[str]:
    """Learner 1 dies; the others' groups of NCCL with it are aborted, and no others."""
    dist.ProcessGroupNCCL = Backend  # type: ignore[misc, assignment]
    driver = ProcessGroupDriver(silence=3)
    groups: Any = driver._groups
    driver.survive(lambda rank: [rank], lambda members: None)
    groups._nccl = True
    tensor, everybody = OnGpu(), Members.everybody(3)
    first = groups.among(everybody, "first", tensor, hope)
    assert groups.among(everybody, "second", tensor, hope) is first
    beside: Any = groups.of((0, 2), tensor) if driver.rank != 1 else None
    driver._watch.store.add("ready", 1)
    if driver.rank == 1:
        driver._watch.store.wait(["0 waits", "2 waits"])
        os.kill(os.getpid(), signal.SIGKILL)
    operation = first.allreduce([])
    driver._watch.store.set(f"{driver.rank} waits", "1")
    found = []
    try:
        _poll(operation, hope)  # The abort, not the look at who lives, ends it.
    except RuntimeError as error:
        found.append(str(error))
    groups.drop(everybody)
    assert not beside.aborted
    living = driver.members
    assert living.ranks == (0, 2)
    third = groups.among(living, "third", tensor, hope)
    found += [type(first).__name__, type(third).__name__]
    for made in Backend.made:
        found.append(str(made.told[2:]))
    driver.leave()
    return found


@pytest.mark.processes
def test_groups_that_have_lost_a_member_are_aborted() -> None:
    found = launch(3, lose_one, dying=[1])
    for rank in (0, 2):
        said, *kinds = found[rank]
        assert "aborted" in said
        assert kinds == ["NcclGroup", "ProcessGroupGloo", "['abort']", "[]"]


_ERROR = (
    "NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:94, {}, NCCL "
    "version 2.27.5\nncclInvalidUsage: This usually reflects invalid usage of NCCL "
    "library.\nLast error:\n{}"
)
DUPLICATE = _ERROR.format(
    "invalid usage (run with NCCL_DEBUG=WARN for details)",
    "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 65000",
)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (DUPLICATE, "--share_gpu true or gloo (--dist_backend gloo"),
        (
            "ProcessGroupNCCL is only supported with GPUs, no GPUs found!",
            "look at nvidia-smi",
        ),
        ("CUDA error: invalid device ordinal\nGPU device", "look at nvidia-smi"),
        (
            _ERROR.format(
                "remote process exited or there was a network error",
                "socketStartConnect: Connect to 127.0.1.1<51011> failed : Connection "
                "refused",
            ),
            "set NCCL_SOCKET_IFNAME",
        ),
        (
            "socketPollConnect: connect to 33.8.28.51<18001> returned Connection timed "
            "out",
            "set NCCL_SOCKET_IFNAME",
        ),
        ("Bootstrap : no socket interface found", "set NCCL_SOCKET_IFNAME"),
    ],
)
def test_what_to_do_is_one_line_that_has_what_nccl_said(text: str, said: str) -> None:
    line = advice(text)
    assert line is not None and said in line
    assert "\n" not in line
    assert line.rpartition("NCCL said: ")[2] in text


@pytest.mark.parametrize(
    "text",
    [
        "NCCL communicator was aborted on rank 1.",
        "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1)",
        "CUDA out of memory. Tried to allocate 2.00 GiB",
        "Connection closed by peer [127.0.0.1]:36514",
        "",
    ],
)
def test_of_other_errors_nothing_is_said(text: str) -> None:
    assert advice(text) is None
    with pytest.raises(RuntimeError, match=r"^x"), advised():
        raise RuntimeError(f"x{text}")


def test_nccls_own_error_stays_the_cause_and_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    with pytest.raises(InputError, match="a GPU for each") as caught, advised():
        raise RuntimeError(DUPLICATE)
    assert str(caught.value.__cause__) == DUPLICATE
    assert DUPLICATE in caplog.messages


def test_a_session_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError(f"learner 1: an all-reduce has failed: {DUPLICATE}")

    monkeypatch.setattr(ProcessGroupDriver, "run", fail)
    model = torch.nn.Linear(2, 1)
    with pytest.raises(InputError, match="a GPU for each"):
        Session(model, torch.optim.SGD(model.parameters(), lr=0.1), "bmuf")

"""What is said of NCCL's failures, by its messages of versions 2.18 to 2.27."""

import logging

import pytest
import torch

from espnet_distopt import Session
from espnet_distopt.distributed.nccl import advice, advised
from espnet_distopt.distributed.process_group import ProcessGroupDriver
from espnet_distopt.errors import InputError

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

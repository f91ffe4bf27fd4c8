"""The order of both sides on a GPU, with stand-ins for CUDA's streams and events."""

import contextlib
from collections.abc import Generator
from typing import Any

import pytest
import torch

from espnet_distopt.distributed.streams import Streams


class Stream:
    """A stream: what it has to do, and the state of each event that it waits for."""

    def __init__(self, device: object = None) -> None:
        self.work: list[Any] = []

    def wait_event(self, event: "Event") -> None:
        self.work.append(("wait", event.of))


class Event:
    """An event: the work of its stream when it was recorded last, None for never."""

    def __init__(self) -> None:
        self.of: list[Any] | None = None

    def record(self, stream: Stream) -> None:
        self.of = list(stream.work)


@pytest.fixture
def training(monkeypatch: pytest.MonkeyPatch) -> Stream:
    """The current stream of the training thread."""
    found, current = Stream(), []

    @contextlib.contextmanager
    def use(stream: Stream) -> Generator[None, None, None]:
        current.append(stream)
        yield
        current.pop()

    cuda = torch.cuda
    monkeypatch.setattr(cuda, "Stream", Stream)
    monkeypatch.setattr(cuda, "Event", Event)
    monkeypatch.setattr(cuda, "stream", use)
    monkeypatch.setattr(cuda, "device", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(
        cuda, "current_stream", lambda *_: current[-1] if current else found
    )
    return found


def now() -> Stream:
    found: Any = torch.cuda.current_stream()
    return found  # type: ignore[no-any-return]


def test_each_side_waits_for_the_last_section_of_the_other(training: Stream) -> None:
    training.work.append("layers")
    streams = Streams(torch.device("cuda", 0))
    with streams.training_section():
        now().work.append("publish")
    training.work.append("more layers")
    with streams.beside():
        side = now()
        assert side is not training
        with streams.gossip_section():
            now().work.append("begin")
        side.work.append("copy to the host")
        with streams.gossip_section():
            now().work.append("hand over")
        side.work.append("the next copy")
    with streams.training_section():
        now().work.append("apply")
    nothing = ("wait", None)
    published = ["layers", nothing, "publish"]
    begun = [("wait", published), "begin"]
    handed_over = [*begun, "copy to the host", ("wait", published), "hand over"]
    assert side.work == [*handed_over, "the next copy"]
    assert training.work == [*published, "more layers", ("wait", handed_over), "apply"]


def test_the_gossips_first_section_comes_after_what_was_begun_before(
    training: Stream,
) -> None:
    training.work.append("layers")
    streams = Streams(torch.device("cuda", 0))
    with streams.beside(), streams.gossip_section():
        assert now().work == [("wait", ["layers"])]


def test_a_section_that_fails_is_recorded(training: Stream) -> None:
    streams = Streams(torch.device("cuda", 0))
    with pytest.raises(ValueError, match="wrong"), streams.training_section():
        now().work.append("half")
        raise ValueError("wrong")
    with streams.beside(), streams.gossip_section():
        assert now().work == [("wait", [("wait", None), "half"])]


def test_a_cpu_needs_no_order(training: Stream) -> None:
    streams = Streams(torch.device("cpu"))
    with streams.training_section(), streams.beside(), streams.gossip_section():
        assert now() is training
    assert not training.work

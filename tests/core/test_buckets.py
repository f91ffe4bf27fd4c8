"""Buckets of gradients are gathered in their order, within the backward pass."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD

from espnet_distopt.core.learner import Learner
from espnet_distopt.errors import InputError


class Layers(nn.Module):
    """Three layers in a row, and one that is used on demand."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(2, 2) for _ in range(3))
        self.rare = nn.Linear(2, 2)
        self.seen: Callable[[], None] = lambda: None

    def forward(self, x: Tensor, rare: bool = False) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
            if x.requires_grad:
                x.register_hook(lambda _: self.seen())
        return self.rare(x) if rare else x


class Watched:
    """A learner that notes what it is told within a backward pass."""

    def __init__(self, bucket: int | None, room: int = 0) -> None:
        self.model = Layers()
        self.learner = Learner(self.model, SGD(self.model.parameters(), lr=0.1))
        self.learner.reserve(room, bucket, bucket)
        self.told: list[str] = []
        self.gathered: list[Tensor] = []
        self.model.seen = lambda: self.told.append("layer")
        self.learner.watch_backward(self.done, self.bucket_done)

    def done(self) -> None:
        self.told.append("done")

    def bucket_done(self, number: int) -> None:
        self.told.append(f"bucket {number}")
        bucket = self.learner.buckets[number]
        self.gathered.append(bucket.of(self.learner.gradient_buffer).clone())

    def backward(self, rare: bool) -> None:
        self.model(torch.ones(1, 2), rare).sum().backward()


LAYER = 6 * 4
"""The bytes of a layer's parameters."""


def test_buckets_hold_whole_parameters_from_the_last_to_the_first() -> None:
    learner = Watched(LAYER, room=5).learner
    assert [b.parameters for b in learner.buckets] == [
        range(6, 8),
        range(4, 6),
        range(2, 4),
        range(0, 2),
    ]
    assert [(b.start, b.stop) for b in learner.buckets] == [
        (23, 29),
        (17, 23),
        (11, 17),
        (0, 11),  # with the room before the gradients
    ]
    (whole,) = Watched(None, room=5).learner.buckets
    assert (whole.parameters, whole.start, whole.stop) == (range(8), 0, 29)


def test_a_bucket_is_gathered_while_the_pass_goes_on() -> None:
    watched = Watched(LAYER)
    watched.backward(rare=True)
    assert watched.told == [
        *("layer", "bucket 0", "layer", "bucket 1", "layer", "bucket 2", "done"),
    ] or watched.told == [
        *("bucket 0", "layer", "bucket 1", "layer", "bucket 2", "layer", "done"),
    ]
    together = torch.cat([*reversed(watched.gathered)])
    assert watched.learner.grads is not None
    assert torch.equal(together, watched.learner.grads[6:])


def test_a_bucket_waits_for_those_before_it() -> None:
    watched = Watched(LAYER)
    watched.backward(rare=False)  # The first bucket is never complete.
    assert watched.told == [*["layer"] * 3, "bucket 0", "bucket 1", "bucket 2", "done"]
    assert watched.learner.used == [True] * 6 + [False] * 2
    assert torch.equal(watched.gathered[0], torch.zeros(6))


def test_a_pass_that_fails_leaves_nothing_for_the_next() -> None:
    watched = Watched(LAYER)

    def fail() -> None:
        if "bucket 0" in watched.told:
            raise RuntimeError("out of memory")

    watched.model.seen = fail
    with pytest.raises(RuntimeError, match="out of memory"):
        watched.backward(rare=True)
    watched.told.clear()
    watched.model.seen = lambda: None
    watched.backward(rare=True)
    assert watched.told == ["bucket 0", "bucket 1", "bucket 2", "done"]


def test_a_parameter_that_was_updated_within_the_pass_is_named() -> None:
    watched = Watched(LAYER)
    weight = watched.model.layers[2].weight

    def step(parameter: Tensor) -> None:
        with torch.no_grad():
            parameter.sub_(0.1)

    weight.register_post_accumulate_grad_hook(step)
    with pytest.raises(InputError, match=r"'layers\.2\.weight' was updated"):
        watched.backward(rare=True)

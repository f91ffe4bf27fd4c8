"""Parts of the model that end blocks in turn (docs/algorithms/block.md, FR1 to FR4)."""

from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.optim import SGD, Adam

from espnet_distopt.algorithms import ALGORITHMS, check
from espnet_distopt.algorithms.block.bmuf import Bmuf
from espnet_distopt.algorithms.block.part import cut
from espnet_distopt.core.learner import Learner
from espnet_distopt.errors import InputError
from tests.replicas import Replica, end, run, several

NAMES = [
    name for name, entry in ALGORITHMS.items() if hasattr(entry.config, "fragments")
]
SIZES = [5, 1, 3, 2, 4, 1, 6]
LEARNERS, PERIOD, STEPS = 3, 6, 17
ADAM = partial(Adam, lr=0.1, betas=(0.9, 0.99))
MOMENTUM = partial(SGD, lr=0.1, momentum=0.9)


class Several(nn.Module):
    """A model of several vectors."""

    def __init__(
        self, sizes: list[int], first: int = 0, dtype: torch.dtype = torch.float64
    ) -> None:
        super().__init__()
        values = torch.arange(first, first + sum(sizes), dtype=dtype).cos()
        self.parts = nn.ParameterList(part.clone() for part in values.split(sizes))


def gradients(rank: int, steps: int = 60) -> torch.Tensor:
    source = torch.Generator().manual_seed(rank)
    return torch.randn(steps, sum(SIZES), generator=source, dtype=torch.float64)


def replicas(
    name: str,
    make: Any = ADAM,
    place: slice = slice(None),
    sizes: list[int] = SIZES,
    **options: Any,
) -> list[Replica]:
    first = place.start or 0
    return several(name, lambda: Several(sizes, first), make, LEARNERS, **options)


def train(
    found: list[Replica], first: int, stop: int, place: slice = slice(None)
) -> None:
    def steps(replica: Replica) -> Any:
        for gradient in gradients(replica.learner.rank)[first:stop, place]:
            yield from replica.step(gradient.tolist())

    run(*(steps(replica) for replica in found))


def bmuf_of(replica: Replica) -> Bmuf:
    assert isinstance(replica.algorithm, Bmuf)
    return replica.algorithm


@given(st.lists(st.integers(1, 30), min_size=1, max_size=12), st.data())
def test_a_cut_covers_all_parameters_as_equally_as_can_be(
    sizes: list[int], data: st.DataObject
) -> None:
    model = Several(sizes)
    learner = Learner(model, SGD(model.parameters(), lr=0.1))
    count = data.draw(st.integers(1, len(sizes)))
    parts = cut(learner, count)
    assert len(parts) == count
    assert [p for part in parts for p in part.parameters] == learner.parameters
    end = 0
    for part in parts:
        assert part.place.start == end
        end = part.place.stop
        assert part.params.data_ptr() == learner.params[part.place].data_ptr()
        for parameter, slot in zip(part.parameters, part.slots, strict=True):
            assert slot.of(part.params).data_ptr() == parameter.data_ptr()
    assert end == learner.params.numel()
    # A boundary that is where equal parts have it is never more than a parameter away.
    assert max(len(part.params) for part in parts) < end / count + 2 * max(sizes)


@pytest.mark.parametrize("make", [ADAM, MOMENTUM])
@pytest.mark.parametrize("exchange", ["float32", "bfloat16"])
@pytest.mark.parametrize("delay", [0, 1])
@pytest.mark.parametrize("name", NAMES)
def test_each_fragment_trains_as_if_it_were_alone(
    name: str, delay: int, exchange: str, make: Any
) -> None:
    """Given gradients: a model of these parameters, whose first block is shorter."""
    options = {"period": PERIOD, "delay": delay, "exchange": exchange}
    whole = replicas(name, make, fragments=3, **options)
    train(whole, 0, STEPS)
    end(whole)
    train(whole, STEPS, 2 * STEPS)
    end(whole)
    # An epoch of 17 steps has 8 turns, and the 3 at its end: the next one begins with
    # the third fragment. 8 and 3 more end with the second one.
    assert bmuf_of(whole[0])._turn == 22 % 3
    for number, fragment in enumerate(bmuf_of(whole[0]).fragments):
        sizes = [len(p) for p in cut(whole[0].learner, 3)[number].parameters]
        alone = replicas(name, make, fragment.place, sizes, **options)
        for epoch in range(2):
            waits = (number - 11 * epoch) % 3
            for replica in alone:
                bmuf_of(replica).fragments[0].steps = PERIOD - 2 * (waits + 1)
            train(alone, STEPS * epoch, STEPS * (epoch + 1), fragment.place)
            end(alone)
        for mine, theirs in zip(whole, alone, strict=True):
            torch.testing.assert_close(
                mine.learner.params[fragment.place],
                theirs.learner.params,
                rtol=1e-12,
                atol=1e-12,
            )
            part = cut(mine.learner, 3)[number].parameters
            for a, b in zip(part, theirs.learner.parameters, strict=True):
                assert len(a) == len(b)
                for key, value in theirs.optimizer.state[b].items():
                    torch.testing.assert_close(
                        mine.optimizer.state[a][key], value, rtol=1e-6, atol=1e-9
                    )


def test_between_epochs_the_blocks_of_fragments_differ() -> None:
    """Each has been averaged at another step, so that no two have the same changes."""
    found = replicas("local_sgd", partial(SGD, lr=1.0), period=6, fragments=3)
    train(found, 0, 4)
    equal = [
        all(
            torch.equal(r.learner.params[f.place], found[0].learner.params[f.place])
            for r in found
        )
        for f in bmuf_of(found[0]).fragments
    ]
    assert equal == [False, True, False]
    steps = [f.steps for f in bmuf_of(found[0]).fragments]
    assert steps == [2, 0, 4]


def test_other_fragments_are_refused_when_a_run_is_resumed() -> None:
    state = replicas("bmuf", period=6, fragments=3)[0].algorithm.state_dict()
    with pytest.raises(InputError, match="saved with fragments: 3; resume with"):
        replicas("bmuf", period=6, fragments=2)[0].algorithm.load_state_dict(state)


@pytest.mark.parametrize(
    ("name", "moments"), [("local_sgd", 1), ("bmuf_adam", 3), ("diloco", 1)]
)
def test_a_delay_needs_two_copies_of_one_fragment(name: str, moments: int) -> None:
    (replica, *_) = found = replicas(name, period=6, delay=1, fragments=3)
    train(found, 0, STEPS)
    algorithm: Any = replica.algorithm
    largest = max(len(f.params) for f in algorithm.fragments)
    kept = [*algorithm._late._own.values(), *algorithm._late._shared.values()]
    assert [len(tensor) for tensor in kept] == [largest] * 2 * moments


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"period": 6, "fragments": 4}, "must divide period, which is 6, and 4"),
        ({"period": 6, "fragments": 0}, "must divide period, which is 6, and 0"),
        ({"period": 6, "fragments": -2}, "must divide period, which is 6, and -2"),
        (
            {"period": 6, "fragments": 3, "delay": 2},
            r"\[0, period / 3 fragments\), that is at most 1, not 2",
        ),
    ],
)
def test_fragments_that_do_not_fit_the_period(
    options: dict[str, int], words: str
) -> None:
    with pytest.raises(InputError, match=words):
        check("bmuf", options, LEARNERS)


def test_more_fragments_than_parameters() -> None:
    with pytest.raises(InputError, match=r"fragments: 8 needs .* the model has 7"):
        replicas("bmuf", period=8, fragments=8)

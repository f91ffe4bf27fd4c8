"""The iterator that ESPnet's loop reads, and what ends an epoch."""

import contextlib
from collections.abc import Generator, Iterable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from espnet2.lm.espnet_model import ESPnetLanguageModel
from espnet2.lm.seq_rnn_lm import SequentialRNNLM
from espnet2.train.reporter import SubReporter

from espnet_distopt.espnet.training.batches import Batch
from espnet_distopt.espnet.training.epoch import Epoch, nobody_stepped
from espnet_distopt.espnet.training.saving import Position


class Session:
    """A session that records what is asked of it."""

    def __init__(self) -> None:
        self.driver = SimpleNamespace(spent={}, members=None)
        self.events: list[Any] = []
        self.weights: list[float] = []

    @contextlib.contextmanager
    def no_sync(self) -> Generator[None, None, None]:
        self.events.append("(")
        yield
        self.events.append(")")

    def begin_batch(self, weight: float) -> None:
        self.weights.append(weight)

    def step(self) -> None:
        self.events.append("step")

    def metrics(self) -> dict[str, float]:
        return {}

    def agree_to_stop(self) -> bool:
        return False


def recorded(
    batches: Iterable[Batch], accum_grad: int, trained: int = 0
) -> tuple[Epoch, Session]:
    """Return an epoch of these batches, and the session that records it."""
    session = Session()
    run: Any = SimpleNamespace(
        options=SimpleNamespace(accum_grad=accum_grad, distopt="bmuf"),
        progress=SimpleNamespace(samples=0, batches=0, step=lambda *_: None),
        stop_signal=None,
        session=session,
        follow=lambda: None,
    )
    reporter = SubReporter("train", 1, 0)
    epoch = Epoch(run, torch.nn.Module(), reporter, [None], [None], None)
    epoch.start, epoch.left = Position(batches=trained), batches
    return epoch, session


def test_gradients_of_all_but_a_steps_last_batch_are_accumulated() -> None:
    batches = [([f"utterance {n}"], {}) for n in range(7)]
    epoch, session = recorded(batches, accum_grad=3)
    for names, _ in epoch:
        session.events += names
    assert session.events == [
        *("(", "utterance 0", ")"),
        *("(", "utterance 1", ")"),
        "utterance 2",
        "step",
        *("(", "utterance 3", ")"),
        *("(", "utterance 4", ")"),
        "utterance 5",
        "step",
        *("(", "utterance 6", ")"),
    ]


def test_steps_are_those_of_espnets_loop_where_an_epoch_is_resumed() -> None:
    # The run before had another accum_grad, and has stopped after five batches.
    batches = [(["an utterance"], {})] * 3
    epoch, session = recorded(batches, accum_grad=2, trained=5)
    for _ in epoch:
        pass
    assert session.events == ["(", ")", "step", "(", ")"]


def test_a_batch_of_speech_weighs_as_many_as_its_utterances() -> None:
    tensors = {"speech": torch.zeros(3, 9), "text": torch.zeros(3, 2)}
    epoch, session = recorded([(["a", "b", "c"], tensors), (["d"], {})], accum_grad=1)
    assert len(list(epoch)) == len(epoch) == 2
    assert session.weights == [3, 1]


def test_a_batch_of_text_weighs_what_the_language_model_says() -> None:
    model = ESPnetLanguageModel(SequentialRNNLM(vocab_size=9, unit=4), vocab_size=9)
    text = torch.randint(1, 8, (3, 5))
    batch = {"text": text, "text_lengths": torch.tensor([5, 2, 3])}
    *_, weight = model(**batch)
    epoch, session = recorded([(["a", "b", "c"], batch)], accum_grad=1)
    assert len(list(epoch)) == 1
    assert session.weights == [int(weight)] == [13]


@pytest.mark.parametrize(
    ("learners", "stops"),
    [
        ([(True, True), (True, True)], False),
        ([(True, False), (True, True)], False),
        ([(True, False), (True, False)], True),
        # The loop of a learner without a batch has had no valid step, either.
        ([(True, False), (False, False)], True),
        ([(True, True), (False, False)], False),
        ([(False, False), (False, False)], False),
    ],
)
def test_a_training_ends_once_no_learner_has_a_valid_step(
    learners: list[tuple[bool, bool]], stops: bool
) -> None:
    """Gradients that are not finite must not go on for ever where data is short."""
    had = sum(trained for trained, _ in learners) / len(learners)
    valid = sum(trained and ok for trained, ok in learners) / len(learners)
    for trained, ok in learners:
        asked: list[float] = []

        def mean(number: float, asked: list[float] = asked) -> float:
            asked.append(number)
            return (had, valid)[len(asked) - 1]

        assert nobody_stepped(mean, trained, ok) == stops
        assert asked == [float(trained), float(trained and ok)][: len(asked)]
        assert len(asked) == (2 if had else 1)

"""The batch iterator that ESPnet's loop reads."""

import contextlib
from collections.abc import Generator
from types import SimpleNamespace
from typing import Any

import torch
from espnet2.lm.espnet_model import ESPnetLanguageModel
from espnet2.lm.seq_rnn_lm import SequentialRNNLM

from espnet_distopt.espnet.training.stepping import Stepping


class Recorded:
    """An epoch that records what is asked of it."""

    def __init__(self, accum_grad: int, batches: int = 0) -> None:
        self.run = SimpleNamespace(options=SimpleNamespace(accum_grad=accum_grad))
        self.start = SimpleNamespace(batches=batches, random=None)
        self.events: list[Any] = []
        self.weights: list[int] = []

    @contextlib.contextmanager
    def no_sync(self) -> Generator[None, None, None]:
        self.events.append("(")
        yield
        self.events.append(")")

    def begin_steps(self) -> None: ...
    def stop_if_asked(self, batches: int) -> None: ...
    def begin_batch(self, weight: int) -> None:
        self.weights.append(weight)

    def end_batch(self, samples: int, number: int) -> None: ...

    def step(self, number: int) -> dict[str, float]:
        self.events.append("step")
        return {}


def test_gradients_of_all_but_a_steps_last_batch_are_accumulated() -> None:
    epoch: Any = Recorded(accum_grad=3)
    for names, _ in Stepping([([f"utterance {n}"], {}) for n in range(7)], epoch):
        epoch.events += names
    assert epoch.events == [
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
    epoch: Any = Recorded(accum_grad=2, batches=5)
    for _ in Stepping([(["an utterance"], {})] * 3, epoch):
        pass
    assert epoch.events == ["(", ")", "step", "(", ")"]


def test_a_batch_of_speech_weighs_as_many_as_its_utterances() -> None:
    epoch: Any = Recorded(accum_grad=1)
    tensors = {"speech": torch.zeros(3, 9), "text": torch.zeros(3, 2)}
    for _ in Stepping([(["a", "b", "c"], tensors), (["d"], {})], epoch):
        pass
    assert epoch.weights == [3, 1]


def test_a_batch_of_text_weighs_what_the_language_model_says() -> None:
    model = ESPnetLanguageModel(SequentialRNNLM(vocab_size=9, unit=4), vocab_size=9)
    text = torch.randint(1, 8, (3, 5))
    batch = {"text": text, "text_lengths": torch.tensor([5, 2, 3])}
    *_, weight = model(**batch)
    epoch: Any = Recorded(accum_grad=1)
    for _ in Stepping([(["a", "b", "c"], batch)], epoch):
        pass
    assert epoch.weights == [int(weight)] == [13]

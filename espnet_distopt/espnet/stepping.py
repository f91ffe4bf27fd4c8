"""The iterator that ESPnet's stock loop reads, with the algorithm's step in it.

It is the only place that runs once per attempted step on every learner: code after a
`yield` comes after the step, also after one whose update was skipped.
"""

from collections.abc import Generator, Iterable, Sized
from typing import cast

from espnet2.train.reporter import SubReporter
from torch import Tensor

from espnet_distopt.espnet.progress import Progress
from espnet_distopt.session import Session

Batch = tuple[list[str], dict[str, Tensor]]


class Stepping:
    """Wraps a batch iterator: steps the session after each batch, reports figures.

    Args:
        iterator: ESPnet's, with this learner's share of each batch.
        session: None trains as stock ESPnet does.
        reporter: of the epoch. The session's figures appear one step late, because a
            step is closed by the time they are known.
        accum_grad: batches per step.
        progress: is told of each step.
    """

    def __init__(
        self,
        iterator: Iterable[Batch],
        session: Session | None,
        reporter: SubReporter,
        accum_grad: int,
        progress: Progress,
    ) -> None:
        self._iterator = iterator
        self._session = session
        self._reporter = reporter
        self._accum_grad = accum_grad
        self._progress = progress

    def __len__(self) -> int:
        return len(cast(Sized, self._iterator))

    def __iter__(self) -> Generator[Batch, None, None]:
        figures: dict[str, float] = {}
        for number, (names, batch) in enumerate(self._iterator, 1):
            if figures:
                # never after the last batch: that would open a step of its own
                self._reporter.register(figures)
                figures = {}
            if self._session is not None:
                self._session.weigh(len(names))
            yield names, batch
            self._progress.samples += len(names)
            if number % self._accum_grad == 0:
                if self._session is not None:
                    self._session.step()
                    figures = self._session.metrics()
                self._progress.step(number, self._reporter)

"""The iterator that ESPnet's stock loop reads, with the algorithm's step in it.

It is the only place that runs once per attempted step on every learner: code after a
`yield` comes after the step, also after one whose update was skipped.
"""

from collections.abc import Callable, Generator, Iterable, Sized
from typing import Any, cast

from espnet2.train.reporter import SubReporter
from torch import Tensor

from espnet_distopt.espnet.training.progress import Progress
from espnet_distopt.espnet.training.random_state import set_random_state
from espnet_distopt.session import Session
from espnet_distopt.work_queue import WorkQueue

Batch = tuple[list[str], dict[str, Tensor]]


class Stepping:
    """Wraps a batch iterator: steps the session after each batch, reports figures.

    Args:
        iterator: of what is left to this learner of the epoch.
        session: None trains as stock ESPnet does.
        reporter: of the epoch. The session's figures appear one step late, because a
            step is closed by the time they are known.
        accum_grad: batches per step.
        progress: is told of each step.
        stop: is called before the first step and after each, with the number of
            batches so far; it may end the training.
        done: batches that this learner has trained on in an earlier run.
        random: the state of the random numbers to go on from, after these.
        queue: that the batches come from: it knows how far the epoch is.
    """

    def __init__(
        self,
        iterator: Iterable[Batch],
        session: Session | None,
        reporter: SubReporter,
        accum_grad: int,
        progress: Progress,
        stop: Callable[[int], None] = lambda batches: None,
        done: int = 0,
        random: dict[str, Any] | None = None,
        queue: WorkQueue | None = None,
    ) -> None:
        self._iterator = iterator
        self._session = session
        self._reporter = reporter
        self._accum_grad = accum_grad
        self._progress = progress
        self._stop = stop
        self._done = done
        self._random = random
        self._queue = queue

    def __len__(self) -> int:
        return len(cast(Sized, self._iterator))

    def __iter__(self) -> Generator[Batch, None, None]:
        figures: dict[str, float] = {}
        batches = iter(self._iterator)
        if self._random is not None:
            set_random_state(self._random)
        between = dict(self._session.driver.spent) if self._session else {}
        self._stop(self._done)
        for number, (names, batch) in enumerate(batches, self._done + 1):
            if figures:
                # never after the last batch: that would open a step of its own
                self._reporter.register(figures)
                figures = {}
            if self._session is not None:
                self._session.begin_batch(len(names))
            yield names, batch
            self._progress.samples += len(names)
            self._progress.batches = number
            if number % self._accum_grad == 0:
                if self._session is not None:
                    self._session.step()
                    figures = self._session.metrics()
                step = self._queue.step if self._queue else number
                self._progress.step(step, self._reporter, without(figures, between))
                between = {}
                self._stop(number)


def without(figures: dict[str, float], between: dict[str, float]) -> dict[str, float]:
    """Return `figures` without the seconds that were spent `between` two epochs."""
    own = {key: figures[key] - s for key, s in between.items() if key != "bytes"}
    return {**figures, **own}

"""The batch iterator that ESPnet's training loop reads, with the algorithm's steps.

ESPnet's loop has no hook that runs after a step. But it asks its iterator for the next
batch once it is done with the last one, and so the code after a `yield` runs once after
each attempted step, also after one whose update was skipped.
"""

import contextlib
from collections.abc import Generator, Iterable, Sized
from typing import cast

from espnet_distopt.espnet.training.epoch import Epoch
from espnet_distopt.espnet.training.loading import Batch, weight
from espnet_distopt.files.random_state import set_random_state


class Stepping:
    """Yields batches to ESPnet's loop, and steps the epoch after each `accum_grad`.

    Gradients are averaged once for each step, beside its last backward pass.

    The algorithm's figures appear in ESPnet's report one step late, because ESPnet has
    closed the report of a step by the time they are known.

    Args:
        batches: The batches that this learner still has to train on.
        epoch: The epoch that they belong to.
    """

    def __init__(self, batches: Iterable[Batch], epoch: Epoch) -> None:
        self._batches = batches
        self._epoch = epoch

    def __len__(self) -> int:
        return len(cast(Sized, self._batches))

    def __iter__(self) -> Generator[Batch, None, None]:
        epoch, start = self._epoch, self._epoch.start
        figures: dict[str, float] = {}
        batches = iter(self._batches)
        if start.random is not None:
            # This comes after `iter`, since a data loader draws a random number there.
            set_random_state(start.random)
        epoch.begin_steps()
        epoch.stop_if_asked(start.batches)
        for number, (names, batch) in enumerate(batches, start.batches + 1):
            if figures:
                # After the last batch this would open the report of a further step.
                epoch.reporter.register(figures)
                figures = {}
            # ESPnet's loop counts from where it begins.
            count = number - start.batches
            steps = count % epoch.run.options.accum_grad == 0
            epoch.begin_batch(weight((names, batch)))
            with contextlib.nullcontext() if steps else epoch.no_sync():
                yield names, batch
            epoch.end_batch(len(names), number)
            if steps:
                figures = epoch.step(number)
                epoch.stop_if_asked(number)

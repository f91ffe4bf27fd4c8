"""Validation by the learners that live.

Stock ESPnet averages the figures of every batch over all processes, which would never
end once a process has died. Here each learner validates its share of every batch by
itself, and at the end the living average their figures once. If one of them has died
meanwhile, the others divide the batches anew and repeat the validation.
"""

import logging
import math
from collections.abc import Callable, Iterable, Sequence

from espnet2.train.reporter import SubReporter, WeightedAverage

from espnet_distopt.errors import InputError
from espnet_distopt.espnet.training.epoch_batches import EpochBatches
from espnet_distopt.espnet.training.loading import Batch
from espnet_distopt.session import Session

Validate = Callable[[Iterable[Batch], SubReporter], None]
"""Validates on batches of this learner's, and registers their figures."""


def validate_together(
    validate: Validate,
    session: Session,
    iterator: Iterable[Batch] | EpochBatches,
    reporter: SubReporter,
) -> None:
    """Validate on all batches, and register the mean figures of all living learners.

    All learners call this, after a collective on which they have agreed who lives. The
    figures become those of stock ESPnet, up to rounding. A learner's share of batches
    that ESPnet has divided itself is lost with the learner.

    Args:
        validate: ESPnet's validation by one process.
        session: The session of this learner.
        iterator: The batches.
        reporter: ESPnet's reporter of the validation.

    Raises:
        InputError: The learners' validations have different figures.
    """
    epoch, count = reporter.get_epoch(), reporter.get_total_count()
    while True:
        living = session.learner.members.ranks
        own = SubReporter(reporter.key, epoch, count)
        validate(_share(iterator, session.learner.rank, living), own)
        means = _mean_figures(own, session)
        if session.learner.members.ranks == living:
            break
        if not isinstance(iterator, EpochBatches):
            logging.warning(f"epoch {epoch}: validated without a dead learner's share")
            break
        logging.warning(f"epoch {epoch}: a learner has died; validation is repeated")
    for key, (value, weight) in means.items():
        reporter.register({key: value}, weight)
    reporter.next()
    reporter.total_count = own.total_count


def _share(
    iterator: Iterable[Batch] | EpochBatches, rank: int, living: Sequence[int]
) -> Iterable[Batch]:
    """Return this learner's share, where ESPnet has not divided the batches."""
    if not isinstance(iterator, EpochBatches):
        return iterator
    return iterator.share(living.index(rank), len(living))


def _mean_figures(own: SubReporter, session: Session) -> dict[str, tuple[float, float]]:
    """Return each figure's mean over the living, and the weight that it stands for."""
    names = sorted(own.stats)
    if session.means([len(names)]) != [len(names)]:
        raise InputError(
            f"learner {session.learner.rank} has {len(names)} figures of validation, "
            "and others have another number: give all learners batches to validate on"
        )
    sums: list[float] = []
    for name in names:
        pairs = [_weighted(value) for value in own.stats[name]]
        finite = [(v, w) for v, w in pairs if math.isfinite(v) and math.isfinite(w)]
        sums += [sum(v * w for v, w in finite), sum(w for _, w in finite)]
    means = session.means(sums)
    size = len(session.learner.members.ranks)
    return {
        name: (value / weight if weight else math.nan, weight * size)
        for name, value, weight in zip(names, means[::2], means[1::2], strict=True)
    }


def _weighted(value: object) -> tuple[float, float]:
    """Return a figure and its weight; figures without one count alike."""
    if isinstance(value, WeightedAverage):
        return float(value.value), float(value.weight)
    return float(value.value), 1.0  # type: ignore[attr-defined]

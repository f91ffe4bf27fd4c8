"""The module repeats in a simulation what real learners have recorded."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain

import torch

from espnet_distopt.simulation import Simulation, VirtualLearner
from espnet_distopt.simulation.engine import Engine
from tests.simulation.conformance import (
    OPTIMIZERS,
    Net,
    Part,
    Training,
    from_file,
    gradient,
    to_file,
)
from tests.simulation.replay import ReplayEngine


def simulated(
    training: Training, parts: Sequence[Sequence[Part]], follow: bool = True
) -> list[list[Part]]:
    """Repeat in simulations what the learners have done in each of their sessions.

    Args:
        training: of all.
        parts: for each learner those of its sessions.
        follow: the recordings.

    Returns:
        As `parts`, without recordings and work queues.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as each of the processes
    try:
        sessions = list(zip(*parts, strict=True))
        done: list[list[Part]] = []
        for number, session_parts in enumerate(sessions):
            pausing = training.stops and number == 0
            earlier = done[-1] if done else None
            done.append(_simulate(training, session_parts, earlier, pausing, follow))
        return [list(of_learner) for of_learner in zip(*done, strict=True)]
    finally:
        torch.set_num_threads(threads)


def _simulate(
    training: Training,
    parts: Sequence[Part],
    earlier: Sequence[Part] | None,
    pausing: bool,
    follow: bool,
) -> list[Part]:
    """Repeat what the learners have done in one session each."""
    learners = [_virtual(training, r, len(parts), p) for r, p in enumerate(parts)]
    engine: Callable[..., Engine] = Engine
    if follow:
        record = {rank: part.record for rank, part in enumerate(parts)}
        engine = partial(ReplayEngine, record)
    simulation = Simulation(learners, engine_type=engine)
    if earlier is None:
        simulation.start()
    else:
        for virtual, part in zip(learners, earlier, strict=True):
            virtual.load_state_dict(from_file(part.state))
    for items in zip(*(part.items for part in parts), strict=True):
        simulation.epoch([len(of_learner) for of_learner in items], pausing)
        if not pausing:
            simulation.consensus()
    if follow:
        simulation.engine.check_complete()  # type: ignore[attr-defined]
    return [_part(v, p.items) for v, p in zip(learners, parts, strict=True)]


def _part(virtual: VirtualLearner, items: list[list[int]]) -> Part:
    state, sent = to_file(virtual.state_dict()), virtual.metrics()["bytes"]
    return Part(virtual.learner.params.tolist(), [], items, state, None, sent)


def _virtual(training: Training, rank: int, size: int, part: Part) -> VirtualLearner:
    """Return a learner that trains on the items that a real one has trained on."""
    model = Net()
    made = OPTIMIZERS[training.optimizer](model.parameters())
    items = chain.from_iterable(part.items)

    def weigh(samples: float) -> None:
        virtual.learner.samples = samples

    backward = gradient(model, rank, weigh if training.uneven else None)

    def descend(_: int) -> float:
        return backward(next(items))

    name, options = training.name, training.options
    virtual = VirtualLearner(model, made, descend, name, rank, size, **options)
    return virtual

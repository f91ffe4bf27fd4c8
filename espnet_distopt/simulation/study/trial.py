"""A trial: a method trains a problem on a virtual cluster, and what came of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from torch import nn
from torch.optim import Optimizer

from espnet_distopt.algorithms import check, lookup
from espnet_distopt.errors import InputError, PeerLostError
from espnet_distopt.simulation.cluster import Compute, Network
from espnet_distopt.simulation.simulation import Simulation
from espnet_distopt.simulation.study.evaluation import evaluate
from espnet_distopt.simulation.study.outcome import Outcome, Point, SimulatedMethod
from espnet_distopt.simulation.study.problem import Problem
from espnet_distopt.simulation.study.queue_shares import shares
from espnet_distopt.simulation.virtual_learner import VirtualLearner

Log = Callable[[Point], None]


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What all methods of a comparison share.

    Attributes:
        problem: what they train; its `batch_size` is set here.
        optimizer: makes a learner's optimizer for its model.
        batch_size: samples of a step of all learners together.
        samples: of an epoch; a last step that is not full is left out.
        epochs: after each, the consensus model is evaluated.
        compute: of a learner's step when there are `compute_learners` of them. With
            fewer, each has more samples and takes proportionally longer.
        network: links.
        model_bytes: messages cost as if the model had this size; None: its own.
        crashes: learner -> virtual seconds at which it stops for ever.
        seed: of the random numbers of gradients.

    Raises:
        InputError: a figure out of its range.
    """

    problem: Problem
    optimizer: Callable[[nn.Module], Optimizer]
    batch_size: int
    samples: int
    epochs: int
    compute_learners: int
    compute: Compute = field(default_factory=Compute)
    network: Network = field(default_factory=Network)
    model_bytes: float | None = None
    crashes: Mapping[int, float] = field(default_factory=dict)
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("batch_size", "epochs"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be >= 1, not {getattr(self, name)}")
        if self.model_bytes is not None and not self.model_bytes > 0:
            raise InputError(f"model_bytes must be > 0, not {self.model_bytes}")
        if self.samples < self.batch_size:
            raise InputError(
                f"an epoch of {self.samples} samples is less than a batch of "
                f"{self.batch_size}"
            )

    def check(self, method: SimulatedMethod, learners: int) -> None:
        """Raise InputError if `method` cannot run here on so many learners."""
        check(method.algorithm, self._options(method, learners), learners)
        if self.batch_size % learners:
            raise InputError(
                f"a batch of {self.batch_size} samples has no equal shares for "
                f"{learners} learners"
            )
        for rank in {**self.compute.slowdown, **self.crashes}:
            if rank not in range(learners):
                raise InputError(
                    f"there is no learner {rank} among {learners}, numbered from 0"
                )

    def run(self, method: SimulatedMethod, learners: int, log: Log) -> Outcome:
        """Train with `method`; `log` gets every point of the history.

        Raises:
            InputError: the method or the cluster is impossible.
        """
        self.check(method, learners)
        self.problem.batch_size = self.batch_size // learners
        replicas = [self._replica(method, rank, learners) for rank in range(learners)]
        compute = _slower(self.compute, self.compute_learners / learners)
        factor = self._message_factor(replicas[0])
        simulation = Simulation(
            replicas,
            compute,
            _for_larger_messages(self.network, factor),
            seed=self.seed,
            crashes=self.crashes,
        )
        steps = self.samples // self.batch_size
        outcome = Outcome(
            method=method,
            learners=learners,
            batch_size=self.batch_size,
            parameters=replicas[0].learner.params.numel(),
            alone=_alone(compute, learners * steps * self.epochs),
        )
        try:
            self._train(simulation, steps, factor, outcome, log)
        except PeerLostError as error:
            outcome.lost = str(error)
        return outcome

    def _replica(self, method: SimulatedMethod, rank: int, size: int) -> VirtualLearner:
        model, gradient = self.problem.replica(rank, size)
        return VirtualLearner(
            model,
            self.optimizer(model),
            gradient,
            method.algorithm,
            rank,
            size,
            **self._options(method, size),
        )

    def _options(self, method: SimulatedMethod, learners: int) -> dict[str, Any]:
        """Return the method's options; the network knows the nodes, as a launcher."""
        options = dict(method.options)
        config = lookup(method.algorithm).config
        defaults = {option.name: option.default for option in fields(config)}
        if defaults.get("per_node", 1) is None and options.get("per_node") is None:
            options["per_node"] = min(self.network.per_node, learners)
        return options

    def _message_factor(self, replica: VirtualLearner) -> float:
        """Return how many times larger messages are to be than they are."""
        if self.model_bytes is None:
            return 1.0
        return self.model_bytes / replica.learner.params.nbytes

    def _train(
        self,
        simulation: Simulation,
        steps: int,
        factor: float,
        outcome: Outcome,
        log: Log,
    ) -> None:
        replicas, held_out_loss = simulation.learners, self.problem.held_out_loss
        outcome.history.append(Point(0, 0.0, held_out_loss(replicas[0].model), 0.0))
        log(outcome.history[-1])
        simulation.start()
        for epoch in range(1, self.epochs + 1):
            simulation.epoch(_steps_each(simulation, steps))
            loss, distance = evaluate(simulation, held_out_loss)
            samples = epoch * steps * self.batch_size
            point = Point(samples, simulation.seconds, loss, distance)
            outcome.history.append(point)
            outcome.add([replica.metrics() for replica in replicas], factor)
            log(point)


def _alone(compute: Compute, steps: int) -> float:
    """Return the seconds in which one learner, not slowed, makes so many steps."""
    even = replace(compute, slowdown={})
    return sum(even.of(0, step) for step in range(steps))


def _slower(compute: Compute, factor: float) -> Compute:
    """Return `compute` with steps that take `factor` times as long."""
    trace = [seconds * factor for seconds in compute.trace]
    return replace(compute, seconds=compute.seconds * factor, trace=trace)


def _for_larger_messages(network: Network, factor: float) -> Network:
    """Return links on which messages take as long as ones `factor` times larger."""
    inside, between = (
        replace(link, bandwidth=link.bandwidth / factor)
        for link in (network.inside, network.between)
    )
    return replace(network, inside=inside, between=between)


def _steps_each(simulation: Simulation, steps: int) -> list[int]:
    """Return each learner's steps of an epoch of `steps` full batches.

    With gossip, learners take their batches from a queue, as a work queue deals them
    in a training; others step together.
    """
    replicas = simulation.learners
    if not replicas[0].algorithm.wants_gossip:
        return [steps] * len(replicas)
    return shares(
        simulation.compute,
        [replica.learner.steps for replica in replicas],
        steps * len(replicas),
        len(getattr(replicas[0].algorithm, "node", (0,))),
    )

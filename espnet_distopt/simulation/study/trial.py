"""The module runs a trial: a method trains a problem on a virtual cluster."""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from statistics import fmean
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from espnet_distopt.algorithms import check, lookup
from espnet_distopt.errors import InputError, PeerLostError
from espnet_distopt.simulation.compute import Compute
from espnet_distopt.simulation.faults import Fault
from espnet_distopt.simulation.network import Network
from espnet_distopt.simulation.simulation import Simulation
from espnet_distopt.simulation.study.outcome import Outcome, Point, SimulatedMethod
from espnet_distopt.simulation.study.problem import Problem, TimeOnly
from espnet_distopt.simulation.virtual_learner import VirtualLearner

Log = Callable[[Point], None]
"""A function that is called with each new point of a trial's history."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """All that the methods of a comparison share.

    Attributes:
        problem: the problem that the methods train; the trial sets its `batch_size`.
        optimizer: a function that makes the optimizer of a learner's model.
        batch_size: the number of samples of one step of all learners together.
        samples: the number of samples of an epoch; a last step that is not full is left
            out.
        epochs: the number of epochs; the consensus model is evaluated after each.
        compute_learners: the number of learners for which `compute` is given.
        compute: how long a learner's step takes if there are `compute_learners`
            learners. If there are fewer, each computes more samples in a step and takes
            proportionally longer.
        fixed_seconds: the part of `compute` that a step takes whatever its batch; it is
            not longer with fewer learners.
        network: the links between the learners.
        model_bytes: the size of the model by which messages cost time, in bytes; None
            takes the size of the model that is trained.
        faults: what happens to learners.
        seed: the seed of the random numbers that gradients and methods use.

    Raises:
        InputError: a figure is out of its range.
    """

    problem: Problem
    optimizer: Callable[[nn.Module], Optimizer]
    batch_size: int
    samples: int
    epochs: int
    compute_learners: int
    compute: Compute = field(default_factory=Compute)
    fixed_seconds: float = 0.0
    network: Network = field(default_factory=Network)
    model_bytes: float | None = None
    faults: Sequence[Fault] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("batch_size", "epochs"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be >= 1, not {getattr(self, name)}")
        if self.model_bytes is not None and not self.model_bytes > 0:
            raise InputError(f"model_bytes must be > 0, not {self.model_bytes}")
        if not 0 <= self.fixed_seconds <= self.compute.seconds:
            raise InputError(
                f"the fixed part of a step must be between 0 and {self.compute.seconds}"
                f" s, not {self.fixed_seconds}"
            )
        if self.samples < self.batch_size:
            raise InputError(
                f"an epoch of {self.samples} samples is less than a batch of "
                f"{self.batch_size}"
            )

    def check(self, method: SimulatedMethod, learners: int) -> None:
        """Check that `method` can run in this trial.

        Raises:
            InputError: the method cannot run with this number of learners, or this
                trial has no equal shares for them.
        """
        check(method.algorithm, self._options(method, learners), learners)
        if self.batch_size % learners:
            raise InputError(
                f"a batch of {self.batch_size} samples has no equal shares for "
                f"{learners} learners"
            )
        self._check_joins(method, learners)
        struck = [fault.rank for fault in self.faults]
        for rank in [*self.compute.slowdown, *struck]:
            if rank not in range(learners):
                raise InputError(
                    f"there is no learner {rank} among {learners}, numbered from 0"
                )

    def _check_joins(self, method: SimulatedMethod, learners: int) -> None:
        """Refuse what real processes refuse, see `lifecycle.check_joinable`."""
        kind = lookup(method.algorithm).algorithm
        options = self._options(method, learners)
        joinable = (
            kind.survives and kind.wants_gossip and options.get("per_node", 1) == 1
        )
        if not joinable and any(fault.kind == "join" for fault in self.faults):
            raise InputError(
                f"no learner can join a training by {method.algorithm}: leave out the "
                "faults of kind join (adpsgd can be joined)"
            )

    def run(self, method: SimulatedMethod, learners: int, log: Log) -> Outcome:
        """Train with a method, and return the outcome.

        Raises:
            InputError: the method cannot run in this trial.
        """
        simulation = self.simulation(method, learners)
        outcome = Outcome(
            method=method,
            learners=learners,
            batch_size=self.batch_size,
            parameters=simulation.learners[0].learner.params.numel(),
        )
        try:
            self._train(simulation, outcome, log)
        except PeerLostError as error:
            outcome.lost = str(error)
        return outcome

    def simulation(self, method: SimulatedMethod, learners: int) -> Simulation:
        """Return the simulation that `run` runs, before it has begun.

        Raises:
            InputError: the method cannot run in this trial.
        """
        self.check(method, learners)
        self.problem.batch_size = self.batch_size // learners
        replicas = [self._replica(method, rank, learners) for rank in range(learners)]
        factor = self.message_factor(replicas[0].model)
        return Simulation(
            replicas,
            self._compute(learners),
            self.network.for_larger_messages(factor),
            seed=self.seed,
            faults=self.faults,
        )

    def _replica(self, method: SimulatedMethod, rank: int, size: int) -> VirtualLearner:
        model, gradient = self.problem.replica(rank, size)
        return VirtualLearner(
            model,
            self.optimizer(model),
            gradient,
            method.algorithm,
            rank,
            size,
            self.message_factor(model),
            **self._options(method, size),
        )

    def _options(self, method: SimulatedMethod, learners: int) -> dict[str, Any]:
        """Return the method's options.

        A method that asks for `per_node`, the number of learners of a node, gets the
        network's if it does not give one; in a real training the launcher gives it. A
        method that draws at random gets the trial's seed if it gives none. Where only
        time is simulated, learners compare no elements of their gradients: these few
        would count as a large part of the model.
        """
        options = dict(method.options)
        config = lookup(method.algorithm).config
        defaults = {option.name: option.default for option in fields(config)}
        if defaults.get("per_node", 1) is None and options.get("per_node") is None:
            options["per_node"] = min(self.network.per_node, learners)
        if "second_moment" in defaults and isinstance(self.problem, TimeOnly):
            options = {"second_moment": "local"} | options
        return {"seed": self.seed} | options if "seed" in defaults else options

    def _compute(self, learners: int) -> Compute:
        """Return how long steps take if `learners` share the batch."""
        share = 1 - self.fixed_seconds / self.compute.seconds
        factor = 1 + share * (self.compute_learners / learners - 1)
        trace = [seconds * factor for seconds in self.compute.trace]
        return replace(self.compute, seconds=self.compute.seconds * factor, trace=trace)

    def _alone(self, steps: int, learners: int) -> float:
        """Return the seconds in which one learner alone trains on as many samples.

        It is not slowed, and trains on whole batches: its steps are as many as those of
        all `learners`, divided by their number.
        """
        even = replace(self._compute(learners), slowdown={})
        seconds = sum(even.of(0, step) for step in range(steps))
        return seconds / learners * self._compute(1).seconds / even.seconds

    def message_factor(self, model: nn.Module) -> float:
        """Return the factor by which messages count as larger than they are."""
        if self.model_bytes is None:
            return 1.0
        return self.model_bytes / sum(p.nbytes for p in model.parameters())

    def _train(self, simulation: Simulation, outcome: Outcome, log: Log) -> None:
        replicas, held_out_loss = simulation.learners, self.problem.held_out_loss
        factor = self.message_factor(replicas[0].model)
        steps = self.samples // self.batch_size
        outcome.history.append(Point(0, 0.0, held_out_loss(replicas[0].model), 0.0))
        log(outcome.history[-1])
        simulation.start()
        for _ in range(self.epochs):
            simulation.epoch(steps_each(simulation, steps))
            loss, distance = evaluate(simulation, held_out_loss)
            made = sum(replica.learner.steps for replica in replicas)
            samples = made * self.batch_size // len(replicas)
            point = Point(samples, simulation.seconds, loss, distance)
            outcome.history.append(point)
            last = {line.rank: line.seconds for line in simulation.record}
            outcome.stepped = fmean(last.values())
            outcome.alone = self._alone(made, len(replicas))
            living = simulation.engine.members.now.ranks
            outcome.dead = [r for r in range(len(replicas)) if r not in living]
            outcome.add([replica.metrics() for replica in replicas], factor)
            log(point)


def steps_each(simulation: Simulation, steps: int) -> list[int]:
    """Return the number of steps of each learner in an epoch.

    With a gossip algorithm, learners take their batches from one queue, as they do from
    a `WorkQueue` in a real training. With any other they step together. Learners that
    have been lost take none; what one that is lost in this epoch leaves is not trained
    on.

    Args:
        simulation: the simulation.
        steps: the number of steps that each learner makes if all step together.
    """
    replicas = simulation.learners
    first = replicas[0]
    if not first.algorithm.wants_gossip:
        return [steps] * len(replicas)
    return shares(
        simulation.compute,
        [replica.learner.steps for replica in replicas],
        steps * len(replicas),
        len(first.algorithm.lockstep(first.learner)),
        simulation.engine.members.now.ranks,
    )


def evaluate(
    simulation: Simulation, loss: Callable[[nn.Module], float]
) -> tuple[float, float]:
    """Return the loss of the consensus model, and the consensus distance.

    The consensus distance is ||x_i - consensus|| / ||consensus||, averaged over the
    living learners i, as a `Session` computes it. The consensus takes virtual time, as
    it takes time in a real training. The replica of the first of them holds the
    consensus model while `loss` runs; afterwards it has the parameters that it had
    before.
    """
    own = [virtual.learner.params.clone() for virtual in simulation.learners]
    models = simulation.consensus_models()
    first, consensus = next(iter(models.items()))
    scale = float(consensus.norm().clamp_min(1e-30))
    distances = [float((own[rank] - consensus).norm()) / scale for rank in models]
    virtual = simulation.learners[first]
    # `consensus` may have replaced the parameters: some algorithms go on from it.
    kept = virtual.learner.params.clone()
    with torch.no_grad():
        virtual.learner.params.copy_(consensus)
    try:
        value = loss(virtual.model)
    finally:
        with torch.no_grad():
            virtual.learner.params.copy_(kept)
    return value, sum(distances) / len(distances)


def shares(
    compute: Compute,
    done: list[int],
    total: int,
    group: int = 1,
    living: Sequence[int] | None = None,
) -> list[int]:
    """Return the number of batches of an epoch that each learner takes.

    A learner takes the next batch as soon as it has computed its last one, so a slow
    learner takes fewer. The time that learners wait for communication does not count.

    Args:
        compute: how long each step takes.
        done: the number of steps that each learner has made in earlier epochs.
        total: the number of batches of the epoch; it must be a multiple of `group`.
        group: the number of learners, neighbours in rank, that step together at the
            pace of the slowest.
        living: the learners that take batches; None for all of them.
    """
    taken = [0] * len(done)
    # An entry is (the time at which a group is free, its first rank).
    queue = [(0.0, first) for first in range(0, len(done), group)]
    if living is not None:
        queue = [entry for entry in queue if entry[1] in living]
    for _ in range(total // group):
        free, first = queue[0]
        ranks = range(first, first + group)
        busy = max(compute.of(rank, done[rank] + taken[rank]) for rank in ranks)
        for rank in ranks:
            taken[rank] += 1
        heapq.heapreplace(queue, (free + busy, first))
    return taken

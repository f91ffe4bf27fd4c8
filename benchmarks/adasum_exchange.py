"""The benchmark times Adasum's exchange, gloo's sum, and the plain Adasum tree.

Real processes exchange 35 million float32 parameters, in the 60 tensors of a BLSTM,
over gloo and the loopback. The plain tree is Adasum as the paper defines it: at each of
log2 N levels a learner swaps its whole vector with a partner, and both combine the
vectors tensor by tensor. The exchange must give the tree's result. In every repeat the
methods take turns, each after a barrier.

The limit is what no implementation of this exchange can beat on this machine: the same
bytes sent without any arithmetic, then memory read and written as often as the
arithmetic must, at the speed at which all learners together can read and copy.

    python benchmarks/adasum_exchange.py          # two minutes
"""

import argparse
import resource
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from emulated.exchange_rows import exchange_rows
from emulated.learners import Namespace, launch
from report import how_often, write_report
from torch import Tensor, nn

from espnet_distopt.algorithms.adasum.algorithm import Adasum, AdasumConfig
from espnet_distopt.algorithms.adasum.exchange import AdasumExchange
from espnet_distopt.core.effects import (
    AllGather,
    AllReduceMean,
    AllToAll,
    Effect,
    GroupCollective,
    Work,
)
from espnet_distopt.core.learner import Learner
from espnet_distopt.distributed.process_group import ProcessGroupDriver

SIZES = (4, 2)
SEED = 0
SUM, EXCHANGE, PERIOD, TREE = "sum", "adasum", "adasum, period", "plain tree"
SENT, LIMIT = "bytes alone", "limit of adasum"
PHASES = {
    AllToAll: "all-to-all",
    AllReduceMean: "sum of Gram matrices",
    AllGather: "all-gather",
}


def shapes(units: int) -> list[tuple[int, ...]]:
    """Return the shapes of a BLSTM's tensors.

    It has 6 bidirectional layers, norms, a bottleneck and an output layer.

    Args:
        units: the number of cells of a layer in each direction.
    """
    found: list[tuple[int, ...]] = []
    for inputs in (260, *[2 * units] * 5):
        weights = (4 * units, inputs), (4 * units, units)
        found += [*weights, (4 * units,), (4 * units,)] * 2
    found += [(2 * units,)] * 8
    return [*found, (256, 2 * units), (256,), (500, 256), (500,)]


class Model(nn.Module):
    """A model that has a BLSTM's parameters, all zero, and computes nothing."""

    def __init__(self, units: int) -> None:
        super().__init__()
        self.all = nn.ParameterList(torch.zeros(shape) for shape in shapes(units))


@dataclass(frozen=True)
class Spent:
    """The time that one call takes on one learner.

    Attributes:
        clock: the seconds until all learners have finished.
        processor: the processor seconds of this learner.
    """

    clock: float
    processor: float


class Bench:
    """One learner's part of the benchmark; each call starts from the same vector."""

    def __init__(self, rank: int, units: int) -> None:
        model = Model(units)
        size = dist.get_world_size()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        self.learner = Learner(model, optimizer, rank, size)
        common, own = (
            torch.randn(
                len(self.learner.params), generator=torch.Generator().manual_seed(seed)
            )
            for seed in (SEED, SEED + 1 + rank)
        )
        self.source = own.add_(common, alpha=0.5)
        self.vector = self.source.clone()
        self.received = self.source.clone()
        self.driver = ProcessGroupDriver()
        self.exchange = AdasumExchange(self.learner, 1)
        self.algorithm = Adasum(AdasumConfig(), self.learner)
        self.phases: dict[str, float] = {}
        self.results: list[tuple[slice, Tensor]] = []

    def sum(self) -> None:
        """Replace `vector` with the sum over the learners, by gloo's ring."""
        group = dist.distributed_c10d._get_default_group()
        group.allreduce([self.vector]).wait()

    def adasum(self) -> None:
        """Compute Adasum of the vectors by the exchange, into `results`."""
        self.results = self.driver.run(self.exchange(self.vector))

    def sent(self) -> None:
        """Send the bytes of the exchange, and compute nothing beside them."""
        self._exchange_by(lambda effect: self._run(effect.with_work(lambda _: None)))

    def limit(self) -> None:
        """Send the bytes, then touch the memory that the arithmetic must touch.

        The Gram matrices read the shards of all vectors, and so does the combination,
        which writes one shard.
        """
        self.sent()
        shards = self.received[: len(self.vector) // self.learner.size]
        for _ in range(2):
            self.received.sum()
        self.vector[: len(shards)].copy_(shards)

    def period(self) -> None:
        """Do all that Adasum does at the end of a period, on the parameters."""
        self.learner.updates += 1
        self.driver.run(self.algorithm.after_step(self.learner))

    def tree(self) -> None:
        """Replace `vector` with Adasum's result, by the plain tree.

        The number of learners must be a power of two.
        """
        rank, distance = self.learner.rank, 1
        while distance < self.learner.size:
            partner = rank ^ distance
            receiving = dist.irecv(self.received, partner)
            dist.send(self.vector, partner)
            receiving.wait()
            for slot in self.learner.slots:
                mine, theirs = slot.of(self.vector), slot.of(self.received)
                _combine(mine, theirs) if rank < partner else _combine(theirs, mine)
            distance *= 2

    def by_phases(self) -> None:
        """Do the same as `adasum`, and note the seconds of each phase."""
        self._exchange_by(self._phase)

    def _exchange_by(self, carry_out: Callable[[GroupCollective], Any]) -> None:
        """Do the exchange, whose collectives a function carries out."""
        program, result = self.exchange(self.vector), None
        while True:
            try:
                effect = program.send(result)
            except StopIteration:
                return
            assert isinstance(effect, GroupCollective)
            result = carry_out(effect)

    def _run(self, effect: GroupCollective) -> Any:
        return self.driver.run(_only(effect))

    def _phase(self, effect: GroupCollective) -> Any:
        """Carry out a collective, and note its seconds and those of its work."""
        name = PHASES[type(effect)]
        beside = "Gram matrices" if name == "all-to-all" else "combination"

        def timed(work: Work) -> Work:
            def run(stop: int) -> None:
                start = time.perf_counter()
                work(stop)
                self._note(beside, time.perf_counter() - start)

            return run

        start, before = time.perf_counter(), self.phases.get(beside, 0.0)
        result = self._run(effect.with_work(timed))
        worked = self.phases.get(beside, 0.0) - before
        self._note(name, time.perf_counter() - start - worked)
        return result

    def _note(self, phase: str, seconds: float) -> None:
        self.phases[phase] = self.phases.get(phase, 0.0) + seconds

    def measure(self, work: Callable[[], None]) -> Spent:
        """Time a call that all learners begin together, until the last has ended."""
        self.vector.copy_(self.source)
        self.learner.params.copy_(self.source)
        self.algorithm.shared.zero_()
        dist.barrier()
        before, start = _processor(), time.perf_counter()
        work()
        processor = _processor() - before
        dist.barrier()
        return Spent(time.perf_counter() - start, processor)

    def check(self) -> None:
        """Check the exchange against the tree, and the learners against each other.

        Raises:
            RuntimeError: the results differ.
        """
        self.measure(self.tree)
        expected = self.vector.clone()
        self.measure(self.adasum)
        for part, combined in self.results:
            self.vector[part] = combined
        error = float((self.vector - expected).norm() / expected.norm())
        first = self.vector.clone()
        dist.broadcast(first, 0)
        if error > 1e-6 or not torch.equal(first, self.vector):
            raise RuntimeError(f"wrong result: {error} from the tree")


def _combine(a: Tensor, b: Tensor) -> None:
    """Replace two tensors with their Adasum; the inner products are in float64."""
    x, y = a.double().flatten(), b.double().flatten()
    dot, squares = x @ y, (x @ x, y @ y)
    result = x.mul_(1 - dot / (2 * squares[0])).add_(y.mul_(1 - dot / (2 * squares[1])))
    a.copy_(result.view_as(a))
    b.copy_(a)


def _only(effect: Effect) -> Generator[Effect, Any, Any]:
    return (yield effect)


def _processor() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def work(rank: int, units: int, repeats: int) -> dict[str, Any]:
    """Run the benchmark on one learner.

    Args:
        rank: the learner.
        units: the number of cells of a layer in each direction.
        repeats: the number of repeats that count.

    Returns:
        The seconds of all repeats, by method and by phase, and the size of the model.
    """
    bench = Bench(rank, units)
    methods = {
        SUM: bench.sum,
        EXCHANGE: bench.adasum,
        SENT: bench.sent,
        LIMIT: bench.limit,
        PERIOD: bench.period,
        TREE: bench.tree,
    }
    bench.check()
    spent: dict[str, list[Spent]] = {name: [] for name in methods}
    phases: dict[str, list[float]] = {}
    for repeat in range(repeats + 1):
        for name, method in methods.items():
            spent[name].append(bench.measure(method))
        bench.phases = {}
        bench.measure(bench.by_phases)
        # The first repeat touches memory for the first time, so it does not count.
        if repeat == 0:
            spent = {name: [] for name in methods}
            continue
        for phase, seconds in bench.phases.items():
            phases.setdefault(phase, []).append(seconds)
    bench.driver.leave()
    return {
        "clock": {n: [s.clock for s in each] for n, each in spent.items()},
        "processor": {n: [s.processor for s in each] for n, each in spent.items()},
        "phases": phases,
        "parameters": len(bench.vector),
        "tensors": len(bench.learner.slots),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="use a small model")
    parser.add_argument("--out", type=Path, help="folder of the results")
    options = parser.parse_args(arguments)
    units, repeats = (64, 3) if options.quick else (512, 15)
    lines = [
        "| learners | | time | of the sum's | processor time, of the sum's |",
        "|---|---|---|---|---|",
    ]
    data = {}
    for size in SIZES:
        found = launch([Namespace()] * size, work, units, repeats, timeout=1200)[0]
        lines += exchange_rows(size, found, SUM)
        data[size] = found
    caption = (
        f"A time is a median and a ratio is {how_often(repeats)}, on learner 0. "
        f"There are {found['parameters']:,} float32 parameters in {found['tensors']} "
        "tensors; the learners use gloo over the loopback of one machine. The sum is "
        "gloo's all-reduce. The period is all that adasum does at the end of a period, "
        "with the subtraction and the addition of the parameters. Bytes alone: the "
        "exchange without its arithmetic. Limit: these bytes, then two reads of the "
        "shards of all vectors and one copy of a shard, by all learners at once."
    )
    write_report(
        "adasum_exchange",
        options.quick,
        options.out,
        lines,
        caption,
        data,
        seeds=[f"{SEED} for what learners share", f"{SEED + 1} + rank for their own"],
        repeats=repeats,
        arguments=arguments,
    )


if __name__ == "__main__":
    main()

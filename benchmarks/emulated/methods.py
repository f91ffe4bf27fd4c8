"""The module makes every method that benchmarks compare a function that makes one step.

A method trains a replica. It is a loop without communication (`none`), one of this
project's algorithms, or a peer: another implementation, which is imported when it
begins.

The replica's computing is emulated: its layers sleep. So several learners on a few
cores take as long for a step as if each had a machine of its own, and a benchmark
measures their communication. Gradients cost nothing, but the optimizer's step is real.
The backward pass goes layer by layer, so a method can communicate during it.
"""

import importlib
import multiprocessing
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, Adam, Optimizer

from espnet_distopt import Session
from espnet_distopt.distributed.addresses import own_address, store_address

LAYERS = 8
FORWARD_SHARE = 1 / 3
"""The share of the forward pass in a step; the backward pass takes twice as long."""


class _Layer(torch.autograd.Function):
    """A layer that returns its input; its backward pass sleeps and has one gradient."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, gradient: Tensor, seconds: float
    ) -> Tensor:
        ctx.gradient, ctx.seconds = gradient, seconds
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        time.sleep(ctx.seconds)
        # Autograd takes a new view of the gradient over, and does not copy it.
        return upstream[0], ctx.gradient.view_as(ctx.gradient), None, None


class Emulated(nn.Module):
    """A model in `LAYERS` layers whose output is its loss.

    Args:
        parameters: the number of parameters; it is rounded down to a multiple of
            `LAYERS`.
        seconds: the seconds that a forward and a backward pass take together.
        rank: the learner, which is the seed of its gradients.
    """

    def __init__(self, parameters: int, seconds: float, rank: int) -> None:
        super().__init__()
        source = torch.Generator().manual_seed(rank)
        size = parameters // LAYERS
        start = torch.full((size,), 1.0)
        self.weights = nn.ParameterList(start.clone() for _ in range(LAYERS))
        self._gradients = [torch.randn(size, generator=source) for _ in range(LAYERS)]
        self._forward_seconds = seconds * FORWARD_SHARE
        self._backward_seconds = seconds * (1 - FORWARD_SHARE) / LAYERS

    def forward(self, x: Tensor) -> Tensor:
        """Return the input `x`, of shape (), which must require a gradient."""
        time.sleep(self._forward_seconds)
        for weight, gradient in zip(self.weights, self._gradients, strict=True):
            x = _Layer.apply(x, weight, gradient, self._backward_seconds)
        return x


def batch() -> Tensor:
    """Return an input of the model, of shape ()."""
    return torch.zeros((), requires_grad=True)


@dataclass(frozen=True, kw_only=True)
class MeasuredMethod:
    """A method with its options and its optimizer.

    Attributes:
        name: `none`, the name of one of this project's algorithms, or that of a peer.
        options: the options of the algorithm or peer.
        adam: whether the optimizer is Adam; otherwise it is SGD.
    """

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    adam: bool = False

    @property
    def label(self) -> str:
        """The method with its options, for a table."""
        options = ", ".join(f"{k} {v}" for k, v in self.options.items())
        name = "no communication" if self.name == "none" else self.name
        optimizer = ", Adam" if self.adam else ""
        return name + (f" ({options})" if options else "") + optimizer

    @property
    def ours(self) -> bool:
        """Whether it is one of this project's algorithms."""
        return self.name not in PEERS and self.name != "none"

    def missing(self) -> str | None:
        """Return the reason why a peer cannot run here; None if the method can run."""
        if self.name not in PEERS:
            return None
        try:
            importlib.import_module(PEERS[self.name].package)
        except ImportError as error:
            return f"not installed: {error}"
        return None

    def optimizer(self, parameters: Any) -> Optimizer:
        """Return the optimizer, in its fused form, which moves the fewest bytes."""
        make = Adam if self.adam else SGD
        return make(parameters, lr=1e-6, fused=True)


@dataclass(frozen=True)
class MeasuredTraining:
    """The training of one learner by a method.

    Attributes:
        step: a function that makes a step.
        finish: a function that ends an epoch, which all learners call.
        exchanges: a function that returns how often the learner has averaged with
            others; it returns 0 for methods that average at fixed steps.
        session: the session, if the method is one of this project's algorithms.
    """

    step: Callable[[], None]
    finish: Callable[[], object] = lambda: None
    exchanges: Callable[[], float] = lambda: 0.0
    session: Session | None = None


def begin(method: MeasuredMethod, model: Emulated) -> MeasuredTraining:
    """Begin to train a model; all learners call this function.

    Args:
        method: the method.
        model: this learner's replica.
    """
    if method.name in PEERS:
        return PEERS[method.name].begin(method, model)
    optimizer = method.optimizer(model.parameters())
    train = plain(model, optimizer)
    if method.name == "none":
        return MeasuredTraining(train)
    session = Session(model, optimizer, method.name, **method.options)

    def step() -> None:
        train()
        session.step()

    exchanged = 0.0

    def exchanges() -> float:
        nonlocal exchanged
        exchanged += session.metrics().get("exchanges", 0.0)
        return exchanged

    return MeasuredTraining(step, session.finish, exchanges, session)


def plain(model: torch.nn.Module, optimizer: Optimizer) -> Callable[[], None]:
    """Return a function that makes a step and does not communicate by itself."""

    def step() -> None:
        optimizer.zero_grad()
        model(batch()).backward()
        optimizer.step()

    return step


def _ddp(method: MeasuredMethod, model: Emulated) -> MeasuredTraining:
    """Begin with torch's DDP, which averages gradients during the backward pass."""
    parallel = DistributedDataParallel(model)
    return MeasuredTraining(plain(parallel, method.optimizer(model.parameters())))


def _post_local_sgd(method: MeasuredMethod, model: Emulated) -> MeasuredTraining:
    """Begin with torch's PostLocalSGDOptimizer; the averages begin with step one."""
    from torch.distributed.algorithms.model_averaging import averagers
    from torch.distributed.optim import PostLocalSGDOptimizer

    period = method.options["period"]
    averager = averagers.PeriodicModelAverager(period=period, warmup_steps=0)
    optimizer = PostLocalSGDOptimizer(method.optimizer(model.parameters()), averager)
    return MeasuredTraining(plain(model, optimizer))


def _decent(method: MeasuredMethod, model: Emulated) -> MeasuredTraining:
    """Begin with decent-dp: a neighbour on a ring averages during the next step.

    The peer calls its optimizers itself, in the backward pass.
    """
    from decent_dp.ddp import DecentralizedDataParallel
    from loguru import logger

    logger.remove()
    parallel = DecentralizedDataParallel(
        model, lambda named: method.optimizer([p for _, p in named]), topology="ring"
    )

    def step() -> None:
        parallel(batch()).backward()

    return MeasuredTraining(step)


def _slowmo(method: MeasuredMethod, model: Emulated) -> MeasuredTraining:
    """Begin with fairscale's SlowMo over Local SGD, one process a node.

    Both of its frequencies are `period`, the momentum is sharded (the default), and the
    group is given. Any other setting calls `torch.cuda.synchronize`, which a build
    without CUDA refuses.
    """
    from fairscale.experimental.nn.data_parallel import SlowMoDistributedDataParallel

    period = method.options["period"]
    parallel = SlowMoDistributedDataParallel(
        model,
        nprocs_per_node=1,
        slowmo_frequency=period,
        localsgd_frequency=period,
        global_group=dist.group.WORLD,
    )
    optimizer = method.optimizer(model.parameters())
    train = plain(parallel, optimizer)

    def step() -> None:
        train()
        parallel.perform_slowmo(optimizer)

    return MeasuredTraining(step)


def _hivemind(method: MeasuredMethod, model: Emulated) -> MeasuredTraining:
    """Begin with hivemind's Optimizer with local updates.

    It averages the learners' states in the background, as soon as all learners together
    have made `period` steps times their number. It does not matter how many steps each
    of them has made, so a slow learner slows nobody. Learners find each other through a
    distributed hash table, learner 0 first.
    """
    import hivemind

    # hivemind works with no other start method.
    multiprocessing.set_start_method("fork", force=True)
    rank, size = dist.get_rank(), dist.get_world_size()

    def made(others: list[str]) -> Any:
        address = f"/ip4/{_own_host()}/tcp/0"
        return hivemind.DHT(host_maddrs=[address], initial_peers=others, start=True)

    meeting: list[Any] = [None]
    if rank == 0:
        table = made([])
        meeting = [[str(address) for address in table.get_visible_maddrs()]]
    dist.broadcast_object_list(meeting)
    if rank != 0:
        table = made(meeting[0])
    optimizer = hivemind.Optimizer(
        dht=table,
        run_id="benchmark",
        params=list(model.parameters()),
        optimizer=method.optimizer,
        batch_size_per_step=1,
        target_batch_size=method.options["period"] * size,
        use_local_updates=True,
        matchmaking_time=3.0,  # hivemind's documentation says so for small local runs.
        averaging_timeout=120.0,
    )
    dist.barrier()

    def finish() -> None:
        dist.barrier()
        optimizer.shutdown()
        table.shutdown()

    step = plain(model, optimizer)
    return MeasuredTraining(step, finish, lambda: float(optimizer.local_epoch))


BUFFER = 1 << 22
"""The most bytes of one call of `Stream` to send or receive."""


class Stream:
    """A connection to a partner that is busy in both directions until the process ends.

    Args:
        connection: the connection.
    """

    def __init__(self, connection: socket.socket) -> None:
        self.received = 0
        self._connection = connection
        for work in (self._send, self._receive):
            threading.Thread(target=work, daemon=True).start()

    def _send(self) -> None:
        zeros = bytes(BUFFER)
        try:
            while True:
                self._connection.sendall(zeros)
        except OSError:
            return  # The partner has ended first.

    def _receive(self) -> None:
        into = bytearray(BUFFER)
        # The call waits for a whole buffer, so that the thread seldom wakes up.
        while count := self._connection.recv_into(into, BUFFER, socket.MSG_WAITALL):
            self.received += count


def _bare_tcp(method: MeasuredMethod, model: Emulated) -> MeasuredTraining:
    """Begin with the physical limit of gossip: a loop beside bare TCP, no averages.

    Each learner trains by itself, and two threads beside it send zeros to a partner and
    receive its zeros, as fast as the link carries them. What this costs the training is
    the kernel's work for the network on the cores that all learners share. No method
    that keeps the link busy can do with less. The number of learners is even.
    """
    stream = Stream(_connect())
    nbytes = sum(weight.nbytes for weight in model.parameters())
    step = plain(model, method.optimizer(model.parameters()))
    return MeasuredTraining(step, exchanges=lambda: stream.received / nbytes)


def _connect() -> socket.socket:
    """Return a connection to the partner: learner 1 of 0, 0 of 1, 3 of 2 and so on."""
    rank = dist.get_rank()
    listener = socket.create_server((_own_host(), 0))
    places: list[tuple[str, int]] = [("", 0)] * dist.get_world_size()
    dist.all_gather_object(places, listener.getsockname())
    with listener:
        if rank % 2:
            return socket.create_connection(places[rank - 1])
        return listener.accept()[0]


def _own_host() -> str:
    """Return this learner's address on the network of the rendezvous store."""
    store = store_address(dist.distributed_c10d._get_default_store())
    _, host, *_ = own_address(0, store).split()
    return host


@dataclass(frozen=True)
class Peer:
    """Another implementation.

    Attributes:
        begin: begins to train with it.
        package: the package that it needs.
    """

    begin: Callable[[MeasuredMethod, Emulated], MeasuredTraining]
    package: str = "torch"


PEERS = {
    "DDP": Peer(_ddp),
    "PostLocalSGD": Peer(_post_local_sgd),
    "decent-dp": Peer(_decent, "decent_dp"),
    "fairscale SlowMo": Peer(_slowmo, "fairscale"),
    "hivemind": Peer(_hivemind, "hivemind"),
    "bare TCP": Peer(_bare_tcp),
}
"""The name of a peer -> how it begins."""

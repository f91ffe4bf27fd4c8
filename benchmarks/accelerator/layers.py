"""The module times training steps of a BLSTM, by encoder and by precision."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
from espnet2.asr.encoder.rnn_encoder import RNNEncoder
from torch import Tensor, nn
from torch.optim import SGD

from accelerator.clock import seconds
from espnet_distopt.espnet.models.captured import CapturedLoss
from espnet_distopt.espnet.models.padded_rnn import FullLength, PaddedRNNEncoder
from espnet_distopt.session import Session

FEATURES, BOTTLENECK = 140, 256
PRECISIONS = {"float32": None, "bfloat16": torch.bfloat16, "float16": torch.float16}


class Size(NamedTuple):
    """The size of the network and of its batches.

    Attributes:
        layers: the number of bidirectional layers.
        cells: the number of cells of a layer in each direction.
        outputs: the number of states of the output layer.
        chunks: the sequences of a batch.
        frames: the frames of each of them.
    """

    layers: int
    cells: int
    outputs: int
    chunks: int
    frames: int


class Network(nn.Module):
    """The hybrid system's network: a BLSTM, a bottleneck and a score for each state."""

    def __init__(self, kind: type[RNNEncoder], size: Size) -> None:
        super().__init__()
        self.encoder = kind(
            FEATURES,
            use_projection=False,
            num_layers=size.layers,
            hidden_size=size.cells,
            output_size=BOTTLENECK,
        )
        self.scores = nn.Linear(BOTTLENECK, size.outputs)

    def forward(self, x: Tensor, states: Tensor) -> Tensor:
        """Return the cross-entropy of the states (B, T) of features x (B, T, D)."""
        lengths = torch.full((len(x),), x.size(1), device=x.device)
        scores = self.scores(self.encoder(x, lengths)[0])
        return nn.functional.cross_entropy(scores.flatten(0, 1), states.flatten())


class OfChunks(nn.Module):
    """The same network, which packs nothing, as chunks have the same length."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.encoder, self.scores = FullLength(network.encoder), network.scores

    def forward(self, x: Tensor, states: Tensor) -> tuple[Tensor]:
        """Return the cross-entropy of the states (B, T) of features x (B, T, D)."""
        scores = self.scores(self.encoder(x))
        return (nn.functional.cross_entropy(scores.flatten(0, 1), states.flatten()),)


def stepping(
    network: nn.Module,
    size: Size,
    device: torch.device,
    precision: torch.dtype | None,
    session: Session | None,
    optimizer: SGD,
) -> Callable[[], None]:
    """Return a function that makes a training step on a batch of random chunks."""
    x = torch.randn(size.chunks, size.frames, FEATURES, device=device)
    states = torch.randint(size.outputs, (size.chunks, size.frames), device=device)
    scaler = torch.amp.GradScaler(device.type, enabled=precision is torch.float16)

    def casting() -> AbstractContextManager[Any]:
        return torch.autocast(device.type, precision, enabled=precision is not None)

    def step() -> None:
        optimizer.zero_grad()
        with casting():
            loss = network(x, states)
        scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        scaler.step(optimizer)
        scaler.update()
        if session is not None:
            session.step()

    return step


CASES: tuple[tuple[str, type[RNNEncoder], str, bool], ...] = (
    ("ESPnet's encoder", RNNEncoder, "eager", False),
    ("ours, eager, in a session", PaddedRNNEncoder, "eager", True),
    ("ours, captured", PaddedRNNEncoder, "loss", False),
    ("ours, captured, in a session", PaddedRNNEncoder, "loss", True),
    ("limit", PaddedRNNEncoder, "step", False),
)
"""Title, encoder, what is captured as CUDA graphs (nothing, the loss with its
gradients, or the whole step), and whether there is a session, whose parameters are in
one buffer."""


def measure(
    size: Size, device: torch.device, repeats: int
) -> Iterator[tuple[str, str, int, list[float]]]:
    """Yield (what, precision, chunks, seconds of a step) for each case.

    The last row of each precision is the limit: the whole step, with the optimizer's,
    is one CUDA graph, in which PyTorch's own LSTM has its weights in one piece.
    """
    for name, precision in PRECISIONS.items():
        if precision is torch.float16 and device.type == "cpu":
            continue
        for chunks in (size.chunks, 8 * size.chunks):
            sized = size._replace(chunks=chunks)
            for title, kind, captured, flat in CASES:
                if captured == "step" and device.type == "cpu":
                    continue
                torch.manual_seed(0)
                network = Network(kind, sized).to(device)
                optimizer = SGD(network.parameters(), lr=0.01)
                session = Session(network, optimizer, "local_sgd") if flat else None
                if captured == "step":
                    step = _whole(network, sized, device, precision, optimizer)
                else:
                    chosen = Captured(network) if captured == "loss" else network
                    step = stepping(
                        chosen, sized, device, precision, session, optimizer
                    )
                yield title, name, chunks, seconds(step, device, repeats)
                if session is not None:
                    session.close()


class Captured(nn.Module):
    """A network whose loss is captured."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = OfChunks(network)  # DDP asks for its parameters.
        self._loss = CapturedLoss(self.network)

    def forward(self, x: Tensor, states: Tensor) -> Tensor:
        """Return the cross-entropy of the states (B, T) of features x (B, T, D)."""
        return self._loss(x, states)[0]


def _whole(
    network: Network,
    size: Size,
    device: torch.device,
    precision: torch.dtype | None,
    optimizer: SGD,
) -> Callable[[], None]:
    """Return a function that replays a whole step as one CUDA graph."""
    x = torch.randn(size.chunks, size.frames, FEATURES, device=device)
    states = torch.randint(size.outputs, (size.chunks, size.frames), device=device)
    loss_of = OfChunks(network)

    def step() -> None:
        optimizer.zero_grad(set_to_none=False)
        with torch.autocast(
            "cuda", precision, precision is not None, cache_enabled=False
        ):
            (loss,) = loss_of(x, states)
        loss.backward()
        optimizer.step()

    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    with torch.cuda.graph(graph, stream=stream):
        step()
    return graph.replay

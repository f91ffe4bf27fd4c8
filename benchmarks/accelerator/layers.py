"""The module times training steps of a BLSTM, by encoder and by precision."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
from espnet2.asr.encoder.rnn_encoder import RNNEncoder
from torch import Tensor, nn
from torch.optim import SGD

from accelerator.clock import seconds
from espnet_distopt.espnet.models.padded_rnn import PaddedRNNEncoder
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


def measure(
    size: Size, device: torch.device, repeats: int
) -> Iterator[tuple[str, str, list[float]]]:
    """Yield (what, precision, seconds of a step) for each case."""
    for title, kind, flat in (
        ("ESPnet's encoder", RNNEncoder, False),
        ("ours", PaddedRNNEncoder, False),
        ("ours, parameters in one buffer", PaddedRNNEncoder, True),
    ):
        for name, precision in PRECISIONS.items():
            if precision is torch.float16 and device.type == "cpu":
                continue
            torch.manual_seed(0)
            network = Network(kind, size).to(device)
            optimizer = SGD(network.parameters(), lr=0.01)
            session = Session(network, optimizer, "local_sgd") if flat else None
            step = stepping(network, size, device, precision, session, optimizer)
            yield title, name, seconds(step, device, repeats)
            if session is not None:
                session.close()

"""A loop of Hugging Face Accelerate, by learners that need not wait for each other.

    distopt launch --nproc 2 examples/accelerate_loop.py --out run --epochs 3

Accelerate's device, precision and clipping stay. The model is not given to
`accelerator.prepare`, which would wrap it in DDP. examples/train.py shows how a run is
saved and goes on. The model learns the sum of its inputs; learner 1 is slow.
"""

import argparse
import time
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from espnet_distopt import Session, WorkQueue


def main() -> None:
    """Train, validate the mean of the learners after each epoch, and save it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--algorithm", default="adpsgd")
    parser.add_argument("--precision", default="no", help="no, bf16 or fp16")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    accelerator = Accelerator(
        cpu=not torch.cuda.is_available(), mixed_precision=args.precision
    )
    set_seed(0)  # All learners begin with one model, and see one set of data.
    inputs, held_out = torch.randn(2048, 20), torch.randn(512, 20)
    data = TensorDataset(inputs, inputs.sum(1, keepdim=True))
    model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 1))
    model.to(accelerator.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    with Session(model, optimizer, args.algorithm) as session:
        stepped = accelerator.prepare(optimizer)
        for epoch in range(args.epochs):
            batches = train(epoch, data, model, stepped, session, accelerator)
            with session.consensus() as distance:
                x = held_out.to(accelerator.device)
                loss = session.mean(error(model, x, x.sum(1, keepdim=True)).item())
                path = args.out / "model.pt"
                accelerator.save(model.state_dict(), path)  # By learner 0 alone.
            print(
                f"epoch {epoch} learner {accelerator.process_index}: {batches} "
                f"batches, loss {loss:.4f}, distance {distance:.4f}",
                flush=True,
            )
    accelerator.end_training()


def train(
    epoch: int,
    data: TensorDataset,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    session: Session,
    accelerator: Accelerator,
) -> int:
    """Train for an epoch; return the number of batches that this learner has taken."""
    shuffled = torch.randperm(len(data), generator=torch.Generator().manual_seed(epoch))
    batches = shuffled.view(-1, 32).tolist()  # The same on all learners.

    def load(items):  # type: ignore[no-untyped-def]
        return DataLoader(data, batch_sampler=[batches[item] for item in items])

    taken = 0
    for x, y in WorkQueue(session, len(batches)).read(load):
        time.sleep(0.05 * accelerator.process_index)
        optimizer.zero_grad()
        with accelerator.autocast():
            loss = error(model, x.to(accelerator.device), y.to(accelerator.device))
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        session.step()  # Also after a step that a scaler of gradients has skipped.
        taken += 1
    return taken


def error(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Return the mean square error."""
    return (model(x) - y).square().mean()


if __name__ == "__main__":
    main()

"""A whole training loop: learners of unequal speed, validation, saving, and going on.

    distopt launch --nproc 2 examples/train.py --out run --epochs 3
    distopt launch --nproc 2 examples/train.py --out run --epochs 5    # goes on

Learner 1 is slower than learner 0, and takes fewer batches. `run/model.pt` is the model
for use, the mean of the learners. The model learns the sum of its inputs.
"""

import argparse
import time

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from espnet_distopt import Session, WorkQueue


def main() -> None:
    """Train until the last epoch, from where an earlier run has ended."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", required=True)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--algorithm", default="adpsgd")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)  # All learners begin with one model, and see one set of data.
    inputs, held_out = torch.randn(2048, 20), torch.randn(512, 20)
    data = TensorDataset(inputs, inputs.sum(1, keepdim=True))
    model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    with Session(model, optimizer, args.algorithm) as session:
        session.resume(args.out, schedule=schedule)  # Signals stop it from now on.
        for epoch in range(session.first_epoch, args.epochs):
            batches = train(epoch, data, model, optimizer, session)
            schedule.step()
            with session.consensus() as distance:
                loss = error(model, held_out, held_out.sum(1, keepdim=True)).item()
                session.save()
            print(
                f"epoch {epoch} learner {rank}: {batches} batches, "
                f"loss {loss:.4f}, distance {distance:.4f}",
                flush=True,
            )


def train(
    epoch: int,
    data: TensorDataset,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    session: Session,
) -> int:
    """Train for an epoch; return the number of batches that this learner has taken."""
    shuffled = torch.randperm(len(data), generator=torch.Generator().manual_seed(epoch))
    batches = shuffled.view(-1, 32).tolist()  # The same on all learners.

    queue = WorkQueue(session, len(batches))

    def load(items):  # type: ignore[no-untyped-def]
        own = [batches[item][queue.own] for item in items]
        return DataLoader(data, batch_sampler=own)

    taken = 0
    for x, y in queue.read(load):
        time.sleep(0.05 * dist.get_rank())  # This learner's machine is slow.
        optimizer.zero_grad()
        error(model, x, y).backward()
        optimizer.step()
        session.step()
        taken += 1
    return taken


def error(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Return the mean square error."""
    return (model(x) - y).square().mean()


if __name__ == "__main__":
    main()

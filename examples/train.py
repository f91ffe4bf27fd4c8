"""A whole training loop: learners of unequal speed, validation, saving, and going on.

    distopt launch --nproc 2 examples/train.py --out run --epochs 3
    distopt launch --nproc 2 examples/train.py --out run --epochs 5    # goes on

Learner 1 is slower than learner 0, and takes fewer batches. `run/model.pt` is the model
for use, the mean of the learners. The model learns the sum of its inputs.
"""

import argparse
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from espnet_distopt import Session, WorkQueue


def main() -> None:
    """Train until the last epoch, from where an earlier run has ended."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--algorithm", default="adpsgd")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)  # All learners begin with one model, and see one set of data.
    inputs = torch.randn(2048, 20)
    data = TensorDataset(inputs, inputs.sum(1, keepdim=True))
    model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    with Session(model, optimizer, args.algorithm) as session:
        first = resume(args.out, model, session, optimizer)
        for epoch in range(first, args.epochs):
            batches = train(epoch, rank, data, model, optimizer, session)
            with session.consensus() as distance:
                loss = error(model, torch.eye(20), torch.ones(20, 1)).item()
                if session.is_leader:  # It is another one if learner 0 dies.
                    replace(args.out / "model.pt", model.state_dict())
            save(args.out, epoch + 1, session, optimizer)
            print(
                f"epoch {epoch} learner {rank}: {batches} batches, "
                f"loss {loss:.4f}, distance {distance:.4f}",
                flush=True,
            )


def train(
    epoch: int,
    rank: int,
    data: TensorDataset,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    session: Session,
) -> int:
    """Train for an epoch; return the number of batches that this learner has taken."""
    shuffled = torch.randperm(len(data), generator=torch.Generator().manual_seed(epoch))
    batches = shuffled.view(-1, 32).tolist()  # The same on all learners.

    def load(items):  # type: ignore[no-untyped-def]
        return DataLoader(data, batch_sampler=[batches[item] for item in items])

    taken = 0
    for x, y in WorkQueue(session, len(batches)).read(load):
        time.sleep(0.005 * rank)  # This learner's machine is slow.
        optimizer.zero_grad()
        error(model, x, y).backward()
        optimizer.step()
        session.step()
        taken += 1
    return taken


def error(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Return the mean square error."""
    return (model(x) - y).square().mean()


def save(
    folder: Path, epoch: int, session: Session, optimizer: torch.optim.Optimizer
) -> None:
    """Save what this learner needs to go on after so many epochs."""
    state = {"session": session.state_dict(), "optimizer": optimizer.state_dict()}
    rank = dist.get_rank()
    replace(folder / f"learner{rank}.{epoch}.pt", state)
    # The last save but one is kept: another learner may not have come so far.
    (folder / f"learner{rank}.{epoch - 2}.pt").unlink(missing_ok=True)


def resume(
    folder: Path, model: nn.Module, session: Session, optimizer: torch.optim.Optimizer
) -> int:
    """Go on from the last epoch that all learners have saved; return its number, or 0.

    A learner that has died long before the run ended has no such save. Then all go on
    from the model of those that lived.
    """
    rank = dist.get_rank()
    saves = [int(p.suffixes[-2][1:]) for p in folder.glob(f"learner{rank}.*.pt")]
    last = max(saves, default=0)
    common = least(last)
    if least(common in saves):
        state = torch.load(folder / f"learner{rank}.{common}.pt", weights_only=True)
        optimizer.load_state_dict(state["optimizer"])
        session.load_state_dict(state["session"])
        return common
    newest = -least(-last)
    if newest:
        model.load_state_dict(torch.load(folder / "model.pt", weights_only=True))
        session.restart_from_model()
    return newest


def least(number: int) -> int:
    """Return the least of the learners' numbers."""
    found = torch.tensor(int(number))
    dist.all_reduce(found, dist.ReduceOp.MIN)
    return int(found)


def replace(path: Path, content: object) -> None:
    """Save under another name, then rename, so that a kill leaves the earlier file."""
    new = path.with_name(f".{path.name}.new")
    torch.save(content, new)
    os.replace(new, path)


if __name__ == "__main__":
    main()

"""The benchmark measures what the learners of a training save at the end of an epoch.

Four learners train a model with Adam for a few steps, end the epoch, and save their
states as the ESPnet adapter does. The bytes of 64 learners are computed from these:
what all four have in common is written once, and what is a learner's own 64 times.

    python benchmarks/checkpoints.py          # four minutes, 4 GB of disk
"""

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from emulated.learners import Namespace, launch
from report import write_report
from torch import Tensor, nn
from torch.optim import Adam

from espnet_distopt.espnet.training.learner_files import load_learner
from espnet_distopt.espnet.training.saved_states import SavedStates
from espnet_distopt.session import Session

SEED = 0
LEARNERS = 4
MANY = 64
STEPS = 8
METHODS: dict[str, dict[str, Any]] = {
    "allreduce": {},
    "adpsgd": {},
    "hadpsgd": {"per_node": 2},
    "bmuf_adam": {"period": 4},
    "local_sgd": {"period": 4},
    "adasum": {"period": 4},
}


class Flat(nn.Module):
    """A model with `size` parameters in sixty tensors."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.parts = nn.ParameterList(torch.randn(size // 60) for _ in range(60))

    def loss(self, batch: float) -> Tensor:
        """Return a loss whose gradients depend on the batch."""
        return torch.stack([(part - batch).square().sum() for part in self.parts]).sum()


def learner(rank: int, size: int, name: str, folder: str) -> dict[str, float]:
    """Train one learner, save its state and read it again; return seconds and bytes.

    Args:
        rank: the learner.
        size: the number of the model's parameters.
        name: the name of the algorithm.
        folder: the directory of the experiment.
    """
    torch.manual_seed(SEED)
    model = Flat(size)
    optimizer = Adam(model.parameters(), lr=0.01)
    with Session(model, optimizer, name, **METHODS[name]) as session:
        for step in range(STEPS):
            session.begin_batch(1)
            optimizer.zero_grad()
            model.loss(rank + 0.1 * step).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            session.step()
        session.finish()
        session.enter_consensus()
        states = SavedStates(Path(folder), rank)
        state = {
            "epoch": 1,
            "session": session.state_dict(),
            "optimizer": optimizer.state_dict(),
        }
        session.barrier()
        start = time.perf_counter()
        states.begin(state, session)
        begun = time.perf_counter()
        states.finish()
        session.barrier()
        ended = time.perf_counter()
        states.complete()
        loaded = load_learner(Path(folder), rank, 1)
        read = time.perf_counter()
        assert loaded is not None
        held = sum(tensor.nbytes for tensor in tensors(loaded))
    return {
        "begin": begun - start,
        "written": ended - begun,
        "read": read - ended,
        "held": held,
    }


def tensors(value: Any) -> list[Tensor]:
    """Return all tensors of a state."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [t for v in value for t in tensors(v)] if isinstance(value, list) else []


def saved_bytes(folder: Path) -> tuple[int, int]:
    """Return the bytes of files that all learners share, and of all other files."""
    files = list((folder / "distopt").iterdir())
    named: dict[str, int] = {}
    for rank in range(LEARNERS):
        own = (folder / "distopt" / f"learner{rank}.1epoch.pth").read_bytes()
        for path in files:
            if path.name.encode() in own:
                named[path.name] = named.get(path.name, 0) + 1
    common = [p for p in files if named.get(p.name) == LEARNERS]
    shared = sum(path.stat().st_size for path in common)
    return shared, sum(path.stat().st_size for path in files) - shared


def main() -> None:
    """Measure, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="use a small model")
    parser.add_argument("--out", type=Path, help="folder of the results")
    args = parser.parse_args()
    torch.set_num_threads(1)
    size = 60_000 if args.quick else 34_200_000
    copy = 4 * size
    lines = [
        "| algorithm | a learner's state | 4 learners, if each wrote its own "
        "| 4 learners | 64 learners, if each wrote its own | 64 learners | digests, s "
        "| until all is written, s | to read it, s |",
        "| :-- |" + " --: |" * 8,
    ]
    data = {}
    for name in METHODS:
        with tempfile.TemporaryDirectory() as folder:
            places = [Namespace()] * LEARNERS
            found = launch(places, learner, size, name, folder, timeout=300)
            shared, own = saved_bytes(Path(folder))
        held = max(each["held"] for each in found)
        times = [
            max(each[key] for each in found) for key in ("begin", "written", "read")
        ]
        per_learner = own / LEARNERS
        bytes_ = {
            "state": held,
            "4 apart": LEARNERS * held,
            "4": shared + own,
            "64 apart": MANY * held,
            "64": shared + MANY * per_learner,
        }
        data[name] = {"copies": {k: b / copy for k, b in bytes_.items()}}
        data[name] |= {"seconds": times, "bytes": bytes_}
        cells = [f"{b / copy:.1f}" for b in bytes_.values()]
        cells += [f"{seconds:.1f}" for seconds in times]
        lines.append(f"| {name} | {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    caption = (
        f"The unit is one copy of the parameters ({copy:,} bytes). The states are "
        f"those of {LEARNERS} processes after an epoch of {STEPS} steps with Adam; "
        f"those of {MANY} are computed. hadpsgd has 2 learners per node, whose "
        "parameters are equal. Times are the longest of any learner; the digests hold "
        "the training up, and the writing goes on beside the validation. All learners "
        "share one disk and two cores."
    )
    write_report(
        "checkpoints",
        args.quick,
        args.out,
        lines,
        caption,
        data,
        seeds=[SEED],
        repeats=1,
    )


if __name__ == "__main__":
    main()

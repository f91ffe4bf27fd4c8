"""ESPnet3's seams, by stand-ins of the same names; test_mini_an4 has ESPnet3 itself."""

from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch.distributed as dist
from torch.utils.data import DataLoader

from tests.lightning.toy import Toy, data, strategy, trainer
from tests.processes import launch


class EpochSyncIterator:
    """Like ESPnet3's: iterating over it would make the learners meet."""

    def __init__(self, source: Any) -> None:
        self._source = source

    def __len__(self) -> int:
        return len(self._source())

    def __iter__(self) -> Iterator[Any]:
        yield from ()  # Lightning calls this, but must not ask for a batch.
        raise AssertionError("the learners would meet before each batch")


class ESPnetLightningModule(Toy):
    """Like ESPnet3's: it builds its loaders itself, anew for each epoch."""

    def __init__(self) -> None:
        super().__init__()
        parts = {"train": {}, "valid": {"batch_distribution": "per_gpu"}}
        self.config = SimpleNamespace(num_device=2, dataloader=parts)

    def train_dataloader(self) -> Any:
        assert self.config.num_device == 1
        batches = [[2 * n, 2 * n + 1] for n in range(7)]
        return EpochSyncIterator(partial(DataLoader, data(), batch_sampler=batches))

    def val_dataloader(self) -> Any:
        batches = [[n, n + 1] for n in range(3)]
        return EpochSyncIterator(partial(DataLoader, data(), batch_sampler=batches))


def fits(folder: Path) -> dict[str, Any]:
    found = {}
    for name in ("adpsgd", "bmuf_adam"):
        module = ESPnetLightningModule()
        own = {"reload_dataloaders_every_n_epochs": 1, "use_distributed_sampler": False}
        fitted = trainer(
            folder, strategy(name), dist.get_world_size(), max_epochs=2, **own
        )
        fitted.fit(module)
        found[name] = module.seen, module.losses
    return found


def test_learners_do_not_meet_in_steps_and_divide_whole_batches(tmp_path: Path) -> None:
    found = launch(2, fits, tmp_path, timeout=100)
    alone = Counter(n for learner in found for n in learner["adpsgd"][0])
    assert alone == Counter({n: 2 for n in range(14)})
    # Those that step together need equally many, so the last batch is left out.
    together = [learner["bmuf_adam"][0] for learner in found]
    assert together == [[0, 1, 4, 5, 8, 9] * 2, [2, 3, 6, 7, 10, 11] * 2]
    for name in ("adpsgd", "bmuf_adam"):
        losses = [learner[name][1] for learner in found]
        assert losses[0] == losses[1]

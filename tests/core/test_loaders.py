"""A data loader with other batches keeps all else that its maker has chosen."""

import inspect
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

from espnet_distopt.core.loaders import with_batches

CHOSEN: dict[str, Any] = {
    "num_workers": 2,
    "collate_fn": list,
    "pin_memory": True,
    "timeout": 7.0,
    "worker_init_fn": print,
    "multiprocessing_context": "forkserver",
    "generator": torch.Generator(),
    "prefetch_factor": 5,
    "in_order": False,
}
OTHERS = {
    *("batch_size", "shuffle", "sampler", "batch_sampler", "drop_last", "dataset"),
    "persistent_workers",  # This is the caller's choice.
    "pin_memory_device",  # PyTorch has deprecated it, and ignores it.
}


def test_all_options_are_kept() -> None:
    options = inspect.signature(DataLoader).parameters.keys()
    assert options <= {*CHOSEN, *OTHERS}
    dataset = TensorDataset(torch.arange(8))
    loader: DataLoader[Any] = DataLoader(dataset, batch_size=2, **CHOSEN)
    for again in (False, True):
        made = with_batches(loader, [[3, 4], [0]], again)
        assert made.dataset is dataset
        assert list(made.batch_sampler or ()) == [[3, 4], [0]]
        assert made.persistent_workers is again
        for name in CHOSEN:
            assert getattr(made, name) == getattr(loader, name), name

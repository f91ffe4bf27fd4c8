"""ESPnet's tasks with distopt training; importable, so that spawned children find them.

Any task gets it: `distopt_task(SomeTask, "DistoptSomeTask", __name__)` at module level.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from espnet2.iterators.abs_iter_factory import AbsIterFactory
from espnet2.tasks.abs_task import AbsTask, IteratorOptions, optim_classes
from espnet2.tasks.asr import ASRTask

from espnet_distopt.errors import InputError
from espnet_distopt.espnet.models.padded_rnn import pad_rnn_encoders
from espnet_distopt.espnet.training.one_run import refuse_if_taken
from espnet_distopt.espnet.training.options import launched_rank, settle
from espnet_distopt.espnet.training.queued_batches import (
    QueuedIterFactory,
    takes_from_queue,
    whole_batches,
)
from espnet_distopt.espnet.training.trainer import DistoptTrainer
from espnet_distopt.optimizers.lamb import Lamb

# For `optim: lamb`. ESPnet has one of its own only where torch_optimizer is installed.
optim_classes.setdefault("lamb", Lamb)


def distopt_task(task: type[AbsTask], name: str, module: str) -> type[AbsTask]:
    """Return a subclass of `task` that trains with `DistoptTrainer`.

    Args:
        task: an ESPnet task class with one optimizer.
        name: the variable that the result is assigned to.
        module: `__name__` of the module that does so; children import it from there.
    """

    class Task(task):
        trainer = DistoptTrainer

        @classmethod
        def main(
            cls,
            args: argparse.Namespace | None = None,
            cmd: Sequence[str] | None = None,
        ) -> None:
            if args is None:
                args = cls.get_parser().parse_args(cmd)
            try:
                settle(args)
                if not args.collect_stats:
                    refuse_if_taken(Path(args.output_dir))
            except InputError:
                if launched_rank() > 0:
                    sys.exit(2)  # learner 0 says it for all
                raise
            super().main(args=args)

        @classmethod
        def build_model(cls, args: argparse.Namespace) -> torch.nn.Module:
            model: Any = super().build_model(args)
            pad_rnn_encoders(model)
            return model  # type: ignore[no-any-return]

        @classmethod
        def build_sequence_iter_factory(
            cls, args: argparse.Namespace, iter_options: IteratorOptions, mode: str
        ) -> AbsIterFactory:
            queued = takes_from_queue(args, iter_options, mode)
            if queued:
                size = dist.get_world_size()
                args, iter_options = whole_batches(args, iter_options, size)
            stock: Any = super().build_sequence_iter_factory(
                args=args, iter_options=iter_options, mode=mode
            )
            return QueuedIterFactory(stock, size) if queued else stock

    Task.__name__ = Task.__qualname__ = name
    Task.__module__ = module
    return Task


DistoptASRTask = distopt_task(ASRTask, "DistoptASRTask", __name__)

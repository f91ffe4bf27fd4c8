"""ESPnet's ASR task with frame labels: it trains the acoustic model of a hybrid system.

The data are `speech`, features of shape (frames, dimensions), and `states`, the pdf of
each frame. The tokens are the names of the pdfs. With `iterator_type: chunk` ESPnet
cuts both at the same places.
"""

import argparse

import torch
import torch.distributed as dist
from espnet2.iterators.abs_iter_factory import AbsIterFactory
from espnet2.tasks.abs_task import IteratorOptions
from espnet2.tasks.asr import ASRTask, model_choices

from espnet_distopt.errors import InputError
from espnet_distopt.espnet.hybrid.chunks import FrameChunks, OwnShare
from espnet_distopt.espnet.hybrid.model import FrameModel
from espnet_distopt.espnet.training.cutting import read_frames
from espnet_distopt.espnet.training.epoch_batches import whole_batches
from espnet_distopt.espnet.training.queued_batches import divides_batches
from espnet_distopt.espnet.training.tasks import distopt_task

_MODEL = "frame_cross_entropy"
model_choices.classes.setdefault(_MODEL, FrameModel)


class HybridTask(ASRTask):
    """ESPnet's ASR task whose model is a `FrameModel`."""

    @classmethod
    def required_data_names(
        cls, train: bool = True, inference: bool = False
    ) -> tuple[str, ...]:
        """Return the names of the data that the model takes."""
        return ("speech",) if inference else ("speech", "states")

    @classmethod
    def optional_data_names(
        cls, train: bool = True, inference: bool = False
    ) -> tuple[str, ...]:
        """Return no names: there are no other data."""
        return ()

    @classmethod
    def build_chunk_iter_factory(
        cls, args: argparse.Namespace, iter_options: IteratorOptions, mode: str
    ) -> AbsIterFactory:
        """Return a factory of chunks, all of which are in a batch of some learner.

        Raises:
            InputError: There is no shape file, `chunk_length` is not a single number
                above 0, or there are too few utterances.
        """
        frames = read_frames(iter_options.shape_files)
        size = dist.get_world_size() if iter_options.distributed else 1
        per_epoch = iter_options.num_iters_per_epoch
        stock = super().build_chunk_iter_factory(
            *whole_batches(args, iter_options, size), mode
        )
        total = None if per_epoch is None else per_epoch * size
        whole = FrameChunks(stock, frames, total, size, iter_options.num_batches)
        if divides_batches(args, iter_options, mode):
            return whole
        rank = dist.get_rank() if iter_options.distributed else 0
        return OwnShare(whole, rank, size)

    @classmethod
    def build_model(cls, args: argparse.Namespace) -> torch.nn.Module:
        """Build the model; `args` then describe a model that the stock task builds.

        Raises:
            InputError: `input_size`, the number of dimensions of the features, is not
                given.
        """
        if args.input_size is None:
            raise InputError("input_size: expected the dimensions of the features")
        # The stock model with these options has the same parameters. It computes no
        # character error rates, for which the tokens would have to be characters.
        args.model_conf = {
            **args.model_conf,
            "ctc_weight": 1.0,
            "report_cer": False,
            "report_wer": False,
        }
        args.model = _MODEL
        try:
            model: torch.nn.Module = super().build_model(args)
        finally:
            args.model = "espnet"
        return model


DistoptHybridTask = distopt_task(HybridTask, "DistoptHybridTask", __name__)
"""The task `HybridTask`, which any of this package's algorithms can train."""

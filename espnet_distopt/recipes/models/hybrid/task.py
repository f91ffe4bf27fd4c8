"""ESPnet's ASR task with frame labels: it trains the acoustic model of a hybrid system.

The data are `speech`, features of shape (frames, dimensions), and `states`, the pdf of
each frame. The tokens are the names of the pdfs. With `iterator_type: chunk` ESPnet
cuts both at the same places. The loss is frame cross-entropy instead of CTC.
"""

import argparse
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from espnet2.asr.espnet_model import ESPnetASRModel
from espnet2.iterators.abs_iter_factory import AbsIterFactory
from espnet2.iterators.chunk_iter_factory import ChunkIterFactory
from espnet2.tasks.abs_task import IteratorOptions
from espnet2.tasks.asr import ASRTask, model_choices
from espnet2.torch_utils.device_funcs import force_gatherable
from espnet2.utils.types import str2bool
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from espnet_distopt.errors import InputError
from espnet_distopt.espnet.models.captured import IGNORED, CapturedLoss
from espnet_distopt.espnet.models.padded_rnn import FullLength, stacks_lstms
from espnet_distopt.espnet.training.batches import divides_batches, whole_batches
from espnet_distopt.espnet.training.tasks import distopt_task
from espnet_distopt.files.text import read_text
from espnet_distopt.recipes.hmm.alignments import require_states
from espnet_distopt.recipes.models.hybrid.chunks import FrameChunks, OwnShare
from espnet_distopt.recipes.models.hybrid.cutting import batches_of_epoch, read_frames
from espnet_distopt.recipes.models.hybrid.held import HeldFrames, hold
from espnet_distopt.recipes.models.trained import encode


class FrameModel(ESPnetASRModel):
    """ESPnet's own model, whose linear layer before the CTC gives a score to each pdf.

    The parameters are those of the stock model, so the stock task loads a checkpoint.
    Only the loss differs.

    Attributes:
        captured: What computes the loss of training batches on a GPU, if all of them
            consist of chunks of one length; None for other batches, or eager steps.
    """

    captured: CapturedLoss | None = None

    def forward(
        self,
        speech: Tensor,
        speech_lengths: Tensor,
        states: Tensor,
        states_lengths: Tensor,
        **kwargs: Any,
    ) -> tuple[Tensor, dict[str, Tensor], Tensor]:
        """Return the mean cross-entropy of the frames, in nats.

        Args:
            speech: Features, shape (B, T, D).
            speech_lengths: Shape (B,).
            states: The pdf of each frame, shape (B, T), or -1 in padding.
            states_lengths: Shape (B,); the same as `speech_lengths`.
            kwargs: ESPnet's ids of the utterances.

        Returns:
            The loss; `loss` and `acc`, the share of frames whose pdf has the greatest
            posterior; and the weight of the batch, which is its number of sequences.
        """
        if self.training and self.captured is not None and speech.is_cuda:
            loss, accuracy = self.captured(speech, states)
        else:
            loss, accuracy = _rate(self.scores(speech, speech_lengths), states)
        stats = {"loss": loss.detach(), "acc": accuracy.detach()}
        # Made on the device: a copy to it would wait for the steps before this one.
        weight = torch.full((), len(speech), device=loss.device)
        return force_gatherable(  # type: ignore[no-any-return]
            (loss, stats, weight), loss.device
        )

    def scores(self, speech: Tensor, speech_lengths: Tensor) -> Tensor:
        """Return the logits of the pdfs, shape (B, T, P), of features (B, T, D).

        Raises:
            InputError: The encoder has another number of frames than its input.
        """
        encoded, _ = encode(self, speech=speech, speech_lengths=speech_lengths)
        if encoded.shape[1] != speech.shape[1]:
            raise InputError(
                f"encoder_conf: the encoder makes {encoded.shape[1]} frames of "
                f"{speech.shape[1]}, and each frame has a label: take one that does "
                "not subsample (for rnn, use_projection: false)"
            )
        return self.ctc.ctc_lo(encoded)  # type: ignore[no-any-return]

    def collect_feats(
        self, speech: Tensor, speech_lengths: Tensor, **kwargs: Any
    ) -> dict[str, Tensor]:
        """Return the features themselves, for ESPnet's statistics."""
        return {"feats": speech, "feats_lengths": speech_lengths}


def _rate(scores: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean cross-entropy of frames, and the share of those that are right.

    Args:
        scores: The logits of the pdfs, shape (B, T, P).
        states: The pdf of each frame, shape (B, T), or -1 in padding.
    """
    loss = cross_entropy(scores.flatten(0, 1), states.flatten(), ignore_index=IGNORED)
    counted = states != IGNORED
    right = (scores.argmax(-1) == states) & counted
    return loss, right.sum() / counted.sum()


class _ChunkLoss(nn.Module):
    """The loss and accuracy of chunks of one length, by a model's own layers."""

    def __init__(self, model: FrameModel) -> None:
        super().__init__()
        self.encoder, self.scores = FullLength(model.encoder), model.ctc.ctc_lo

    def forward(self, x: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        return _rate(self.scores(self.encoder(x)), states)


def capture_chunks(model: FrameModel) -> None:
    """Let a model compute its training steps on a GPU as CUDA graphs.

    All its batches must consist of chunks of one length. If there is more before the
    scores than a stack of LSTMs, its steps stay as they are.
    """
    before = (model.frontend, model.specaug, model.normalize, model.preencoder)
    if any(part is not None for part in (*before, model.postencoder)):
        return
    if stacks_lstms(model.encoder):
        model.captured = CapturedLoss(_ChunkLoss(model))


_MODEL = "frame_cross_entropy"
model_choices.classes.setdefault(_MODEL, FrameModel)


class HybridTask(ASRTask):
    """ESPnet's ASR task whose model is a `FrameModel`."""

    @classmethod
    def add_task_arguments(cls, parser: argparse.ArgumentParser) -> None:
        """Add the options of ESPnet's ASR task, and `--capture_steps`."""
        super().add_task_arguments(parser)
        parser.add_argument(
            "--capture_steps",
            type=str2bool,
            default=True,
            help="On a GPU, compute steps on chunks as CUDA graphs, which gives the "
            "same results several times as fast",
        )
        parser.add_argument(
            "--frames_in_memory",
            type=gibibytes,
            default=None,
            help="GiB of memory in which a learner may hold the frames of the training "
            "set, of the GPU if it has one. Where they have room, each utterance is "
            "read once, and not in each epoch (default: half of what the GPU has "
            "free, and nothing without a GPU)",
        )

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
        whole = FrameChunks(
            stock,
            frames,
            total,
            size,
            iter_options.num_batches,
            partial(_holding, stock, args) if mode == "train" else None,
        )
        if divides_batches(args, iter_options, mode):
            return whole
        rank = dist.get_rank() if iter_options.distributed else 0
        return OwnShare(whole, rank, size)

    @classmethod
    def build_model(cls, args: argparse.Namespace) -> nn.Module:
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
            model: nn.Module = super().build_model(args)
        finally:
            args.model = "espnet"
        if args.iterator_type == "chunk" and args.capture_steps:
            assert isinstance(model, FrameModel)
            capture_chunks(model)
        return model


def gibibytes(text: str) -> float:
    """Return a number of GiB, which is 0 at least."""
    if (value := float(text)) >= 0:
        return value
    raise ValueError(f"{text} GiB")


def _holding(
    stock: ChunkIterFactory,
    args: argparse.Namespace,
    frames: Mapping[str, int],
    length: int,
) -> HeldFrames | None:
    """Return room for the frames of the training set, where they may be held."""
    device = torch.device("cuda" if args.ngpu else "cpu")

    def sample() -> Mapping[str, Any]:
        _, sequences = stock.per_sample_iter_factory.dataset[next(iter(frames))]
        return sequences  # type: ignore[no-any-return]

    return hold(frames, sample, length, args.frames_in_memory, device)


def label_files(args: argparse.Namespace) -> list[Path]:
    """Return the files that sum up the frame labels of a training.

    Raises:
        InputError: The labels are numbers of other states than `token_list` names.
    """
    data = args.train_data_path_and_name_and_type or ()
    states = [Path(path).parent for path, name, _ in data if name == "states"]
    tokens, named = args.token_list, "token_list"
    if isinstance(tokens, str):
        named = tokens
        lines = read_text(Path(named)).removesuffix("\n").split("\n")
        tokens = [line.rstrip() for line in lines]
    for directory in states:
        require_states(directory, tokens, named)
    return [directory / "counts" for directory in states]


DistoptHybridTask = distopt_task(
    HybridTask,
    "DistoptHybridTask",
    __name__,
    sources=label_files,
    batches=batches_of_epoch,
)
"""The task `HybridTask`, which any of this package's algorithms can train."""

"""ESPnet's ASR task for text lines: images in, characters out, trained with CTC.

What it adds to the ASR task, beside the distopt training:
- the data type `line_image_HEIGHT` (`espnet_distopt.espnet.ocr.line_data`);
- `encoder: cnn_rnn` (`espnet_distopt.espnet.models.cnn_rnn`);
- `line_augmentation: true`, and `line_augmentation_conf`, for the training set.

A line is an array of shape (columns, height) by the name of `speech`, the name that
ESPnet's models know. There is no frontend; `input_size` is the height.
"""

import argparse
from collections.abc import Collection
from inspect import signature
from typing import Any

import torch
from espnet2.tasks.asr import ASRTask, encoder_choices
from espnet2.utils.nested_dict_action import NestedDictAction
from espnet2.utils.types import str2bool

from espnet_distopt.algorithms.options import configure
from espnet_distopt.corpora.lines.augmentation import LineAugmentation
from espnet_distopt.errors import InputError
from espnet_distopt.espnet.models.cnn_rnn import CNNRNNEncoder
from espnet_distopt.espnet.ocr import line_data  # noqa: F401 (registers the data type)
from espnet_distopt.espnet.ocr.line_preprocessor import LinePreprocessor
from espnet_distopt.espnet.training.tasks import distopt_task

encoder_choices.classes.setdefault("cnn_rnn", CNNRNNEncoder)


class OCRTask(ASRTask):
    """ESPnet's ASR task with line images, the CNN-RNN encoder and augmentation."""

    @classmethod
    def add_task_arguments(cls, parser: argparse.ArgumentParser) -> None:
        """Add ESPnet's options of the ASR task, and the augmentation's."""
        super().add_task_arguments(parser)
        group = parser.add_argument_group("line images")
        group.add_argument(
            "--line_augmentation",
            type=str2bool,
            default=False,
            help="Slant, stretch, bend and soil the lines of the training set",
        )
        group.add_argument(
            "--line_augmentation_conf",
            action=NestedDictAction,
            default={},
            help="slant, stretch, elastic, noise, probability",
        )

    @classmethod
    def build_preprocess_fn(cls, args: argparse.Namespace, train: bool) -> Any:
        """Return ESPnet's preprocessor; in training, with the augmentation.

        Raises:
            InputError: the augmentation has no such option, or not such a value.
        """
        stock = super().build_preprocess_fn(args, train)
        # Inference may read the configuration of a stock training.
        if not getattr(args, "line_augmentation", False):
            return stock
        augmentation = configure(
            LineAugmentation, args.line_augmentation_conf, "line_augmentation_conf"
        )
        return LinePreprocessor(stock, augmentation) if train else stock

    @classmethod
    def build_collate_fn(cls, args: argparse.Namespace, train: bool) -> Any:
        """Return ESPnet's, which makes a batch, given the widest line first.

        Encoders that pack their input (on GPUs; `vgg_rnn` anywhere) demand this order,
        and augmentation has changed the one that ESPnet's sampler made.
        """
        stock = super().build_collate_fn(args, train)

        def collate(lines: Collection[Any]) -> Any:
            return stock(sorted(lines, key=lambda line: -len(line[1]["speech"])))

        return collate

    @classmethod
    def build_model(cls, args: argparse.Namespace) -> torch.nn.Module:
        """Build the model.

        Raises:
            InputError: the height of the lines is not given, or the encoder has no such
                option.
        """
        if args.input_size is None:
            raise InputError("input_size: expected the height of the lines in pixels")
        if args.encoder == "cnn_rnn":
            try:
                signature(CNNRNNEncoder).bind(args.input_size, **args.encoder_conf)
            except TypeError as error:
                raise InputError(f"encoder_conf of cnn_rnn: {error}") from None
        return super().build_model(args)  # type: ignore[no-any-return]


DistoptOCRTask = distopt_task(OCRTask, "DistoptOCRTask", __name__)
"""`OCRTask`, trained by any of the algorithms."""

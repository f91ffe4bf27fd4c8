"""The module makes ESPnet's ASR task read text lines: it maps images to characters.

The task adds four things to ESPnet's ASR task:
- the data type `line_image_HEIGHT` (`espnet_distopt.recipes.models.ocr.data`);
- the encoder `cnn_rnn` (`espnet_distopt.recipes.models.cnn_rnn`);
- the options `line_augmentation` and `line_augmentation_conf`, which change the images
  of the training set at random;
- the option `line_least_rows`, by which recipes and decoding know how images are scaled
  (`corpora.lines.images.line_features`). It changes nothing here.

A line is an array of shape (columns, height). Its name is `speech`, because ESPnet's
models expect that name. There is no frontend; the option `input_size` is the height.
"""

import argparse
from collections.abc import Collection
from typing import Any

import torch
from espnet2.tasks.asr import ASRTask, encoder_choices
from espnet2.utils.nested_dict_action import NestedDictAction
from espnet2.utils.types import str2bool

from espnet_distopt.algorithms.options import configure
from espnet_distopt.errors import InputError
from espnet_distopt.espnet.training.tasks import distopt_task
from espnet_distopt.recipes.models.cnn_rnn import CNNRNNEncoder
from espnet_distopt.recipes.models.ocr.data import (
    LineAugmentation,
    LinePreprocessor,
    line_images,
)

encoder_choices.classes.setdefault("cnn_rnn", CNNRNNEncoder)


class OCRTask(ASRTask):
    """ESPnet's ASR task with line images, the CNN-RNN encoder and augmentation."""

    @classmethod
    def add_task_arguments(cls, parser: argparse.ArgumentParser) -> None:
        """Add the options of ESPnet's ASR task and those of the augmentation."""
        super().add_task_arguments(parser)
        group = parser.add_argument_group("line images")
        group.add_argument(
            "--line_least_rows",
            type=int,
            default=0,
            help="How many rows an image was padded to, at least, before it was scaled",
        )
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
        """Return ESPnet's preprocessor, which in training augments the images, too.

        Raises:
            InputError: an option of the augmentation is unknown or has a wrong value.
        """
        stock = super().build_preprocess_fn(args, train)
        # A configuration of ESPnet's own ASR task has no such option.
        if not getattr(args, "line_augmentation", False):
            return stock
        augmentation = configure(
            LineAugmentation, args.line_augmentation_conf, "line_augmentation_conf"
        )
        return LinePreprocessor(stock, augmentation) if train else stock

    @classmethod
    def build_collate_fn(cls, args: argparse.Namespace, train: bool) -> Any:
        """Return ESPnet's collate function, with the lines sorted by width.

        Encoders that pack their input (all on GPU, `vgg_rnn` everywhere) demand that
        the widest line comes first. ESPnet's sampler makes this order, but augmentation
        changes the widths afterwards.
        """
        stock = super().build_collate_fn(args, train)

        def collate(lines: Collection[Any]) -> Any:
            return stock(sorted(lines, key=lambda line: -len(line[1]["speech"])))

        return collate

    @classmethod
    def build_model(cls, args: argparse.Namespace) -> torch.nn.Module:
        """Build the model.

        Raises:
            InputError: `input_size`, the height of the lines, is not given, or images
                are scaled otherwise than the options say; the encoder has a shortcut
                that the loss does not read, or the reverse.
        """
        if args.input_size is None:
            raise InputError("input_size: expected the height of the lines in pixels")
        _check_images(args)
        if args.encoder == "cnn_rnn":
            _check_shortcut(args)
        return super().build_model(args)  # type: ignore[no-any-return]


def _check_images(args: argparse.Namespace) -> None:
    """Check that images are scaled as decoding will scale them, which reads options."""
    expected = line_images(args.input_size, getattr(args, "line_least_rows", 0))
    for part in ("train", "valid"):
        for path, _, kind in getattr(args, f"{part}_data_path_and_name_and_type", ()):
            if kind.startswith("line_image_") and kind != expected:
                raise InputError(
                    f"{path}: its type is {kind}, and input_size and line_least_rows "
                    f"need {expected}"
                )


def _check_shortcut(args: argparse.Namespace) -> None:
    weight = args.model_conf.get("interctc_weight", 0.0)
    if bool(args.encoder_conf.get("shortcut", False)) != (weight > 0):
        raise InputError(
            "encoder_conf: shortcut needs model_conf: interctc_weight above 0, e.g. "
            "0.1, and the reverse"
        )


DistoptOCRTask = distopt_task(OCRTask, "DistoptOCRTask", __name__)
"""The task `OCRTask`, which any of this package's algorithms can train."""

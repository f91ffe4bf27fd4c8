"""Loads trained models that have a CTC output, for inference."""

import zipfile
from argparse import Namespace
from pathlib import Path
from typing import Any

import torch

from espnet_distopt.errors import InputError, in_words
from espnet_distopt.espnet.models.padded_rnn import pad_rnn_encoders
from espnet_distopt.recipes.corpora.kaldi.tokens import require_pieces


def load_ctc_model(
    task: Any, config: Path, model: Path, purpose: str
) -> tuple[Any, Namespace]:
    """Load an experiment's `config.yaml` and one of its models, ready for inference.

    The purpose is a verb, which ends the message about a missing CTC output.

    Returns:
        The model in evaluation mode, and the arguments of its training.

    Raises:
        InputError: The two files do not fit together, the model has no CTC output, or
            its subwords were made anew of another text.
    """
    try:
        loaded, args = task.build_model_from_file(config, model)
        check_whole(loaded, model)
    except InputError:
        raise
    except Exception as error:  # of many kinds: files, keys, shapes
        raise InputError(
            f"{model}: not a model of {config}: {in_words(error)}"
        ) from error
    loaded.eval()
    if loaded.ctc is None:
        raise InputError(f"{config}: the model has no CTC output to {purpose}")
    if args.token_type == "bpe" and args.bpemodel is not None:
        require_pieces(Path(args.bpemodel), args.token_list, config)
    # Plain RNN encoders want their batches sorted, and are slower.
    pad_rnn_encoders(loaded, any_order=True)
    return loaded, args


def check_whole(loaded: torch.nn.Module, path: Path) -> None:
    """Check that a file has all of a model's parameters and buffers, and no others.

    ESPnet loads without asking (`strict=False`), and what a file lacks stays random.

    Raises:
        InputError: The file is of another model, or is a training's `checkpoint.pth`.
    """
    # With mmap the tensors are not read; files of old PyTorch have no index for it.
    saved = torch.load(
        path, map_location="cpu", mmap=zipfile.is_zipfile(path), weights_only=False
    )
    if "module" in saved:  # DeepSpeed's, as ESPnet reads it
        saved = saved["module"]
    own = loaded.state_dict().keys()
    if own == saved.keys():
        return
    if "optimizers" in saved:
        raise InputError(
            f"{path}: the state of a training, not a model: take latest.pth beside it"
        )
    name = min(own ^ saved.keys())
    what = "has no" if name in own else "has more than the model:"
    raise InputError(f"{path}: of another model than config.yaml says: {what} {name}")


def encode(model: Any, **batch: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the encoder's output (batch, frames, size) and its lengths (batch,)."""
    encoded, lengths = model.encode(**batch)
    if isinstance(encoded, tuple):  # with the outputs of layers in between
        encoded = encoded[0]
    return encoded, lengths

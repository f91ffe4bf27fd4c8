"""An ESPnet training as the problem of a simulation (`simulation.study.problem`).

The model and its data are those of the training command. The batches, the optimizer,
the learning-rate schedule and the gradient clipping are those of the simulation.
"""

import argparse
import copy
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from espnet2.tasks.abs_task import AbsTask
from espnet2.torch_utils.set_all_random_seed import set_all_random_seed
from espnet2.train.dataset import ESPnetDataset
from numpy.typing import NDArray
from torch import Tensor, nn

from espnet_distopt.errors import InputError
from espnet_distopt.espnet.training.tasks import DistoptASRTask
from espnet_distopt.simulation.virtual_learner import Gradient

Utterance = tuple[str, dict[str, NDArray[Any]]]
"""The id of an utterance, and ESPnet's arrays by name, as its datasets yield them."""

HELD_OUT_BATCH = 64
"""The number of utterances in a batch of the held-out loss. It changes only the time
that the loss takes."""


class EspnetProblem:
    """The model and the data of an ESPnet training, for any number of virtual learners.

    Every utterance is read and preprocessed once, and kept in memory, so any random
    augmentation by the preprocessor is drawn once. If the frontend has no trainable
    parameters, its features are also computed once, one utterance at a time, and the
    replicas have no frontend. SpecAugment and normalization stay in the model.

    The utterances are shuffled anew for each pass over them, and the batches are cut
    from the endless sequence of passes. Every learner's batch holds the same number of
    utterances, so all learners weigh the same in ESPnet's loss, which is a mean over
    utterances. N learners with b utterances each have together the batches of one
    learner with N b utterances.

    Args:
        arguments: Those of `bin.asr_train`: `--config`, the token list, data paths and
            so on. The `config.yaml` of an experiment holds them all. Shape files, batch
            types and trainer options are not used.
        batch_size: The number of utterances in one learner's step, which may be set
            later, too; None takes ESPnet's `--batch_size`.
        seed: The seed of the initial parameters and of the shuffling; None takes
            ESPnet's `--seed`.
        task: The ESPnet task.

    Raises:
        InputError: There is no training or no held-out data, or the arguments name
            parameters to start from.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        batch_size: int | None = None,
        seed: int | None = None,
        task: type[AbsTask] = DistoptASRTask,
    ) -> None:
        args = _parser(task).parse_args(arguments)
        _check(args)
        self._seed = args.seed if seed is None else seed
        set_all_random_seed(self._seed)
        self._model: Any = task.build_model(args)
        self._model.to(dtype=getattr(torch, args.train_dtype))
        self._train = _read(task, args, "train")
        self._held_out = _read(task, args, "valid")
        self._collate = task.build_collate_fn(args, False)
        self._has_features = _is_fixed(getattr(self._model, "frontend", None))
        if self._has_features:
            self._train = [self._with_features(u) for u in self._train]
            self._held_out = [self._with_features(u) for u in self._held_out]
            self._model.frontend = None
        # Batches of similar lengths need less padding.
        self._held_out.sort(key=lambda u: (max(map(len, u[1].values())), u[0]))
        self.batch_size: int = args.batch_size if batch_size is None else batch_size
        self.samples = len(self._train)

    def replica(self, rank: int, size: int) -> tuple[nn.Module, Gradient]:
        """Return a copy of the initial model, and the gradient of its batches.

        Its step k takes this learner's share of the k-th batch of `size * batch_size`
        utterances. So two learners never train on the same utterance of a pass, even if
        they make different numbers of steps.

        Raises:
            InputError: The batch size is less than one.
        """
        share = self.batch_size
        if share < 1:
            raise InputError(f"the batch size must be >= 1, not {share}")
        model: nn.Module = copy.deepcopy(self._model).train()

        def gradient(step: int) -> float:
            first = (step * size + rank) * share
            chosen = [self._at(p) for p in range(first, first + share)]
            loss = self._loss(model, chosen)
            loss.backward()
            return float(loss.detach())

        return model, gradient

    def held_out_loss(self, model: nn.Module) -> float:
        """Return ESPnet's validation loss of `model`, the mean over utterances."""
        was_training = model.training
        model.eval()
        total = 0.0
        with torch.no_grad():
            for first in range(0, len(self._held_out), HELD_OUT_BATCH):
                chosen = self._held_out[first : first + HELD_OUT_BATCH]
                total += float(self._loss(model, chosen)) * len(chosen)
        model.train(was_training)
        return total / len(self._held_out)

    def describe(self) -> str:
        """Return the size of the model and of its data, and the seed."""
        parameters = sum(p.numel() for p in self._model.parameters() if p.requires_grad)
        features = ", features computed once" if self._has_features else ""
        return (
            f"ESPnet model of {parameters:,} parameters, {self.samples:,} utterances, "
            f"{len(self._held_out):,} held out{features}, seed {self._seed}"
        )

    def _at(self, position: int) -> Utterance:
        """Return an utterance by its position in the endless sequence of passes."""
        number, index = divmod(position, self.samples)
        chosen = int(_shuffled(self.samples, self._seed, number)[index])
        return self._train[chosen]

    def _loss(self, model: nn.Module, utterances: Sequence[Utterance]) -> Tensor:
        _, batch = self._collate(utterances)
        loss: Tensor = model(**batch)[0]
        return loss

    def _with_features(self, utterance: Utterance) -> Utterance:
        name, arrays = utterance
        with torch.no_grad():
            speech = torch.from_numpy(arrays["speech"])[None]
            features = self._model.frontend(speech, torch.tensor([speech.size(1)]))[0]
        return name, {**arrays, "speech": features[0].numpy()}


def _parser(task: type[AbsTask]) -> argparse.ArgumentParser:
    """Return the task's parser, which also takes the config.yaml of an experiment."""
    parser: argparse.ArgumentParser = task.get_parser()
    # ESPnet writes these three to the file too, and its own parser refuses them.
    for written in ("required", "version", "distributed"):
        parser.add_argument(f"--{written}", help=argparse.SUPPRESS)
    return parser


def _check(args: argparse.Namespace) -> None:
    for option in ("train_data_path_and_name_and_type", "token_list"):
        if not getattr(args, option, True):
            raise InputError(f"the training arguments lack --{option}")
    if not args.valid_data_path_and_name_and_type:
        raise InputError(
            "the training arguments lack --valid_data_path_and_name_and_type: the "
            "held-out loss needs it"
        )
    if args.init_param:
        raise InputError("--init_param: a simulation starts from random parameters")


def _read(task: type[AbsTask], args: argparse.Namespace, part: str) -> list[Utterance]:
    """Read and preprocess all utterances of `part`, which is `train` or `valid`.

    Raises:
        InputError: There are none.
    """
    train = part == "train"
    sources = getattr(args, f"{part}_data_path_and_name_and_type")
    dataset = ESPnetDataset(
        sources,
        float_dtype=args.train_dtype,
        preprocess=task.build_preprocess_fn(args, train),
    )
    task.check_task_requirements(dataset, args.allow_variable_data_keys, train=train)
    utterances = [dataset[name] for name in dataset]
    if not utterances:
        raise InputError(f"{sources[0][0]}: no utterances")
    return utterances


def _is_fixed(frontend: nn.Module | None) -> bool:
    """Return whether there is a frontend, and nothing in it is trained."""
    return frontend is not None and not any(
        p.requires_grad for p in frontend.parameters()
    )


@functools.lru_cache(maxsize=64)
def _shuffled(samples: int, seed: int, number: int) -> NDArray[np.int64]:
    """Return the order of the utterances in pass `number`; the first pass is 0."""
    return np.random.default_rng([seed, number]).permutation(samples)

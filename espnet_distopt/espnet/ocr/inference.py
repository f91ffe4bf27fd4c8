"""Decodes text lines with a trained model of `DistoptOCRTask` or a stock ASR one."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from espnet_distopt.corpora.lines.images import UnfitLine
from espnet_distopt.errors import InputError
from espnet_distopt.espnet.models.trained import encode, load_ctc_model

# What ESPnet prints while it is imported is no progress of ours.
with redirect_stdout(sys.stderr):
    from espnet2.text.build_tokenizer import build_tokenizer
    from espnet2.train.dataset import ESPnetDataset

    from espnet_distopt.espnet.ocr.language_model import load_lm
    from espnet_distopt.espnet.ocr.search import (
        Decoding,
        Search,
        greedy,
        prefix_beam,
    )
    from espnet_distopt.espnet.ocr.task import OCRTask

_Line = tuple[str, dict[str, Any]]
"""An id, and ESPnet's arrays by name."""

_BATCH_COLUMNS = 1000
"""Columns of a line that a full batch is meant for; of longer ones it holds fewer."""


@dataclass
class Recognized:
    """What became of some lines.

    Attributes:
        texts: of each line; empty for one that is unfit.
        unfit: why, for those.
    """

    texts: dict[str, str] = field(default_factory=dict)
    unfit: dict[str, str] = field(default_factory=dict)


class LineRecognizer:
    """A trained model with a CTC output, for inference on CPU.

    Attributes:
        height: of the lines in pixels.
    """

    def __init__(
        self, config: Path, model: Path, decoding: Decoding, lm: Path | None = None
    ) -> None:
        """Load an experiment's `config.yaml` and one of its models.

        Args:
            config: the configuration.
            model: the parameters.
            decoding: how to search.
            lm: directory of a language model, for `prefix_beam`.

        Raises:
            InputError: they do not fit together, or the model has no CTC output.
        """
        self._model, args = load_ctc_model(OCRTask, config, model, "decode")
        self.height: int = args.input_size
        self._tokens: list[str] = list(self._model.token_list)
        self._tokenizer: Any = build_tokenizer(
            token_type=args.token_type, bpemodel=args.bpemodel
        )
        self._collate: Any = OCRTask.build_collate_fn(args, False)
        self._decoding = decoding
        self._search = self._chosen_search(lm)

    def _chosen_search(self, lm: Path | None) -> Search:
        if self._decoding.search == "greedy":
            if lm is not None:
                raise InputError("a language model needs search: prefix_beam")
            return greedy(self._model.ctc)
        scorer = None if lm is None else load_lm(lm, self._tokens)
        return prefix_beam(self._model.ctc, self._tokens, self._decoding, scorer)

    @torch.no_grad()
    def recognize(
        self,
        scp: Path,
        data_type: str,
        columns: Mapping[str, int],
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> Recognized:
        """Decode lines.

        Args:
            scp: where each line is.
            data_type: `kaldi_ark`, or `line_image_HEIGHT`.
            columns: the lines to decode, and their widths, by which they are put into
                batches, the widest first.
            progress: gets the number of lines done, and of all.

        Raises:
            InputError: a line cannot be read, or has another height.
        """
        lines: Any = ESPnetDataset([(str(scp), "speech", data_type)])
        recognized = Recognized()
        done = 0
        for names in batches(columns, self._decoding.batch_size):
            batch = []
            for name in names:
                try:
                    batch.append(_inked(lines[name]))
                except UnfitLine as error:
                    recognized.texts[name] = ""
                    recognized.unfit[name] = str(error)
            if batch:
                recognized.texts.update(self._decode(batch))
            done += len(names)
            progress(done, len(columns))
        return recognized

    def _decode(self, lines: list[_Line]) -> Iterator[tuple[str, str]]:
        names, batch = self._collate(lines)
        encoded, lengths = encode(self._model, **batch)
        for name, ids in zip(names, self._search(encoded, lengths), strict=True):
            text = self._tokenizer.tokens2text([self._tokens[i] for i in ids])
            yield name, " ".join(text.split())


def _inked(line: _Line) -> _Line:
    if not line[1]["speech"].any():
        raise UnfitLine("no ink")
    return line


def batches(columns: Mapping[str, int], batch_size: int) -> Iterator[list[str]]:
    """Put lines of like widths together, the widest first, fewer of very wide ones."""
    names = sorted(columns, key=lambda name: (-columns[name], name))
    while names:
        widest = max(1, columns[names[0]])
        size = max(1, min(batch_size, batch_size * _BATCH_COLUMNS // widest))
        yield names[:size]
        names = names[size:]

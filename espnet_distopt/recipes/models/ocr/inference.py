"""The module decodes images of text lines with a trained CTC model.

The model may come from `DistoptOCRTask` or from ESPnet's own ASR task.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from espnet_distopt.errors import InputError
from espnet_distopt.espnet.models.quick_import import importing_espnet
from espnet_distopt.recipes.corpora.lines.images import UnfitLine
from espnet_distopt.recipes.models.trained import encode, load_ctc_model

# ESPnet prints while it is imported; standard output is kept for the program's result.
with importing_espnet():
    from espnet2.text.build_tokenizer import build_tokenizer
    from espnet2.train.dataset import ESPnetDataset

    from espnet_distopt.recipes.models.ocr.data import line_images
    from espnet_distopt.recipes.models.ocr.search import (
        Decoding,
        PrefixScorer,
        Search,
        greedy,
        load_lm,
        load_ngram,
        prefix_beam,
    )
    from espnet_distopt.recipes.models.ocr.task import OCRTask

_Line = tuple[str, dict[str, Any]]
"""The id of a line, and ESPnet's arrays of it by name."""

_BATCH_COLUMNS = 1000
"""The greatest width of a line, in columns, at which a batch is full.

Where lines are wider than this, a batch holds proportionally fewer of them.
"""


@dataclass
class Recognized:
    """The result of decoding lines.

    Attributes:
        texts: line -> its text; the text of a line that could not be decoded is empty.
        unfit: line -> the reason why it could not be decoded.
    """

    texts: dict[str, str] = field(default_factory=dict)
    unfit: dict[str, str] = field(default_factory=dict)


class LineRecognizer:
    """A trained model with a CTC output, for inference on CPU.

    Attributes:
        scaling: the height of the lines that the model reads, and the least rows of
            the images that it was trained on.
        data_type: ESPnet's data type for images of lines as the model reads them.
    """

    def __init__(
        self,
        config: Path,
        model: Path,
        decoding: Decoding,
        lm: Path | None = None,
        ngram: Path | None = None,
    ) -> None:
        """Load an experiment's `config.yaml` and one of its models.

        The language model is a directory, which `prefix_beam` may use; the n-gram is an
        ARPA file over characters, which `ngram_beam` uses.

        Raises:
            InputError: the model does not fit the configuration or has no CTC output,
                or the language model or the n-gram does not fit the model or the
                search.
        """
        self._model, args = load_ctc_model(OCRTask, config, model, "decode")
        # A configuration of ESPnet's own ASR task does not have all the options.
        self.scaling = args.input_size, getattr(args, "line_least_rows", 0)
        self.data_type = line_images(*self.scaling)
        self._tokens: list[str] = list(self._model.token_list)
        self._tokenizer: Any = build_tokenizer(
            token_type=args.token_type, bpemodel=args.bpemodel
        )
        self._collate: Any = OCRTask.build_collate_fn(args, False)
        self._decoding = decoding
        self._search = self._chosen_search(lm, ngram)

    def _chosen_search(self, lm: Path | None, ngram: Path | None) -> Search:
        search, ctc = self._decoding.search, self._model.ctc
        if lm is not None and search != "prefix_beam":
            raise InputError("a language model needs search: prefix_beam")
        if (ngram is not None) != (search == "ngram_beam"):
            raise InputError("search: ngram_beam needs an n-gram, and the reverse")
        if search == "greedy":
            return greedy(ctc)
        beam = partial(prefix_beam, ctc, self._tokens, self._decoding)
        if lm is not None:
            model, end = load_lm(lm, self._tokens), len(self._tokens) - 1
            return beam(lambda: PrefixScorer(model, end))
        if ngram is not None:
            # One scorer serves all lines, because histories of few tokens recur.
            scorer = load_ngram(ngram, self._tokens)
            return beam(lambda: scorer)
        return beam()

    @torch.no_grad()
    def recognize(
        self,
        scp: Path,
        data_type: str,
        columns: Mapping[str, int],
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> Recognized:
        """Decode lines in batches, the widest lines first.

        The table `scp` says where each line is stored, and `columns` how wide it is.
        Its data type is `kaldi_ark`, or the attribute `data_type` for images.
        `progress` is called after each batch with the number of lines done, and of all.

        Raises:
            InputError: a line cannot be read, or its height is not the model's.
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
    """Yield batches of lines with similar widths, the widest lines first.

    A batch of very wide lines has fewer than `batch_size`.
    """
    names = sorted(columns, key=lambda name: (-columns[name], name))
    while names:
        widest = max(1, columns[names[0]])
        size = max(1, min(batch_size, batch_size * _BATCH_COLUMNS // widest))
        yield names[:size]
        names = names[size:]

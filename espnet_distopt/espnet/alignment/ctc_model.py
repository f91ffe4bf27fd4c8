"""The module computes CTC posteriors with a trained ESPnet model.

It also tells how many audio samples one frame of the posteriors covers.
"""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from espnet_distopt.errors import InputError
from espnet_distopt.espnet.models.quick_import import importing_espnet
from espnet_distopt.espnet.models.trained import encode, load_ctc_model

# ESPnet prints while it is imported; standard output is kept for the program's result.
with importing_espnet():
    from espnet2.tasks.asr import ASRTask
    from espnet2.text.build_tokenizer import build_tokenizer
    from espnet2.text.token_id_converter import TokenIDConverter

_PROBED_FRAMES = 400
"""The length of the silence that is encoded to find the encoder's subsampling, in
frames of the frontend. It is long enough that the rounding of the output length does
not change the quotient."""
_BATCH = 16
"""How many utterances are encoded together."""


class CTCModel:
    """A trained model with a CTC output, for inference on CPU.

    Attributes:
        tokens: the model's token list; the first token is the blank.
        token_type: the kind of its tokens: `word`, `char` or `bpe`.
        samples_per_frame: how many audio samples one frame of the posteriors covers:
            the frontend's hop times the encoder's subsampling.
    """

    def __init__(self, config: Path, model: Path) -> None:
        """Load an experiment's `config.yaml` and one of its models.

        Raises:
            InputError: the model does not fit the configuration, has no CTC output, or
                has no frontend with a fixed hop.
        """
        self._model, self._args = load_ctc_model(ASRTask, config, model, "align with")
        self.tokens: list[str] = list(self._model.token_list)
        self.token_type: str = self._args.token_type
        self._tokenizer: Any = build_tokenizer(
            token_type=self.token_type, bpemodel=self._args.bpemodel
        )
        self.samples_per_frame = self._hop(config) * self._subsampling(config)

    def tokenize(self, text: str) -> list[str]:
        """Return the tokens of a text, split as the model's training split texts."""
        converter = TokenIDConverter(token_list=self.tokens)
        ids = converter.tokens2ids(self._tokenizer.text2tokens(text))
        return [self.tokens[index] for index in ids]

    def spell(self, tokens: Sequence[str]) -> str:
        """Return the text of tokens, its words separated by single spaces."""
        return " ".join(self._tokenizer.tokens2text(tokens).split())

    @torch.no_grad()
    def posteriors(
        self, wavs: Mapping[str, str]
    ) -> Iterator[tuple[str, NDArray[np.float32]]]:
        """Yield each utterance with its log-posteriors, shape (frames, tokens).

        The utterances come in the order of `wavs`. Audio is read as ESPnet's own
        inference reads it. Neighbours are encoded in one batch, padded to the longest,
        so the caller should sort utterances by length.

        Args:
            wavs: utterance -> its audio as `path.ark:offset`.
        """
        with tempfile.NamedTemporaryFile("w", encoding="utf-8") as scp:
            scp.writelines(f"{name} {location}\n" for name, location in wavs.items())
            scp.flush()
            loader = ASRTask.build_streaming_iterator(
                [(scp.name, "speech", "kaldi_ark")],
                preprocess_fn=ASRTask.build_preprocess_fn(self._args, False),
                collate_fn=ASRTask.build_collate_fn(self._args, False),
                dtype="float32",
                batch_size=_BATCH,
                num_workers=0,
                inference=True,
            )
            for names, batch in loader:
                log_probs, lengths = self._forward(**batch)
                for name, row, length in zip(names, log_probs, lengths, strict=True):
                    yield name, row[: int(length)].numpy()

    def _forward(
        self, speech: torch.Tensor, speech_lengths: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        encoded, lengths = encode(
            self._model, speech=speech, speech_lengths=speech_lengths
        )
        return self._model.ctc.log_softmax(encoded), lengths

    def _hop(self, config: Path) -> int:
        hop = getattr(self._model.frontend, "hop_length", None)
        if not isinstance(hop, int):
            raise InputError(
                f"{config}: the frontend has no hop_length, so its frames have no time"
            )
        return hop

    @torch.no_grad()
    def _subsampling(self, config: Path) -> int:
        samples = _PROBED_FRAMES * self._hop(config)
        _, lengths = self._forward(torch.zeros(1, samples), torch.tensor([samples]))
        return round(_PROBED_FRAMES / int(lengths[0]))

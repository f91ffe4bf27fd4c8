"""The CTC side of a trained ESPnet model: posteriors, and how long their frames are."""

import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from espnet_distopt.errors import InputError
from espnet_distopt.espnet.models.trained import encode, load_ctc_model

# What ESPnet prints while it is imported is no progress of ours.
with redirect_stdout(sys.stderr):
    from espnet2.tasks.asr import ASRTask
    from espnet2.text.build_tokenizer import build_tokenizer
    from espnet2.text.token_id_converter import TokenIDConverter

_PROBED_FRAMES = 400  # frames of silence that tell how much the encoder subsamples
_BATCH = 16


class CTCModel:
    """A trained model with a CTC output, for inference on CPU.

    Attributes:
        tokens: its token list; the first one is the blank.
        token_type: `word`, `char` or `bpe`.
        samples_per_frame: of its posteriors: the frontend's hop times the encoder's
            subsampling.
    """

    def __init__(self, config: Path, model: Path) -> None:
        """Load an experiment's `config.yaml` and one of its models.

        Raises:
            InputError: they do not fit together, or the model has no CTC output or no
                frontend of a fixed hop.
        """
        self._model, self._args = load_ctc_model(ASRTask, config, model, "align with")
        self.tokens: list[str] = list(self._model.token_list)
        self.token_type: str = self._args.token_type
        self.samples_per_frame = self._hop(config) * self._subsampling(config)

    def tokenize(self, text: str) -> list[str]:
        """Split a text into the model's tokens, as its training did."""
        tokenizer: Any = build_tokenizer(
            token_type=self.token_type, bpemodel=self._args.bpemodel
        )
        converter = TokenIDConverter(token_list=self.tokens)
        ids = converter.tokens2ids(tokenizer.text2tokens(text))
        return [self.tokens[index] for index in ids]

    @torch.no_grad()
    def posteriors(
        self, wavs: Mapping[str, str]
    ) -> Iterator[tuple[str, NDArray[np.float32]]]:
        """Compute log-posteriors, shape (frames, tokens), of utterances in their order.

        Audio is read as ESPnet's own inference reads it. Utterances of like length
        should be neighbours: they are computed in batches, padded to the longest.

        Args:
            wavs: `path.ark:offset` of each utterance.
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

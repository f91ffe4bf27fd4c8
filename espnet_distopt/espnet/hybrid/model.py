"""An ESPnet model that is trained by frame cross-entropy instead of CTC."""

from typing import Any

import torch
from espnet2.asr.espnet_model import ESPnetASRModel
from espnet2.torch_utils.device_funcs import force_gatherable
from torch import Tensor
from torch.nn.functional import cross_entropy

from espnet_distopt.errors import InputError
from espnet_distopt.espnet.models.trained import encode

_PADDING = -1
"""The label with which ESPnet pads shorter utterances of a batch."""


class FrameModel(ESPnetASRModel):
    """ESPnet's own model, whose linear layer before the CTC gives a score to each pdf.

    The parameters are those of the stock model, so the stock task loads a checkpoint.
    Only the loss differs.
    """

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
        scores = self.scores(speech, speech_lengths)
        loss = cross_entropy(
            scores.flatten(0, 1), states.flatten(), ignore_index=_PADDING
        )
        counted = states != _PADDING
        right = (scores.argmax(-1) == states) & counted
        accuracy = right.sum() / counted.sum()
        stats = {"loss": loss.detach(), "acc": accuracy.detach()}
        return force_gatherable(  # type: ignore[no-any-return]
            (loss, stats, torch.tensor(len(speech))), loss.device
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

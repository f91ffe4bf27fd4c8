"""Whether a model has a frame for each label of an utterance, as CTC needs it."""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import cache

import torch

from espnet_distopt.errors import InputError
from espnet_distopt.espnet.models.quick_import import importing_espnet
from espnet_distopt.recipes.models.trained import encode

with importing_espnet():
    from espnet_distopt.espnet.training.tasks import DistoptASRTask

_PROBED = 64_000  # samples of silence; long enough that rounding changes little
_MARGIN = 8  # frames by which the quotient of lengths may be wrong


def enough_frames(options: Sequence[str]) -> Callable[[int, int], bool]:
    """Build a model, and return whether samples are enough for a number of labels.

    Where the subsampling leaves a doubt, silence is encoded to find the least samples
    that have so many frames. What the encoder refuses is never long enough.

    Args:
        options: Those of `asr_train` that make the model: `--config`, `--token_list`
            and so on. Normalization is left out, as it changes no length.

    Raises:
        InputError: The model reads no samples.
    """
    args = DistoptASRTask.get_parser().parse_args([*options, "--normalize", "none"])
    model = DistoptASRTask.build_model(args).eval()
    if getattr(model, "frontend", None) is None:
        raise InputError("the model has no frontend, so it reads no samples")
    has_ctc = getattr(model, "ctc", None) is not None

    @torch.no_grad()
    def frames(samples: int) -> int:
        speech = torch.zeros(1, samples)
        try:
            _, lengths = encode(
                model, speech=speech, speech_lengths=torch.tensor([samples])
            )
        except Exception:  # of many kinds, as encoders find an input too short
            return 0
        return int(lengths[0])

    per_frame = _PROBED / max(frames(_PROBED), 1)

    def about(count: int) -> int:
        return max(0, int(count * per_frame))

    @cache
    def least(needed: int) -> int:
        doubtful = range(about(needed - _MARGIN), about(needed + _MARGIN))
        return doubtful.start + bisect_left(doubtful, needed, key=frames)

    def enough(samples: int, labels: int) -> bool:
        needed = max(labels, 1) if has_ctc else 1
        if samples >= about(needed + _MARGIN):
            return True
        return samples >= about(needed - _MARGIN) and samples >= least(needed)

    return enough

"""The module decodes speech by the best path through its CTC posteriors."""

from collections.abc import Iterator, Mapping

from espnet_distopt.espnet.alignment.ctc_model import CTCModel


def decode(
    model: CTCModel, wavs: Mapping[str, str], samples: Mapping[str, int]
) -> Iterator[tuple[str, list[str]]]:
    """Yield each utterance with its tokens, the longest utterance first.

    The best path takes the best token of each frame; then repetitions and blanks are
    removed. It costs one forward pass of batches, and no search.

    Args:
        model: the model that decodes.
        wavs: utterance -> its audio as `path.ark:offset`.
        samples: utterance -> its length in samples.
    """
    order = sorted(wavs, key=lambda utterance: (-samples[utterance], utterance))
    for utterance, log_probs in model.posteriors({name: wavs[name] for name in order}):
        path = log_probs.argmax(axis=1)
        starts = [i for i in range(len(path)) if i == 0 or path[i] != path[i - 1]]
        yield utterance, [model.tokens[path[i]] for i in starts if path[i] != 0]

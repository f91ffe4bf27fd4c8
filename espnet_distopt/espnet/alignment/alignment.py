"""The module finds the time of each word that a recognizer has decoded.

The best path of the decoded tokens through the model's CTC posteriors says in which
frames a word lies; the length of a frame turns frames into seconds.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from espnet_distopt.corpora.hub5.ctm import Word
from espnet_distopt.corpora.hub5.placing import Span, placed
from espnet_distopt.corpora.kaldi.arks import read_wav
from espnet_distopt.corpora.kaldi.places import ArkPlace
from espnet_distopt.corpora.word_times import time_words
from espnet_distopt.espnet.alignment.ctc_model import CTCModel


@dataclass(frozen=True)
class Alignment:
    """The result of an alignment.

    Attributes:
        words: all words of all utterances, with their times in seconds.
        spread: sorted names of the utterances that have fewer frames than their tokens
            need; their words share the utterance's time evenly.
    """

    words: list[Word]
    spread: list[str]


def align(
    model: CTCModel,
    wavs: Mapping[str, str],
    decoded: Mapping[str, Sequence[str]],
    places: Mapping[str, ArkPlace],
    samples: Mapping[str, int],
    spans: Mapping[str, Span] = MappingProxyType({}),
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Alignment:
    """Align decoded utterances with their audio.

    A word starts with the first frame of its first token and ends behind the last
    frame of its last token, but not outside of its segment (`placing`).

    Args:
        model: the model whose posteriors are aligned.
        wavs: utterance -> its audio as `path.ark:offset`; all utterances have the same
            sample rate.
        decoded: utterance -> the model's tokens of it; an utterance with no tokens has
            no words.
        places: utterance -> its place in the recording: file, channel, and start in
            seconds.
        samples: utterance -> its length in samples.
        spans: utterance -> the start and the end, in seconds of its recording, of what
            the reference calls this utterance, where the audio has more than that.
        progress: a function that is called after each utterance with the number of
            aligned utterances and the number of all that have tokens.
    """
    ids = {token: index for index, token in enumerate(model.tokens)}
    spoken = [utterance for utterance, tokens in decoded.items() if tokens]
    spoken.sort(key=lambda utterance: -samples[utterance])
    words: list[Word] = []
    spread: list[str] = []
    if not spoken:
        return Alignment(words, spread)
    rate, _ = read_wav(wavs[spoken[0]])
    seconds = model.samples_per_frame / rate
    posteriors = model.posteriors({utterance: wavs[utterance] for utterance in spoken})
    for done, (utterance, log_probs) in enumerate(posteriors, start=1):
        tokens = decoded[utterance]
        columns = [ids[token] for token in tokens]
        timed, found = time_words(log_probs, tokens, columns, model.token_type)
        if not found:
            spread.append(utterance)
        place = places[utterance]
        audio = (place.start, place.start + samples[utterance] / rate)
        span = spans.get(utterance, audio)
        words += [placed(word, place, seconds, span) for word in timed]
        progress(done, len(spoken))
    return Alignment(words, sorted(spread))

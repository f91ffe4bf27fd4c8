"""Word times of decoded utterances: the best path through a model's CTC posteriors."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from espnet_distopt.corpora.hub5.ctm import Word
from espnet_distopt.corpora.kaldi.arks import read_wav
from espnet_distopt.corpora.kaldi.places import ArkPlace
from espnet_distopt.corpora.word_times import TimedWord, time_words
from espnet_distopt.espnet.alignment.ctc_model import CTCModel


@dataclass(frozen=True)
class Alignment:
    """Words with their times, and the utterances whose words were spread evenly."""

    words: list[Word]
    spread: list[str]


def align(
    model: CTCModel,
    wavs: Mapping[str, str],
    decoded: Mapping[str, Sequence[str]],
    places: Mapping[str, ArkPlace],
    samples: Mapping[str, int],
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Alignment:
    """Align utterances with their audio.

    A word starts with the first frame of its first token and ends behind the last
    frame of its last one.

    Args:
        model: gives the posteriors.
        wavs: `path.ark:offset` of each utterance; all have one sample rate.
        decoded: the model's tokens of each utterance; may be empty.
        places: where the utterances lie.
        samples: length of each utterance.
        progress: is told how many utterances are done, of how many.
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
        limit = samples[utterance] / rate
        words += [_place(word, places[utterance], seconds, limit) for word in timed]
        progress(done, len(spoken))
    return Alignment(words, sorted(spread))


def _place(timed: TimedWord, place: ArkPlace, seconds: float, limit: float) -> Word:
    """Give a word its place in the file; the last frame may reach beyond the audio."""
    start = min(timed.first * seconds, limit)
    end = min(timed.end * seconds, limit)
    return Word(place.file, place.channel, place.start + start, end - start, timed.word)

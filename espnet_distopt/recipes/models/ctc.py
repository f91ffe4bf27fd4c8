"""Decodes and aligns speech by the CTC output of a trained ESPnet model."""

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from espnet_distopt.errors import InputError
from espnet_distopt.espnet.models.quick_import import importing_espnet
from espnet_distopt.recipes.corpora.hub5.ctm import Span, TimedWord, Word, placed
from espnet_distopt.recipes.corpora.kaldi.arks import read_wav
from espnet_distopt.recipes.corpora.kaldi.directory import ArkPlace
from espnet_distopt.recipes.corpora.kaldi.tokens import SPACE
from espnet_distopt.recipes.hmm.ctc_graph import count_arcs, expand_ctc
from espnet_distopt.recipes.hmm.graph import Graph, check_memory, ngram_grammar
from espnet_distopt.recipes.hmm.ngram import Ngram
from espnet_distopt.recipes.hmm.search import WordSearch, best_path
from espnet_distopt.recipes.models.trained import encode, load_ctc_model
from espnet_distopt.recipes.models.undecoded import Undecoded

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
_SHORT = 2000
"""Utterances of fewer samples are encoded alone: padded to a longer one, those that are
too short for the encoder would have words, of the padding."""


class CTCModel:
    """A trained model with a CTC output, for inference on CPU.

    Attributes:
        tokens: the model's token list; the first token is the blank.
        token_type: the kind of its tokens: `word`, `char` or `bpe`.
        samples_per_frame: how many audio samples one frame of the posteriors covers:
            the frontend's hop times the encoder's subsampling.
        undecoded: the utterances that could not be encoded.
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
        self.undecoded = Undecoded()
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
        so the caller should sort utterances by length. One that cannot be encoded, as
        it is too short, has no frames, and is noted in `undecoded`.

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
                yield from zip(names, self._rows(names, **batch), strict=True)
        self.undecoded.check(len(wavs))

    def _rows(
        self, names: Sequence[str], speech: torch.Tensor, speech_lengths: torch.Tensor
    ) -> list[NDArray[np.float32]]:
        """Return the log-posteriors of each utterance of a batch."""
        if len(names) == 1 or int(speech_lengths.min()) >= _SHORT:
            try:
                log_probs, lengths = self._forward(speech, speech_lengths)
            except Exception as error:  # of many kinds: too short, out of memory
                if len(names) == 1:
                    self.undecoded.add(names[0], int(speech_lengths[0]), error)
                    return [np.zeros((0, len(self.tokens)), np.float32)]
            else:
                return [
                    row[: max(int(length), 0)].numpy()
                    for row, length in zip(log_probs, lengths, strict=True)
                ]
        return [
            self._rows([name], wav[None, :length], length[None])[0]
            for name, wav, length in zip(names, speech, speech_lengths, strict=True)
        ]

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


# The module finds the time of each word that a recognizer has decoded.
#
# The best path of the decoded tokens through the model's CTC posteriors says in which
# frames a word lies; the length of a frame turns frames into seconds.


@dataclass(frozen=True)
class Alignment:
    """The result of an alignment.

    Attributes:
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


def decode(
    model: CTCModel, wavs: Mapping[str, str], samples: Mapping[str, int]
) -> Iterator[tuple[str, list[str]]]:
    """Yield each utterance with its tokens, the longest utterance first.

    The best path takes the best token of each frame; then repetitions and blanks are
    removed. It costs one forward pass of batches, and no search.
    """
    for utterance, log_probs in _longest_first(model, wavs, samples):
        path = log_probs.argmax(axis=1)
        starts = [i for i in range(len(path)) if i == 0 or path[i] != path[i - 1]]
        yield utterance, [model.tokens[path[i]] for i in starts if path[i] != 0]


def _longest_first(
    model: CTCModel, wavs: Mapping[str, str], samples: Mapping[str, int]
) -> Iterator[tuple[str, NDArray[np.float32]]]:
    order = sorted(wavs, key=lambda utterance: (-samples[utterance], utterance))
    return model.posteriors({name: wavs[name] for name in order})


_UNKNOWN = "<unk>"
"""ESPnet's token of what the model cannot spell; also a word of some n-grams."""


def spellings(model: CTCModel, words: Iterable[str]) -> dict[str, list[int]]:
    """Return the tokens of each word, by their numbers.

    Words are left out that the model cannot spell without its unknown token.

    Raises:
        InputError: The tokens are characters, which need one for the space.
    """
    if model.token_type not in ("word", "bpe"):
        raise InputError(
            f"a search of words needs a model over words or bpe, not over "
            f"{model.token_type}"
        )
    numbers = {token: number for number, token in enumerate(model.tokens)}
    found = {}
    for word in words:
        tokens = [] if word == _UNKNOWN else model.tokenize(word)
        if tokens and _UNKNOWN not in tokens:
            found[word] = [numbers[token] for token in tokens]
    return found


def word_graph(
    model: CTCModel,
    ngram: Ngram,
    spelled: Mapping[str, list[int]],
    search: WordSearch,
    log: Callable[[str], None],
) -> Graph:
    """Return the graph of the words that follow each other by an n-gram.

    `spelled` has the tokens of the n-gram's words, by number; `log` is told how much
    memory the graph will take.

    Raises:
        InputError: None of the n-gram's words can be spelled, the machine has too
            little memory, or kaldifst is not installed.
    """
    grammar = ngram_grammar(ngram, spelled, search.word_penalty)
    log(check_memory(count_arcs(grammar, spelled)))
    return expand_ctc(grammar, spelled, len(model.tokens))


def decode_words(
    model: CTCModel,
    graph: Graph,
    spelled: Mapping[str, list[int]],
    wavs: Mapping[str, str],
    samples: Mapping[str, int],
    search: WordSearch,
) -> Iterator[tuple[str, list[str] | None]]:
    """Yield each utterance with the tokens of its best words, the longest first.

    An utterance for which no path reaches an end has None for its tokens.
    """
    for utterance, log_probs in _longest_first(model, wavs, samples):
        found = best_path(graph, log_probs, search)
        if found is None:
            yield utterance, None
            continue
        words = [word for word, *_ in found.words]
        yield utterance, [model.tokens[n] for word in words for n in spelled[word]]


# A CTC path visits the tokens of a text in order. It may visit the blank before, after
# and between them, and it must do so between two equal tokens. Viterbi's algorithm
# finds the path of the highest probability; a token lasts for the frames that this path
# spends in it.

WORD_START = "▁"
"""The sign by which sentencepiece marks the first subword of a word."""


def time_words(
    log_probs: NDArray[np.float32], tokens: Sequence[str], ids: Sequence[int], kind: str
) -> tuple[list[TimedWord], bool]:
    """Find the frames of each word.

    Args:
        log_probs: Log-posteriors, shape (frames, vocabulary); column 0 is the blank.
        tokens: The tokens of the text that was spoken, or decoded.
        ids: The column of each token.
        kind: The type of the tokens: `word`, `char` or `bpe`.

    Returns:
        The words, and whether a path exists. If there is none, for instance because
        there are more tokens than frames, the tokens are spread evenly over the frames.
    """
    found = token_frames(log_probs, ids)
    spans = spread(len(log_probs), len(ids)) if found is None else found
    words = [
        TimedWord(word, spans[first][0], spans[last][1])
        for word, first, last in spell(tokens, kind)
    ]
    return words, found is not None


def spell(tokens: Sequence[str], kind: str) -> list[tuple[str, int, int]]:
    """Join tokens into words.

    Returns:
        Each word with the indices of its first and its last token.

    Example:
        >>> spell(["▁a", "▁wor", "d"], "bpe")
        [('a', 0, 0), ('word', 1, 2)]
        >>> spell(["o", "k", "<space>", "a"], "char")
        [('ok', 0, 1), ('a', 3, 3)]
    """
    words: list[tuple[str, int, int]] = []
    open_word = False
    for index, token in enumerate(tokens):
        if kind == "char" and token == SPACE:
            open_word = False
            continue
        if open_word and kind != "word" and not _starts_word(token, kind):
            word, first, _ = words.pop()
            words.append((word + token, first, index))
        else:
            start = token.removeprefix(WORD_START) if kind == "bpe" else token
            words.append((start, index, index))
        open_word = True
    return [each for each in words if each[0]]


def _starts_word(token: str, kind: str) -> bool:
    return kind == "bpe" and token.startswith(WORD_START)


def spread(frames: int, count: int) -> list[tuple[int, int]]:
    """Divide frames evenly among `count` tokens.

    Every token has a frame: where frames are fewer than tokens, some tokens share one.

    Returns:
        The first frame and the end of each token.
    """
    starts = [index * frames // count for index in range(count)]
    return [
        (start, max(start + 1, (index + 1) * frames // count))
        for index, start in enumerate(starts)
    ]


def token_frames(
    log_probs: NDArray[np.float32], ids: Sequence[int]
) -> list[tuple[int, int]] | None:
    """Find the frames of each token on the path of the highest probability.

    Args:
        log_probs: Log-posteriors, shape (frames, vocabulary).
        ids: The column of each token; none is 0, the blank.

    Returns:
        The first frame and the end of each token, or None if no path has a probability
        above zero.
    """
    states = np.zeros(2 * len(ids) + 1, np.int64)
    states[1::2] = ids
    if len(log_probs) == 0:
        return [] if len(ids) == 0 else None
    scores = _forward(log_probs[:, states], states)
    path = _backward(scores, states)
    if path is None:
        return None
    tokens = 2 * np.arange(len(ids)) + 1
    firsts = np.searchsorted(path, tokens, side="left").tolist()
    ends = np.searchsorted(path, tokens, side="right").tolist()
    return list(zip(firsts, ends, strict=True))


def _skips(states: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Tell which states can be entered from two states before, without the blank."""
    skips = np.zeros(len(states), dtype=bool)
    skips[3::2] = states[3::2] != states[1:-2:2]
    return skips


def _forward(
    emissions: NDArray[np.float32], states: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return the score of the best path into each state at each frame.

    Returns:
        Shape (frames, 2 + states). Two columns of -inf come first, so that every state
        has two columns before its own.
    """
    scores = np.full((len(emissions), len(states) + 2), -np.inf)
    scores[0, 2:4] = emissions[0, :2]
    penalty = np.where(_skips(states), 0.0, -np.inf)
    best = np.empty(len(states))
    for frame in range(1, len(emissions)):
        before = scores[frame - 1]
        np.add(before[:-2], penalty, out=best)
        np.maximum(best, before[1:-1], out=best)
        np.maximum(best, before[2:], out=best)
        np.add(best, emissions[frame], out=scores[frame, 2:])
    return scores


def _backward(
    scores: NDArray[np.float64], states: NDArray[np.int64]
) -> NDArray[np.int64] | None:
    """Follow the best path back, and return its state at each frame."""
    skips = _skips(states)
    last = len(states) - 1
    final = [scores[-1, state + 2] for state in range(max(last - 1, 0), last + 1)]
    state = last - (len(final) - 1 - int(np.argmax(final)))
    if not np.isfinite(scores[-1, state + 2]):
        return None
    path = np.empty(len(scores), dtype=np.int64)
    path[-1] = state
    for frame in range(len(scores) - 2, -1, -1):
        skip, step, stay = scores[frame, state : state + 3].tolist()
        if skips[state] and skip > max(stay, step):
            state -= 2
        elif step > stay:
            state -= 1
        path[frame] = state
    return path

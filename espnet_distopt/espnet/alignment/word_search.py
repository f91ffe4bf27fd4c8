"""Decodes speech by a search of words in CTC posteriors, with an n-gram."""

from collections.abc import Callable, Iterable, Iterator, Mapping

from espnet_distopt.errors import InputError
from espnet_distopt.espnet.alignment.ctc_model import CTCModel
from espnet_distopt.hmm.ctc_graph import count_arcs, expand_ctc
from espnet_distopt.hmm.fst_text import Graph
from espnet_distopt.hmm.grammar import ngram_grammar
from espnet_distopt.hmm.memory import check_memory
from espnet_distopt.hmm.ngram import Ngram
from espnet_distopt.hmm.search import WordSearch, best_path

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

    Args:
        model: The model that decodes.
        ngram: The n-gram.
        spelled: The tokens of its words, by number.
        search: The options.
        log: Called with a line that tells how much memory the graph will take.

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

    Args:
        model: The model that decodes.
        graph: The words to search, from `word_graph`.
        spelled: Their tokens, by number.
        wavs: Utterance -> its audio as `path.ark:offset`.
        samples: Utterance -> its length in samples.
        search: The options.
    """
    order = sorted(wavs, key=lambda utterance: (-samples[utterance], utterance))
    for utterance, log_probs in model.posteriors({name: wavs[name] for name in order}):
        found = best_path(graph, log_probs, search)
        if found is None:
            yield utterance, None
            continue
        words = [word for word, *_ in found.words]
        yield utterance, [model.tokens[n] for word in words for n in spelled[word]]

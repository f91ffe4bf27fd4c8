"""The shapes of formatted speech and of its text, without reading the audio.

ESPnet batches utterances by their lengths, which its `collect_stats` measures by
reading all audio and computing all features, in one process. Formatting has counted the
samples of each utterance already. So only a statistic of the features, as `global_mvn`
needs, takes the audio.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

from espnet_distopt.files.tables import read_table, same_ids, write_table
from espnet_distopt.files.writing import explain_failed_write, whole_file
from espnet_distopt.recipes.corpora.parallel import do_shares

_OFTEN = 100_000
_STEP = 1000

_Share = tuple[Sequence[str], str, str | None]
"""Texts, ESPnet's type of their tokens, and the file of the subwords' model."""


def write_shapes(
    data: Path,
    out: Path,
    *,
    token_type: str,
    bpemodel: str | None = None,
    nj: int = 1,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> int:
    """Write `speech_shape` and `text_shape` as ESPnet's `collect_stats` does.

    Args:
        data: A set that `format_data` has written, with `utt2num_samples` and `text`.
        out: The directory to write into, which is made if need be.
        token_type: ESPnet's type of the tokens: word, char or bpe.
        bpemodel: The file of the subwords' model; None for other types.
        nj: The number of processes.
        progress: Called with the number of utterances done, and of all.

    Returns:
        The number of utterances.

    Raises:
        InputError: A file is missing, or the two do not have the same utterances, or
            the shapes cannot be written.
    """
    texts = read_table(data / "text", str)
    samples = read_table(data / "utt2num_samples", str)
    same_ids(data, "text", texts, "utt2num_samples", samples)
    said, total = list(texts.values()), len(texts)
    edges = [total * n // nj for n in range(nj + 1)]
    shares: list[_Share] = [
        (said[first:last], token_type, bpemodel)
        for first, last in pairwise(edges)
        if last > first
    ]
    counts = chain.from_iterable(do_shares(_count, shares, total, progress))
    tokens = dict(zip(texts, counts, strict=True))
    with explain_failed_write(out):
        out.mkdir(parents=True, exist_ok=True)
        for name, table in (("speech_shape", samples), ("text_shape", tokens)):
            with whole_file(out / name) as new:
                write_table(new, table)
    return total


def _count(share: _Share, progress: Callable[[int], None]) -> list[int]:
    """Return the number of tokens of each text."""
    said, token_type, bpemodel = share
    tokenizer = _tokenizer(token_type, bpemodel)

    @lru_cache(_OFTEN)
    def tokens(text: str) -> int:
        return len(tokenizer.text2tokens(text))

    counts: list[int] = []
    for start in range(0, len(said), _STEP):
        part = said[start : start + _STEP]
        counts += map(tokens, part)
        progress(len(part))
    return counts


def _tokenizer(token_type: str, bpemodel: str | None) -> Any:
    """Return the tokenizer that ESPnet builds for this type.

    ESPnet's own `build_tokenizer` imports the tokenizers of phonemes, too, and these
    take seconds in each process.
    """
    if token_type == "word":
        from espnet2.text.word_tokenizer import WordTokenizer

        return WordTokenizer()
    if token_type == "char":
        from espnet2.text.char_tokenizer import CharTokenizer

        return CharTokenizer()
    from espnet2.text.sentencepiece_tokenizer import SentencepiecesTokenizer

    return SentencepiecesTokenizer(bpemodel)

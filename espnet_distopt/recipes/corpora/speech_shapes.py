"""The shapes of formatted speech and of its text, without reading the audio.

ESPnet batches utterances by their lengths, which its `collect_stats` measures by
reading all audio and computing all features, in one process. Formatting has counted the
samples of each utterance already. So only a statistic of the features, as `global_mvn`
needs, takes the audio.

ESPnet trains on the utterances that have shapes. Those with fewer frames than CTC needs
for their labels have none: their loss would be zero, which also flatters the mean.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

from espnet_distopt.errors import InputError
from espnet_distopt.files.tables import counted, read_table, same_ids, write_table
from espnet_distopt.files.text import read_text
from espnet_distopt.files.writing import explain_failed_write, whole_file
from espnet_distopt.recipes.corpora.parallel import do_shares

_OFTEN = 100_000
_STEP = 1000

LEFT_OUT = "left_out"
"""The file beside the shapes that has the utterances without, and why."""

_Share = tuple[Sequence[str], str, str | None, frozenset[str]]
"""Texts, ESPnet's type of their tokens, the file of the subwords' model, and the tokens
that the model knows (all of them if there are none)."""


def write_shapes(
    data: Path,
    out: Path,
    *,
    token_type: str,
    bpemodel: str | None = None,
    known: frozenset[str] = frozenset(),
    enough: Callable[[int, int], bool] | None = None,
    nj: int = 1,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[int, dict[str, str]]:
    """Write `speech_shape` and `text_shape` as ESPnet's `collect_stats` does.

    Args:
        data: A set that `format_data` has written, with `utt2num_samples` and `text`.
        out: The directory to write into, which is made if need be.
        token_type: ESPnet's type of the tokens: word, char or bpe.
        bpemodel: The file of the subwords' model; None for other types.
        known: The tokens that the model has; all others are one label. None are named
            if it has all.
        enough: Tells whether so many samples are enough for CTC to read so many labels,
            where two equal ones count as three. By default there is a frame each 10 ms,
            which no common model exceeds, if the set has its sample rate with it.
        nj: The number of processes.
        progress: Called with the number of utterances done, and of all.

    Returns:
        The number of utterances that have shapes, and the others with the reasons,
        which the file `left_out` lists, too.

    Raises:
        InputError: A file is missing, or the two do not have the same utterances, or
            none is left, or the shapes cannot be written.
    """
    texts = read_table(data / "text", str)
    samples = read_table(data / "utt2num_samples", counted("utterance", "samples"))
    same_ids(data, "text", texts, "utt2num_samples", samples)
    said, total = list(texts.values()), len(texts)
    edges = [total * n // nj for n in range(nj + 1)]
    shares: list[_Share] = [
        (said[first:last], token_type, bpemodel, known)
        for first, last in pairwise(edges)
        if last > first
    ]
    counts = chain.from_iterable(do_shares(_count, shares, total, progress))
    tokens, left_out = {}, {}
    enough = enough or _enough_by_rate(data)
    for name, (count, labels) in zip(texts, counts, strict=True):
        if enough(samples[name], labels):
            tokens[name] = count
        else:
            left_out[name] = f"needs {labels} frames, has {samples[name]} samples"
    if not tokens and left_out:
        name, reason = next(iter(left_out.items()))
        raise InputError(
            f"{data}: CTC has too few frames for the texts of all utterances, such as "
            f"{name} ({reason}): check the texts, and the hop and subsampling of the "
            "model"
        )
    samples = {name: samples[name] for name in tokens}
    with explain_failed_write(out):
        out.mkdir(parents=True, exist_ok=True)
        for name, table in (("speech_shape", samples), ("text_shape", tokens)):
            with whole_file(out / name) as new:
                write_table(new, table)
        (out / LEFT_OUT).unlink(missing_ok=True)
        if left_out:
            write_table(out / LEFT_OUT, left_out)
    return len(tokens), left_out


def _enough_by_rate(data: Path) -> Callable[[int, int], bool]:
    path = data / "rate_and_speeds"
    if not path.is_file():
        return lambda samples, labels: True
    rate = int(read_text(path).split()[0])
    return lambda samples, labels: labels <= samples * 100 // rate + 1


def _count(share: _Share, progress: Callable[[int], None]) -> list[tuple[int, int]]:
    """Return for each text the number of its tokens, and of frames that CTC needs."""
    said, token_type, bpemodel, known = share
    tokenizer = _tokenizer(token_type, bpemodel)

    @lru_cache(_OFTEN)
    def count(text: str) -> tuple[int, int]:
        tokens = tokenizer.text2tokens(text)
        labels = [token if not known or token in known else None for token in tokens]
        doubled = sum(one == next_ for one, next_ in pairwise(labels))
        return len(tokens), len(tokens) + doubled

    counts: list[tuple[int, int]] = []
    for start in range(0, len(said), _STEP):
        part = said[start : start + _STEP]
        counts += map(count, part)
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

"""The shapes of formatted speech and of its text, without reading the audio.

ESPnet batches utterances by their lengths, which its `collect_stats` measures by
reading all audio and computing all features, in one process. Formatting has counted the
samples of each utterance already. So only a statistic of the features, as `global_mvn`
needs, takes the audio.
"""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

from espnet_distopt.errors import InputError
from espnet_distopt.files.writing import explain_failed_write
from espnet_distopt.recipes.corpora.parallel import do_shares

_NAMES = ("speech_shape", "text_shape")
_OFTEN = 100_000
_STEP = 1000


@dataclass(frozen=True)
class _Share:
    """The lines `first` to `last` of a set, and the files to write for them."""

    data: Path
    first: int
    last: int
    written: tuple[Path, Path]
    token_type: str
    bpemodel: str | None


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
    total = _lines(data / "text")
    if total != (samples := _lines(data / "utt2num_samples")):
        raise InputError(
            f"{data}: {total} utterances in text, {samples} in utt2num_samples: format "
            "the set again"
        )
    nj = max(1, min(nj, total))
    edges = [total * n // nj for n in range(nj + 1)]
    shares = [
        _Share(
            data,
            first,
            last,
            (out / f"{_NAMES[0]}.{n}", out / f"{_NAMES[1]}.{n}"),
            token_type,
            bpemodel,
        )
        for n, (first, last) in enumerate(pairwise(edges))
    ]
    with explain_failed_write(out):
        out.mkdir(parents=True, exist_ok=True)
        try:
            do_shares(_write, shares, total, progress)
            for index, name in enumerate(_NAMES):
                with (out / f"{name}.tmp").open("wb") as joined:
                    for share in shares:
                        with share.written[index].open("rb") as part:
                            shutil.copyfileobj(part, joined)
                (out / f"{name}.tmp").replace(out / name)
        finally:
            for path in (path for share in shares for path in share.written):
                path.unlink(missing_ok=True)
    return total


def _lines(path: Path) -> int:
    try:
        with path.open("rb") as file:
            return sum(1 for _ in file)
    except OSError as error:
        raise InputError(
            f"{path}: {error.strerror}: format the set (stage 3)"
        ) from None


def _write(share: _Share, progress: Callable[[int], None]) -> None:
    tokenizer = _tokenizer(share.token_type, share.bpemodel)

    @lru_cache(_OFTEN)
    def tokens(text: str) -> int:
        return len(tokenizer.text2tokens(text))

    texts, counts = share.data / "text", share.data / "utt2num_samples"
    speech, text = share.written
    with (
        texts.open(encoding="utf-8") as said,
        counts.open(encoding="utf-8") as samples,
        speech.open("w", encoding="utf-8") as speech_file,
        text.open("w", encoding="utf-8") as text_file,
    ):
        pairs = islice(zip(said, samples, strict=True), share.first, share.last)
        for number, (line, other) in enumerate(pairs, start=share.first + 1):
            key, *words = line.split(maxsplit=1)
            if other.split()[:1] != [key]:
                raise InputError(
                    f"{counts}:{number}: expected {key}, as in {texts}: format the set "
                    "again"
                )
            speech_file.write(other)
            text_file.write(f"{key} {tokens(words[0].rstrip() if words else '')}\n")
            if number % _STEP == 0:
                progress(_STEP)
    progress((share.last - share.first) % _STEP)


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

"""Makes token lists for ESPnet: words, characters, or sentencepiece's subwords."""

import io
import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from espnet_distopt.errors import InputError
from espnet_distopt.files.tables import read_table
from espnet_distopt.files.text import read_bytes, read_text
from espnet_distopt.files.whole_directory import whole_directory

BLANK, UNKNOWN, SENTENCE = "<blank>", "<unk>", "<sos/eos>"
SPACE = "<space>"
TYPES = ("word", "char", "bpe")


def make_tokens(text: Path, out: Path, token_type: str, nbpe: int = 100) -> list[str]:
    """Write the tokens of a Kaldi `text` file as `out/tokens.txt`, and return them.

    The type is word, char or bpe. For bpe, `nbpe` is the length of the list, and
    `out/bpe.model` is written, too. The directory is replaced whole or not at all.

    Raises:
        InputError: The text file is bad or has reserved words in it, or the text
            allows no list of length `nbpe`.
    """
    sentences = [" ".join(words.split()) for words in read_table(text, str).values()]
    sentences = [sentence for sentence in sentences if sentence]
    if not sentences:
        raise InputError(f"{text}: no utterance has words")
    _check_reserved(text, sentences)
    model = b""
    if token_type == "word":
        tokens = by_count(word for line in sentences for word in line.split())
    elif token_type == "char":
        tokens = [
            SPACE if char == " " else char
            for char in by_count(char for line in sentences for char in line)
        ]
    else:
        model = _train_bpe(sentences, nbpe)
        tokens = pieces(model)
    tokens = [BLANK, UNKNOWN, *(t for t in tokens if t != UNKNOWN), SENTENCE]
    with whole_directory(out, marker="tokens.txt") as new:
        lines = "".join(f"{token}\n" for token in tokens)
        (new / "tokens.txt").write_text(lines, encoding="utf-8")
        if model:
            (new / "bpe.model").write_bytes(model)
    return tokens


def read_characters(path: Path) -> list[str]:
    """Read a token list of type `char`; return its tokens without blank and end.

    Raises:
        InputError: The file cannot be read, or is no such list.
    """
    tokens = read_text(path).splitlines()
    if tokens[:1] != [BLANK] or tokens[-1:] != [SENTENCE] or len(tokens) < 3:
        raise InputError(
            f"{path}: no token list: expected {BLANK} first and {SENTENCE} last"
        )
    for number, token in enumerate(tokens, start=1):
        if len(token) != 1 and token not in (BLANK, UNKNOWN, SPACE, SENTENCE):
            raise InputError(f"{path}:{number}: {token!r} is no single character")
    return tokens[1:-1]


def characters(text: str, known: Collection[str]) -> list[str]:
    """Return a text as tokens of type `char`.

    >>> characters("a  cab", ["<unk>", "<space>", "a", "b"])
    ['a', '<space>', '<unk>', 'a', 'b']
    """
    tokens = [SPACE if char == " " else char for char in " ".join(text.split())]
    return [token if token in known else UNKNOWN for token in tokens]


def by_count(tokens: Iterable[str]) -> list[str]:
    """Return the different tokens, the most frequent first, ties in code order."""
    counts = Counter(tokens)
    return sorted(counts, key=lambda token: (-counts[token], token))


def _train_bpe(sentences: Sequence[str], nbpe: int) -> bytes:
    """Train a unigram model of `nbpe` pieces, as ESPnet does; return it serialized."""
    import sentencepiece

    if nbpe < 1:
        raise InputError(f"--nbpe {nbpe}: expected the length of the list, at least 1")
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(sentences),
            model_writer=model,
            model_type="unigram",
            vocab_size=nbpe,
            character_coverage=1.0,
            # Sentencepiece leaves out longer lines (in bytes) without a warning.
            max_sentence_length=max(len(line.encode()) for line in sentences) + 1,
            num_threads=1,  # the training's sums depend on the number
            minloglevel=2,
        )
    except RuntimeError as error:
        raise InputError(f"--nbpe {nbpe}: {_why(str(error))}") from None
    return model.getvalue()


def pieces(model: bytes) -> list[str]:
    """Return the pieces of a sentencepiece model, without its control symbols."""
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    return [
        processor.id_to_piece(index)
        for index in range(processor.get_piece_size())
        if not (processor.is_control(index) or processor.is_unknown(index))
    ]


def require_pieces(model: Path, tokens: Collection[str], config: Path) -> None:
    """Refuse a sentencepiece model whose pieces are not the tokens of a recognizer.

    It would spell words by tokens that the recognizer does not have, and not find the
    ends of words in those that it has. There may be tokens beside the pieces.

    Raises:
        InputError: A piece is no token, or the file cannot be read.
    """
    known = set(tokens)
    other = [piece for piece in pieces(read_bytes(model)) if piece not in known]
    if other:
        raise InputError(
            f"{model}: its subwords are not the tokens of {config}, which has no "
            f"{other[0]}: make those of that model's training set again (in a recipe: "
            "--stage 5 --stop_stage 5 --train_set NAME)"
        )


def _check_reserved(text: Path, sentences: Sequence[str]) -> None:
    words = {word for line in sentences for word in line.split()}
    for reserved in (BLANK, SENTENCE):
        if reserved in words:
            raise InputError(f"{text}: contains {reserved}, which is a reserved token")


def _why(message: str) -> str:
    """Return sentencepiece's complaint about a vocabulary size, in plain words."""
    if most := re.search(r"too high .*value <= (\d+)", message):
        return f"the text has too few subwords, at most {most[1]} are possible"
    if least := re.search(r"required_chars\. \d+ vs (\d+)", message):
        return f"the text has too many characters, at least {least[1]} are needed"
    return message

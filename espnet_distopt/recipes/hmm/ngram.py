"""N-gram language models, their ARPA files, and how they are estimated.

An ARPA file holds log10 probabilities of n-grams, and log10 backoff weights of
histories: a word that was never seen after a history has the backoff weight of the
history times its probability after the history without its first word.

Estimation is by interpolated Kneser-Ney smoothing. Source: Chen and Goodman, "An
empirical study of smoothing techniques for language modeling", 1999, with one discount
D for each order:

    p(w | h) = max(c(h w) - D, 0) / c(h) + D t(h) / c(h) p(w | h')

Here c(h) is the sum of the counts c(h w) over all w, t(h) is the number of different
words after h, and h' is h without its first word. At the highest order, and for
histories that begin a sentence, c counts how often an n-gram occurs. Below, it counts
how many different words stand before it. The words themselves are interpolated with the
uniform distribution. D is n1 / (n1 + 2 n2), where n1 and n2 are the numbers of n-grams
of the order whose count is 1 and 2.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import dropwhile
from pathlib import Path

from espnet_distopt.errors import InputError
from espnet_distopt.files.text import data_lines, read_text
from espnet_distopt.files.writing import write_text

BEGIN, END, UNKNOWN = "<s>", "</s>", "<unk>"
NEVER = -99.0
"""The log10 that ARPA files write for a probability of zero."""

Gram = tuple[str, ...]


@dataclass(frozen=True)
class Ngram:
    """An n-gram model.

    Attributes:
        probabilities: N-gram -> log10 of the probability of its last word after the
            others.
        backoffs: History -> log10 of its backoff weight; 0 for a history that is not
            here.
    """

    order: int
    probabilities: dict[Gram, float]
    backoffs: dict[Gram, float]

    def words(self) -> list[str]:
        """Return the words, without the marks of a sentence's begin and end, sorted."""
        found = {gram[0] for gram in self.probabilities if len(gram) == 1}
        return sorted(found - {BEGIN, END})

    def log10(self, word: str, history: Gram) -> float:
        """Return log10 of the probability of a word after the words of a history.

        Raises:
            KeyError: The model does not have the word.
        """
        gram = (*history, word)[-self.order :]
        total = 0.0
        while gram not in self.probabilities:
            if len(gram) == 1:
                raise KeyError(word)
            total += self.backoffs.get(gram[:-1], 0.0)
            gram = gram[1:]
        return total + self.probabilities[gram]

    def sentence(self, words: Sequence[str]) -> float:
        """Return log10 of the probability of a sentence and of its end."""
        history: Gram = (BEGIN,)
        total = 0.0
        for word in [*words, END]:
            total += self.log10(word, history)
            history = (*history, word)
        return total


def write_arpa(path: Path, model: Ngram) -> None:
    """Write an ARPA file, whole or not at all, its n-grams sorted by order and word."""
    sections = [
        sorted(gram for gram in model.probabilities if len(gram) == order)
        for order in range(1, model.order + 1)
    ]
    lines = ["\\data\\"]
    lines += [f"ngram {n}={len(grams)}" for n, grams in enumerate(sections, start=1)]
    for order, grams in enumerate(sections, start=1):
        lines += ["", f"\\{order}-grams:"]
        for gram in grams:
            line = f"{model.probabilities[gram]:.7f}\t{' '.join(gram)}"
            backoff = model.backoffs.get(gram)
            lines.append(line if backoff is None else f"{line}\t{backoff:.7f}")
    write_text(path, "\n".join([*lines, "", "\\end\\", ""]))


def read_arpa(path: Path) -> Ngram:
    """Read an ARPA file.

    Raises:
        InputError: The file cannot be read or is malformed or cut short, an n-gram is
            in the wrong section or comes twice, or its history does not exist; the
            message names the line.
    """
    lines = data_lines(read_text(path), path)
    sizes = _read_sizes(lines, path)
    probabilities: dict[Gram, float] = {}
    backoffs: dict[Gram, float] = {}
    order, left = 1, sizes[0]
    for where, line in lines:
        if line == "\\end\\" or line == f"\\{order + 1}-grams:":
            _check_count(where, order, left)
            if line == "\\end\\":
                break
            order += 1
            left = sizes[order - 1] if order <= len(sizes) else 0
            continue
        gram, probability, backoff = _entry(where, line, order)
        if gram in probabilities:
            raise InputError(f"{where}: this n-gram comes twice")
        if order > 1 and gram[:-1] not in probabilities:
            raise InputError(f"{where}: the history {' '.join(gram[:-1])} is not there")
        probabilities[gram] = probability
        if backoff is not None:
            backoffs[gram] = backoff
        left -= 1
    else:
        raise InputError(f"{path}: ends without \\end\\: it is cut short")
    if order < len(sizes):
        raise InputError(f"{path}: the {order + 1}-grams are missing")
    if (END,) not in probabilities:
        raise InputError(f"{path}: no probability of {END}, the end of a sentence")
    return Ngram(len(sizes), probabilities, backoffs)


def read_words(path: Path) -> list[str] | None:
    """Read the words of an ARPA file, and none of its longer n-grams.

    Returns:
        The words, with `<unk>` if it has a probability; None if the file is in another
        form, such as KenLM's own.

    Raises:
        InputError: The file cannot be read.
    """
    words = []
    try:
        with path.open("rb") as file:
            if next(filter(bytes.strip, file), b"").strip() != b"\\data\\":
                return None
            for line in dropwhile(lambda each: not each.startswith(b"\\"), file):
                fields = line.split()
                if line.startswith((b"\\2-", b"\\end")):
                    break
                if len(fields) > 1:
                    words.append(fields[1].decode("utf-8", "replace"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    return words


def check_tokens(path: Path, words: Collection[str], tokens: Sequence[str]) -> None:
    """Check that an n-gram is one over the tokens of a model.

    Args:
        path: The n-gram's file, for messages.
        words: The n-gram's words, with `<unk>` if it has a probability.
        tokens: The model's token list; token 0 is the blank, and the last token ends a
            sentence.

    Raises:
        InputError: Most of the n-gram's words are no tokens, or it lacks a token and
            has no probability for unknown ones.
    """
    own, known = {*tokens[1:-1]} - {UNKNOWN}, {*words} - {BEGIN, END, UNKNOWN}
    others, lacking = sorted(known - own), sorted(own - known)
    if len(others) > len(known) / 2:
        raise InputError(
            f"{path}: an n-gram over other tokens than the model's, which has no "
            f"{others[0]!r} and lacks {len(others)} of its {len(known)} words: "
            "estimate one on texts of these tokens"
        )
    if lacking and UNKNOWN not in words:
        raise InputError(
            f"{path}: no probability of {lacking[0]!r}, a token of the model: estimate "
            f"the n-gram with {UNKNOWN} (of characters: make_ngram --token_list)"
        )


def _read_sizes(lines: Iterator[tuple[str, str]], path: Path) -> list[int]:
    """Read up to the line before the first 1-gram, and return the announced sizes."""
    sizes: list[int] = []
    if next(lines, ("", ""))[1] != "\\data\\":
        raise InputError(f"{path}: expected \\data\\ first, as ARPA files begin")
    for where, line in lines:
        if line == "\\1-grams:" and sizes:
            return sizes
        number, _, size = line.removeprefix("ngram ").partition("=")
        if number != str(len(sizes) + 1) or not size.strip().isdecimal():
            raise InputError(
                f"{where}: expected 'ngram {len(sizes) + 1}=COUNT', got {line[:60]!r}"
            )
        sizes.append(int(size))
    raise InputError(f"{path}: no 1-grams")


def _entry(where: str, line: str, order: int) -> tuple[Gram, float, float | None]:
    fields = line.split()
    if not order + 1 <= len(fields) <= order + 2:
        raise InputError(
            f"{where}: expected a {order}-gram between its probability and its backoff "
            f"weight, got {line[:60]!r}"
        )
    gram = tuple(fields[1 : order + 1])
    try:
        numbers = [float(field) for field in (fields[0], *fields[order + 1 :])]
    except ValueError:
        raise InputError(f"{where}: expected numbers, got {line[:60]!r}") from None
    if not all(map(math.isfinite, numbers)) or numbers[0] > 0:
        raise InputError(
            f"{where}: expected finite log10 values, a probability's at most 0, got "
            f"{line[:60]!r}"
        )
    return gram, numbers[0], numbers[1] if len(numbers) > 1 else None


def _check_count(where: str, order: int, left: int) -> None:
    if left != 0:
        raise InputError(
            f"{where}: {abs(left)} {order}-grams {'less' if left > 0 else 'more'} than "
            "the head of the file says"
        )


_DISCOUNT = 0.5
"""The discount of an order with no n-gram of count 1 or none of count 2, for which the
formula gives nothing useful."""


def estimate(
    sentences: Iterable[Sequence[str]], vocabulary: Iterable[str], order: int
) -> Ngram:
    """Estimate an n-gram model. It costs O(words x order) of time and memory.

    Args:
        sentences: The words of each sentence, which are all in the vocabulary.
        vocabulary: All words that get a probability.
        order: The greatest length of an n-gram, from 1.

    Raises:
        InputError: There are no sentences, or they have words that are not in the
            vocabulary, or the order is below 1.
    """
    if order < 1:
        raise InputError(f"the order of an n-gram is at least 1, not {order}")
    words = {*vocabulary, END}
    counts = _counts(sentences, order)
    unknown = sorted({gram[0] for gram in counts[0]} - words)
    if unknown:
        raise InputError(f"{unknown[0]!r} is in the text, but not in the vocabulary")
    if not counts[0]:
        raise InputError("no sentences to estimate an n-gram from")
    uniform = 1 / len(words)
    probabilities: dict[Gram, float] = {}
    weights: dict[Gram, float] = {}
    for of_order in counts:
        discount = _discount(of_order)
        totals: Counter[Gram] = Counter()
        types: Counter[Gram] = Counter()
        for gram, count in of_order.items():
            totals[gram[:-1]] += count
            types[gram[:-1]] += 1
        for history, total in totals.items():
            weights[history] = discount * types[history] / total
        for gram, count in of_order.items():
            history = gram[:-1]
            lower = probabilities[gram[1:]] if history else uniform
            own = max(count - discount, 0) / totals[history]
            probabilities[gram] = own + weights[history] * lower
    for word in words:
        probabilities.setdefault((word,), weights[()] * uniform)
    logs = {gram: math.log10(value) for gram, value in probabilities.items()}
    logs[BEGIN,] = NEVER
    backoffs = {h: math.log10(value) for h, value in weights.items() if h}
    return Ngram(order, logs, backoffs)


def _counts(sentences: Iterable[Sequence[str]], order: int) -> list[Counter[Gram]]:
    """Return the counts c of each order, from 1; none is of the begin by itself."""
    raw: list[Counter[Gram]] = [Counter() for _ in range(order)]
    for sentence in sentences:
        padded = (BEGIN, *sentence, END)
        for end in range(2, len(padded) + 1):
            for length in range(1, min(order, end) + 1):
                raw[length - 1][padded[end - length : end]] += 1
    before: list[Counter[Gram]] = []
    for length in range(1, order):
        left: dict[Gram, set[str]] = defaultdict(set)
        for gram in raw[length]:
            left[gram[1:]].add(gram[0])
        before.append(
            Counter(
                {
                    gram: count if gram[0] == BEGIN else len(left[gram])
                    for gram, count in raw[length - 1].items()
                }
            )
        )
    return [*before, raw[-1]]


def _discount(counts: Counter[Gram]) -> float:
    once = sum(count == 1 for count in counts.values())
    twice = sum(count == 2 for count in counts.values())
    return once / (once + 2 * twice) if once and twice else _DISCOUNT

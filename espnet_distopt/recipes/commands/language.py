"""Commands for lexicons, n-grams, and the frame labels of hybrid systems."""

import argparse
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from espnet_distopt.errors import InputError, one_line_errors
from espnet_distopt.files.tables import counted, read_table
from espnet_distopt.files.whole_directory import whole_directory
from espnet_distopt.files.writing import explain_failed_write, write_text
from espnet_distopt.recipes.commands.options import add_max_lost, named_sets
from espnet_distopt.recipes.corpora.kaldi.arks import read_matrix
from espnet_distopt.recipes.corpora.kaldi.tokens import characters, read_characters
from espnet_distopt.recipes.corpora.ldc.discs import Losses
from espnet_distopt.recipes.corpora.ldc.ms98 import (
    Entry,
    find_acronyms,
    plain_word,
    plain_words,
    read_dictionary,
    spoken_letter,
)
from espnet_distopt.recipes.corpora.lines.sets import normal_text
from espnet_distopt.recipes.corpora.mini_swbd.synthesis import pronounce
from espnet_distopt.recipes.hmm.alignments import (
    Pdfs,
    fit,
    read_kaldi_alignments,
    write_alignments,
)
from espnet_distopt.recipes.hmm.language import (
    Language,
    Pronunciation,
    make_language,
    read_language,
    require_words,
    write_lexicon,
    write_states,
)
from espnet_distopt.recipes.hmm.ngram import estimate, write_arpa

SPOKEN_NOISE = "SPN"
"""The phone of words without a known pronunciation, such as parts of words."""


def make_lexicon_parser() -> argparse.ArgumentParser:
    """Return the parser of `make_lexicon`."""
    parser = argparse.ArgumentParser(
        description="Write 'word phone phone ...' for each word of some texts. Words "
        f"that a dictionary lacks get the phone {SPOKEN_NOISE}, and are counted. "
        "Letters get their names, because the texts of Switchboard spell acronyms out.",
    )
    add = parser.add_argument
    add(
        "--text",
        type=Path,
        action="append",
        required=True,
        help="Kaldi `text` file (repeatable)",
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--dictionary", type=Path, help="in the form of MS98's sw-ms98-dict.text"
    )
    source.add_argument(
        "--synthesizer", action="store_true", help="espeak-ng's phonemes of each word"
    )
    add_max_lost(parser, "the dictionary's lines", "they are bad")
    add("--out", type=Path, required=True, help="file to write")
    return parser


@one_line_errors
def make_lexicon_command(cmd: Sequence[str] | None = None) -> None:
    """Make the lexicon of a text from a dictionary, or from the speech synthesizer."""
    args = make_lexicon_parser().parse_args(cmd)
    texts = [text for path in args.text for text in read_table(path, str).values()]
    words = sorted({word for text in texts for word in text.split()})
    if not words:
        raise InputError(f"{args.text[0]}: no words")
    if args.synthesizer:
        lexicon = pronounce(words)
    else:
        lexicon = _look_up(args.dictionary, words, args.max_lost)
    with explain_failed_write(args.out):
        args.out.parent.mkdir(parents=True, exist_ok=True)
        write_lexicon(args.out, lexicon)
    unknown = sum(phones == [(SPOKEN_NOISE,)] for phones in lexicon.values())
    print(f"{args.out}: {len(lexicon)} words, {unknown} of them {SPOKEN_NOISE}")


def _look_up(
    path: Path, words: Sequence[str], max_lost: float
) -> dict[str, list[Pronunciation]]:
    losses = Losses("lines of the dictionary", max_lost)
    entries = read_dictionary(path, losses)
    losses.check(print)
    acronyms = find_acronyms(entries)
    # Switchboard's texts spell acronyms out, so that `US` is no pronunciation of `us`;
    # Fisher's have some, which their transcribers did not spell.
    whole = [entry for entry in entries if plain_word(entry.word) not in acronyms]
    known = _pronunciations(entries) | _pronunciations(whole)
    return {word: _with_letter(word, known.get(word, [])) for word in words}


def _pronunciations(entries: Iterable[Entry]) -> dict[str, list[Pronunciation]]:
    known: dict[str, list[Pronunciation]] = {}
    for entry in entries:
        # Marks of variants and of coinages are not part of a word.
        for word in plain_words(entry.word):
            found = known.setdefault(word, [])
            if entry.phones not in found:
                found.append(entry.phones)
    return known


def _with_letter(word: str, known: list[Pronunciation]) -> list[Pronunciation]:
    """Return what a dictionary knows of a word, and the letter's name if it is one."""
    letter = spoken_letter(word)
    # The article `a` is a letter, too, but `as` and `is` are hardly ever two of them.
    if letter is None or letter in known or (known and len(word) > 1):
        return known or [(SPOKEN_NOISE,)]
    return [*known, letter]


def make_lang_parser() -> argparse.ArgumentParser:
    """Return the parser of `make_lang`."""
    parser = argparse.ArgumentParser(
        description="Write a directory with lexicon.txt, states.txt (three states for "
        "each phone) and lm.arpa, an n-gram that is estimated from the text by "
        "interpolated Kneser-Ney smoothing.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--lexicon", type=Path, required=True, help="'word phone phone ...' a line")
    add("--text", type=Path, required=True, help="Kaldi `text` file")
    add("--order", type=int, default=3, help="order of the n-gram")
    add("--out", type=Path, required=True, help="directory to write")
    return parser


@one_line_errors
def make_lang_command(cmd: Sequence[str] | None = None) -> None:
    """Make a lexicon with HMM states, and an n-gram, for a hybrid system."""
    args = make_lang_parser().parse_args(cmd)
    made = make_language(args.lexicon, args.text, args.order, args.out)
    print(
        f"{args.out}: {len(made.lexicon)} words, {len(made.states.phones)} phones, "
        f"{len(made.ngram.probabilities)} n-grams up to order {args.order}"
    )


def make_ngram_parser() -> argparse.ArgumentParser:
    """Return the parser of `make_ngram`."""
    parser = argparse.ArgumentParser(
        description="Estimate an n-gram by interpolated Kneser-Ney smoothing, over all "
        "words of a text, or over its characters.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--text", type=Path, required=True, help="Kaldi `text` file")
    add(
        "--token_list",
        type=Path,
        help="characters that are the tokens of a model (stage 5 makes the list): the "
        "n-gram is over these instead of words",
    )
    add("--order", type=int, default=3, help="order of the n-gram")
    add("--out", type=Path, required=True, help="ARPA file to write")
    return parser


@one_line_errors
def make_ngram_command(cmd: Sequence[str] | None = None) -> None:
    """Estimate an n-gram over the words or characters of a text, as an ARPA file."""
    args = make_ngram_parser().parse_args(cmd)
    # The texts of lines, of which a model learns its characters, are composed (NFC).
    parse = normal_text if args.token_list else str
    texts = read_table(args.text, parse).values()
    if args.token_list:
        words = {*read_characters(args.token_list)}
        sentences = [characters(text, words) for text in texts]
    else:
        sentences = [text.split() for text in texts]
        words = {word for sentence in sentences for word in sentence}
    if not any(sentences):
        raise InputError(f"{args.text}: no words")
    unit = "characters" if args.token_list else "words"
    model = estimate(sentences, words, args.order)
    with explain_failed_write(args.out):
        args.out.parent.mkdir(parents=True, exist_ok=True)
        write_arpa(args.out, model)
    print(
        f"{args.out}: {len(words)} {unit}, {len(model.probabilities)} n-grams up to "
        f"order {args.order}"
    )


_Words = dict[str, list[str]]


def gmm_train_parser() -> argparse.ArgumentParser:
    """Return the parser of `gmm_train`."""
    parser = argparse.ArgumentParser(
        description="Train Gaussian mixtures for the states of a lexicon from speech "
        "and its words, and write OUT/gmm.npz. For each --data it then writes "
        "OUT/NAME: ali.scp with the pdf of each frame, and the counts of the pdfs.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--lang", type=Path, required=True, help="from make_lang")
    add(
        "--data",
        action="append",
        required=True,
        metavar="NAME=DUMP",
        help="a set to align: has text, and DUMP/hybrid/feats.scp from make_features; "
        "the mixtures are trained on the first one (repeatable)",
    )
    add("--out", type=Path, required=True, help="directory to write")
    add("--utterances", type=int, default=1000, help="train on so many at most")
    add("--passes", type=int, default=20, help="of alignment")
    add(
        "--doublings", type=int, default=4, help="how often the mixtures double in size"
    )
    return parser


@one_line_errors
def gmm_train_command(cmd: Sequence[str] | None = None) -> None:
    """Train a monophone GMM-HMM from a flat start, and align data sets with it."""
    args = gmm_train_parser().parse_args(cmd)
    # These come late, because torch is slow to import.
    import torch

    from espnet_distopt.recipes.hmm.gmm import (
        FlatStart,
        align_all,
        cepstra,
        train,
        write_gmm,
    )

    # The matrices are too small for more threads, which only wait for each other.
    torch.set_num_threads(1)
    options = FlatStart(args.passes, args.doublings)
    if args.utterances < 1:
        raise InputError(f"--utterances {args.utterances}: at least one must train")
    language = read_language(args.lang)
    sets = dict(named_sets(args.data))
    words = {name: _texts(dump, language) for name, dump in sets.items()}
    feats = {name: read_table(d / "hybrid/feats.scp", str) for name, d in sets.items()}
    _check_known(sets, words, feats)
    started = time.monotonic()

    def load(name: str, keys: Sequence[str]) -> dict[str, np.ndarray]:
        return {key: cepstra(read_matrix(feats[name][key])) for key in keys}

    first = next(iter(sets))
    chosen = _spread(list(words[first]), args.utterances)
    with whole_directory(args.out, marker="gmm.npz") as new:
        mixtures, aligner = train(
            load(first, chosen),
            words[first],
            language.lexicon,
            language.states,
            options,
            lambda number, value: print(
                f"pass {number} of {args.passes}: log likelihood {value:.3f} a frame",
                flush=True,
            ),
        )
        stay = np.asarray(aligner.stay)
        write_gmm(new / "gmm.npz", mixtures, stay, language.states.names())
        for name in sets:
            aligned: dict[str, np.ndarray] = {}
            for key in words[name]:
                aligned |= align_all(aligner, mixtures, load(name, [key]), words[name])
            _write(new / name, args.out / name, aligned, language)
            print(f"{name}: {len(aligned)} of {len(words[name])} utterances aligned")
    print(f"{args.out}: in {time.monotonic() - started:.1f} s")


def _write(
    new: Path, named: Path, aligned: dict[str, np.ndarray], language: Language
) -> None:
    if not aligned:
        raise InputError(f"{named.name}: no utterance can be aligned with its words")
    new.mkdir()
    write_states(new / "states.txt", language.states)
    write_alignments(new, named, aligned, len(language.states))


def _texts(dump: Path, language: Language) -> _Words:
    texts = {
        name: text.split() for name, text in read_table(dump / "text", str).items()
    }
    every = (word for words in texts.values() for word in words)
    require_words(language.lexicon, every, str(dump / "text"))
    return texts


def _check_known(
    sets: dict[str, Path], words: dict[str, _Words], feats: dict[str, dict[str, str]]
) -> None:
    for name, dump in sets.items():
        for key in words[name]:
            if key not in feats[name]:
                raise InputError(
                    f"{dump / 'text'}: {key} has no features: run make_features"
                )


def _spread(names: list[str], count: int) -> list[str]:
    """Return at most so many names, evenly from the whole list."""
    return names[:: -(-len(names) // count)]


def import_alignments_parser() -> argparse.ArgumentParser:
    """Return the parser of `import_alignments`."""
    parser = argparse.ArgumentParser(
        description="Read a Kaldi directory with final.mdl and ali.*.gz, and write for "
        "each --data OUT/NAME: the pdf of each frame, the numbers of frames, and the "
        "counts of the pdfs, as gmm_train writes them. Utterances that Kaldi has not "
        "aligned are left out, and counted.",
    )
    add = parser.add_argument
    add("--ali", type=Path, required=True, help="as exp/tri4_ali")
    add(
        "--data",
        action="append",
        required=True,
        metavar="NAME=DUMP",
        help="a set with DUMP/hybrid/utt2num_frames from make_features (repeatable)",
    )
    why = "they are not as long as the features"
    add_max_lost(parser, "a set's alignments", why)
    add("--out", type=Path, required=True, help="directory to write")
    return parser


@one_line_errors
def import_alignments_command(cmd: Sequence[str] | None = None) -> None:
    """Import frame labels of a hybrid system from alignments of a Kaldi system."""
    args = import_alignments_parser().parse_args(cmd)
    frames = {
        name: read_table(dump / "hybrid/utt2num_frames", counted("utterance", "frames"))
        for name, dump in named_sets(args.data)
    }
    losses = {name: Losses(f"alignments of {name}", args.max_lost) for name in frames}
    pdfs, alignments = read_kaldi_alignments(args.ali)
    found = _fitted(alignments, frames, losses, args.ali)
    for each in losses.values():
        each.check(print)
    with whole_directory(args.out, marker="imported_from") as new:
        write_text(new / "imported_from", f"{args.ali}\n")
        for name, labels in found.items():
            if not labels:
                raise InputError(f"{args.ali}: no utterance of {name} is aligned")
            (new / name).mkdir()
            names = "".join(f"pdf_{number}\n" for number in range(pdfs))
            write_text(new / name / "states.txt", names)
            write_alignments(new / name, args.out / name, labels, pdfs)
    for name, labels in found.items():
        print(f"{name}: {len(labels)} of {len(frames[name])} utterances, {pdfs} pdfs")


def _fitted(
    alignments: Iterable[tuple[str, Pdfs]],
    frames: Mapping[str, Mapping[str, int]],
    losses: Mapping[str, Losses],
    ali: Path,
) -> dict[str, dict[str, Pdfs]]:
    """Return the alignments of each set that are as long as the features."""
    found: dict[str, dict[str, Pdfs]] = {name: {} for name in frames}
    for utterance, alignment in alignments:
        for name, lengths in frames.items():
            if utterance not in lengths:
                continue
            fitted = fit(alignment, lengths[utterance])
            if fitted is None:
                losses[name].add(
                    f"{ali}: {utterance} has {len(alignment)} frames, but its features "
                    f"{lengths[utterance]}: they are not of one recording"
                )
            else:
                found[name][utterance] = fitted
                losses[name].kept += 1
    return found

"""Train a monophone GMM-HMM from a flat start, and align data sets with it."""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from espnet_distopt.bin.options import named_sets
from espnet_distopt.corpora.kaldi.matrix_arks import read_matrix
from espnet_distopt.corpora.kaldi.tables import read_table
from espnet_distopt.errors import InputError, one_line_errors
from espnet_distopt.files.whole_directory import whole_directory
from espnet_distopt.hmm.language import Language, read_language
from espnet_distopt.hmm.lexicon import require_words

_Words = dict[str, list[str]]


def get_parser() -> argparse.ArgumentParser:
    """Return the command's parser."""
    parser = argparse.ArgumentParser(
        description="Train Gaussian mixtures for the states of a lexicon from speech "
        "and its words, and write OUT/gmm.npz. For each --data it then writes "
        "OUT/NAME: ali.scp with the pdf of each frame, and the counts of the pdfs.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--lang", type=Path, required=True, help="from make_lang")
    parser.add_argument(
        "--data",
        action="append",
        required=True,
        metavar="NAME=DUMP",
        help="a set to align: has text, and DUMP/hybrid/feats.scp from make_features; "
        "the mixtures are trained on the first one (repeatable)",
    )
    parser.add_argument("--out", type=Path, required=True, help="directory to write")
    parser.add_argument(
        "--utterances", type=int, default=1000, help="train on so many at most"
    )
    parser.add_argument("--passes", type=int, default=20, help="of alignment")
    parser.add_argument(
        "--doublings", type=int, default=4, help="how often the mixtures double in size"
    )
    return parser


@one_line_errors
def main(cmd: Sequence[str] | None = None) -> None:
    """Train the mixtures, align the sets, and print how it went."""
    args = get_parser().parse_args(cmd)
    # These come late, because torch is slow to import.
    import torch

    from espnet_distopt.hmm.cepstra import cepstra
    from espnet_distopt.hmm.flat_start import FlatStart, align_all, train
    from espnet_distopt.hmm.gmm_files import write_gmm

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
    from espnet_distopt.hmm.alignments import write_alignments
    from espnet_distopt.hmm.states import write_states

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


if __name__ == "__main__":
    main()

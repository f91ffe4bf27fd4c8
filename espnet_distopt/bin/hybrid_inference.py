"""Decode speech with a hybrid system, or its GMM, by a lexicon and an n-gram."""

import argparse
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from espnet_distopt.bin.options import model_files
from espnet_distopt.bin.progress import say
from espnet_distopt.corpora.kaldi.matrix_arks import read_matrix
from espnet_distopt.corpora.kaldi.places import read_places
from espnet_distopt.corpora.kaldi.tables import read_table, write_table
from espnet_distopt.errors import InputError, one_line_errors
from espnet_distopt.espnet.training.same_training import refuse_other_labels
from espnet_distopt.files.writing import (
    explain_failed_write,
    remove_earlier,
    whole_file,
)
from espnet_distopt.files.yaml import read_yaml
from espnet_distopt.hmm.language import Language, read_language


def get_parser() -> argparse.ArgumentParser:
    """Return the command's parser."""
    parser = argparse.ArgumentParser(
        description="Search the best words of each utterance in the graph of a lexicon "
        "and an n-gram. The scores are a neural network's log posteriors minus log "
        "priors (--exp), or the likelihoods of Gaussian mixtures (without --exp). "
        "Writes OUT/text and OUT/ctm.",
    )
    parser.add_argument("--exp", type=Path, help="has config.yaml and --model")
    parser.add_argument(
        "--model", default="valid.loss.ave.pth", help="model file in --exp"
    )
    parser.add_argument("--gmm", type=Path, required=True, help="from gmm_train")
    parser.add_argument(
        "--priors",
        default="train",
        help="alignments in --gmm that the network has learned: they give the priors",
    )
    parser.add_argument("--lang", type=Path, required=True, help="from make_lang")
    parser.add_argument(
        "--data", type=Path, required=True, help="has wav.scp and hybrid/feats.scp"
    )
    parser.add_argument(
        "--places", type=Path, required=True, help="data directory, for times in files"
    )
    parser.add_argument(
        "--config",
        type=Path,
        help="YAML: acoustic_scale, beam, max_active, prior_scale",
    )
    parser.add_argument("--out", type=Path, required=True, help="directory to write")
    parser.add_argument("--job", type=int, default=1, help="decode utterance JOB,")
    parser.add_argument("--nj", type=int, default=1, help="JOB + NJ, JOB + 2 NJ ...")
    return parser


@one_line_errors
def main(cmd: Sequence[str] | None = None) -> None:
    """Decode the utterances, and print each of them."""
    args = get_parser().parse_args(cmd)
    inputs = (args.data / "text", args.places / "text")
    remove_earlier(args.out, "text", "ctm", inputs=inputs)
    if not 1 <= args.job <= args.nj:
        raise InputError(f"--job {args.job}: expected a number from 1 to {args.nj}")
    language = read_language(args.lang)
    feats = _features(args.data)
    mine = {name: feats[name] for name in list(feats)[args.job - 1 :: args.nj]}
    conf = read_yaml(args.config) if args.config else {}

    # These come late, because torch and ESPnet are slow to import.
    from espnet_distopt.algorithms.options import configure
    from espnet_distopt.hmm.gmm_files import read_gmm
    from espnet_distopt.hmm.search import Decoding

    search = configure(Decoding, conf, str(args.config))
    mixtures, stay = read_gmm(args.gmm / "gmm.npz", language.states.names())
    if args.exp is None:
        scored = _likelihoods(mixtures, mine)
    else:
        scored = _posteriors(args, language, mine, search.prior_scale)
    started = time.monotonic()
    lost = _decode(args, language, stay, search, scored)
    seconds = time.monotonic() - started
    print(f"{len(mine)} utterances in {seconds:.1f} s, {lost} of them without a path")


def _features(data: Path) -> dict[str, str]:
    """Return the features of a set, of whose utterances none may be without."""
    scp = data / "hybrid/feats.scp"
    wavs, feats = read_table(data / "wav.scp", str), read_table(scp, str)
    missing = [name for name in wavs if name not in feats]
    if missing:
        raise InputError(
            f"{scp}: {len(missing)} of {len(wavs)} utterances have no features, the "
            f"first is {missing[0]}: run make_features (in a recipe: from --stage 10)"
        )
    return feats


_Scored = Iterator[tuple[str, np.ndarray]]


def _likelihoods(mixtures: Any, feats: Mapping[str, str]) -> _Scored:
    import torch

    from espnet_distopt.hmm.cepstra import cepstra

    for name, location in feats.items():
        features = torch.from_numpy(cepstra(read_matrix(location)))
        yield name, mixtures.scores(features).numpy()


def _posteriors(
    args: argparse.Namespace,
    language: Language,
    feats: Mapping[str, str],
    prior_scale: float,
) -> _Scored:
    labels = args.gmm / args.priors
    refuse_other_labels(args.exp, labels)
    from espnet_distopt.espnet.hybrid.posteriors import PosteriorModel
    from espnet_distopt.hmm.alignments import require_states

    model = PosteriorModel(*model_files(args.exp, args.model))
    require_states(labels, model.states, str(args.exp))
    require_states(labels, language.states.names(), str(args.lang))
    return model.scaled_likelihoods(feats, labels / "counts", prior_scale)


def _decode(
    args: argparse.Namespace,
    language: Language,
    stay: Sequence[float],
    search: Any,
    scored: _Scored,
) -> int:
    """Decode the utterances, and return the number of those without a path."""
    from espnet_distopt.corpora.audio.log_mel import FRAME_SECONDS
    from espnet_distopt.corpora.hub5.ctm import Word, write_ctm
    from espnet_distopt.corpora.hub5.placing import placed, reference_spans
    from espnet_distopt.corpora.word_times import TimedWord
    from espnet_distopt.hmm.grammar import ngram_grammar
    from espnet_distopt.hmm.graph import HmmSet, count_arcs, expand
    from espnet_distopt.hmm.memory import check_memory
    from espnet_distopt.hmm.search import best_path

    places, spans = read_places(args.places), reference_spans(args.places)
    grammar = ngram_grammar(language.ngram, language.lexicon, search.word_penalty)
    say(check_memory(count_arcs(grammar, language.lexicon)))
    models = HmmSet(language.states, stay)
    graph = expand(grammar, language.lexicon, models, search.acoustic_scale)
    texts: dict[str, str] = {}
    timed: list[Word] = []
    lost = 0
    for name, scores in scored:
        if name not in places:
            raise InputError(f"{args.places / 'text'}: {name} is missing")
        found = best_path(graph, scores, search)
        lost += found is None
        words = found.words if found else []
        texts[name] = " ".join(word for word, *_ in words)
        place = places[name]
        speech = (place.start, place.start + len(scores) * FRAME_SECONDS)
        span = spans.get(name, speech)
        timed += [
            placed(TimedWord(*word), place, FRAME_SECONDS, span) for word in words
        ]
        print(f"{name} (speech length: {len(scores)}): {texts[name]}", flush=True)
    with explain_failed_write(args.out):
        args.out.mkdir(parents=True, exist_ok=True)
        write_ctm(args.out / "ctm", timed)
        with whole_file(args.out / "text") as new:
            write_table(new, texts)
    return lost


if __name__ == "__main__":
    main()

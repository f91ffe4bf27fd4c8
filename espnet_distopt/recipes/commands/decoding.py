"""Commands that decode, or find when words were spoken."""

import argparse
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from espnet_distopt.errors import InputError, one_line_errors
from espnet_distopt.espnet.training.same_training import BEGUN, digest_of
from espnet_distopt.files.tables import counted, read_table, write_table
from espnet_distopt.files.writing import (
    explain_failed_write,
    remove_earlier,
    whole_file,
)
from espnet_distopt.files.yaml import read_yaml
from espnet_distopt.recipes.commands.options import ProgressLine, model_files, say
from espnet_distopt.recipes.corpora.hub5.ctm import (
    TimedWord,
    Word,
    placed,
    reference_spans,
    write_ctm,
)
from espnet_distopt.recipes.corpora.kaldi.arks import FloatArkWriter, read_matrix
from espnet_distopt.recipes.corpora.kaldi.directory import read_places
from espnet_distopt.recipes.corpora.kaldi.tokens import SPACE
from espnet_distopt.recipes.hmm.alignments import require_states
from espnet_distopt.recipes.hmm.graph import (
    HmmSet,
    check_memory,
    count_arcs,
    expand,
    ngram_grammar,
)
from espnet_distopt.recipes.hmm.language import Language, read_language
from espnet_distopt.recipes.hmm.ngram import Ngram, read_arpa

BEST = "valid.loss.ave.pth"
"""The model that most commands take if none is named."""


def _add_model(parser: argparse.ArgumentParser, default: str | None = None) -> None:
    """Add --exp and --model, which must be given if it has no default."""
    add = parser.add_argument
    add("--exp", type=Path, required=True, help="has config.yaml")
    add(
        "--model", default=default, required=default is None, help="model file in --exp"
    )


def _add_jobs(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--out", type=Path, required=True, help="directory to write")
    add("--job", type=int, default=1, help="decode the utterance, or line, JOB,")
    add("--nj", type=int, default=1, help="JOB + NJ, JOB + 2 NJ ...")


def _share(args: argparse.Namespace) -> slice:
    """Return which of all utterances are those of `--job`."""
    if not 1 <= args.job <= args.nj:
        raise InputError(f"--job {args.job}: expected a number from 1 to {args.nj}")
    return slice(args.job - 1, None, args.nj)


def _configuration(args: argparse.Namespace) -> dict[str, Any]:
    return read_yaml(args.config) if args.config else {}


def _make(out: Path) -> None:
    with explain_failed_write(out):
        out.mkdir(parents=True, exist_ok=True)


def ctc_inference_parser() -> argparse.ArgumentParser:
    """Return the parser of `ctc_inference`."""
    parser = argparse.ArgumentParser(
        description="Decode the utterances of a directory of format_data in batches: "
        "the best token of each frame, without repetitions and blanks, or (with "
        "--ngram_file) the best words of an n-gram. Writes OUT/token and OUT/text, as "
        "espnet2.bin.asr_inference does.",
    )
    add = parser.add_argument
    _add_model(parser)
    add("--data", type=Path, required=True, help="has wav.scp and utt2num_samples")
    add("--ngram_file", type=Path, help="ARPA file over words, to search them")
    add(
        "--config",
        type=Path,
        help="YAML: search (best_path, or words with --ngram_file), and for words "
        "acoustic_scale, beam, max_active, word_penalty",
    )
    _add_jobs(parser)
    return parser


@one_line_errors
def ctc_inference_command(cmd: Sequence[str] | None = None) -> None:
    """Decode speech by a model's CTC output: its best path, or its best words."""
    args = ctc_inference_parser().parse_args(cmd)
    remove_earlier(args.out, "text", "token", inputs=[args.data / "text"])
    share = _share(args)
    scp = args.data / "wav.scp"
    wavs = read_table(scp, str)
    samples = read_table(args.data / "utt2num_samples", counted("utterance", "samples"))
    _check_known(scp, wavs, args.data / "utt2num_samples", samples)
    config, parameters = model_files(args.exp, args.model)
    ngram = read_arpa(args.ngram_file) if args.ngram_file else None
    conf = _configuration(args)
    _check_search(conf.pop("search", None), ngram is not None, args.config)

    # These come late, because ESPnet is slow to import.
    from espnet_distopt.algorithms.options import configure
    from espnet_distopt.recipes.hmm.search import WordSearch
    from espnet_distopt.recipes.models.ctc import CTCModel, decode

    search = configure(WordSearch, conf, str(args.config))
    model = CTCModel(config, parameters)
    _make(args.out)
    mine = {name: wavs[name] for name in list(wavs)[share]}
    decoded: _Decoded
    if ngram is None:
        decoded = decode(model, mine, samples)
    else:
        decoded = _decode_words(model, ngram, mine, samples, search)
    tokens, texts, lost = {}, {}, 0
    for name, found in decoded:
        lost += found is None
        tokens[name], texts[name] = " ".join(found or []), model.spell(found or [])
        print(f"{name} (speech length: {samples[name]}): {texts[name]}", flush=True)
    _write_tables(args.out, {"token": tokens, "text": texts})
    if model.undecoded.reasons:
        print(model.undecoded)
    print(f"{len(mine)} utterances, {lost} of them without a path")


def _check_search(search: Any, has_ngram: bool, config: Path) -> None:
    """Refuse a configuration that asks for another search than the options."""
    if search not in (None, "best_path", "words"):
        raise InputError(f"{config}: search: {search}: expected best_path or words")
    if search == "words" and not has_ngram:
        raise InputError(f"{config}: search: words needs an n-gram: pass --ngram_file")
    if search == "best_path" and has_ngram:
        raise InputError(f"{config}: search: best_path uses no n-gram (--ngram_file)")


_Decoded = Iterator[tuple[str, list[str] | None]]
"""Each utterance with its tokens, or None if the search has found no path."""


def _decode_words(
    model: Any,
    ngram: Ngram,
    wavs: Mapping[str, str],
    samples: Mapping[str, int],
    search: Any,
) -> _Decoded:
    from espnet_distopt.recipes.models.ctc import decode_words, spellings, word_graph

    spelled = spellings(model, ngram.words())
    graph = word_graph(model, ngram, spelled, search, say)
    say(f"{len(spelled)} of {len(ngram.words())} words have tokens")
    return decode_words(model, graph, spelled, wavs, samples, search)


def _write_tables(out: Path, tables: Mapping[str, Mapping[str, str]]) -> None:
    with explain_failed_write(out):
        for name, table in tables.items():
            with whole_file(out / name) as new:
                write_table(new, table)


def ocr_inference_parser() -> argparse.ArgumentParser:
    """Return the parser of `ocr_inference`."""
    parser = argparse.ArgumentParser(
        description="Decode the lines of a directory of format_lines. Writes OUT/text; "
        "a line without ink, or of an impossible width, has no text there, and is "
        "listed in OUT/unfit.",
    )
    add = parser.add_argument
    _add_model(parser, BEST)
    add(
        "--data",
        type=Path,
        required=True,
        help="has feats.scp or images.scp, and utt2num_frames",
    )
    add(
        "--config",
        type=Path,
        help="YAML: search (greedy, prefix_beam or ngram_beam), beam_size, lm_weight, "
        "penalty, batch_size",
    )
    add("--lm", type=Path, help="directory of a language model over the same tokens")
    add(
        "--ngram_file",
        type=Path,
        help="ARPA file of an n-gram over the same tokens, for search: ngram_beam",
    )
    _add_jobs(parser)
    return parser


@one_line_errors
def ocr_inference_command(cmd: Sequence[str] | None = None) -> None:
    """Decode text lines with a trained model: greedy, or by a prefix beam search."""
    args = ocr_inference_parser().parse_args(cmd)
    remove_earlier(args.out, "text", "unfit", inputs=[args.data / "text"])
    share = _share(args)
    columns = read_table(args.data / "utt2num_frames", counted("line", "columns"))
    scp = _line_table(args.data)
    names = list(read_table(scp, str))
    _check_known(scp, names, args.data / "utt2num_frames", columns)
    config, parameters = model_files(args.exp, args.model)

    # These come late, because torch and ESPnet are slow to import.
    from espnet_distopt.algorithms.options import configure
    from espnet_distopt.recipes.corpora.lines.formatting import check_scaling
    from espnet_distopt.recipes.models.ocr.inference import LineRecognizer
    from espnet_distopt.recipes.models.ocr.search import Decoding

    decoding = configure(Decoding, _configuration(args), str(args.config))
    recognizer = LineRecognizer(config, parameters, decoding, args.lm, args.ngram_file)
    kind = recognizer.data_type
    if scp.stem == "feats":
        kind = "kaldi_ark"
        check_scaling(args.data, *recognizer.scaling)
    _make(args.out)
    mine = {name: columns[name] for name in names[share]}
    started = time.monotonic()
    print(f"decoding {len(mine)} lines of {scp}, {decoding.search}", flush=True)
    progress = ProgressLine("decoded {done} of {total} lines")
    recognized = recognizer.recognize(scp, kind, mine, progress)
    _write_tables(args.out, {"unfit": recognized.unfit, "text": recognized.texts})
    if recognized.unfit:
        name, reason = min(recognized.unfit.items())
        print(
            f"{len(recognized.unfit)} unfit line(s), listed in {args.out / 'unfit'}; "
            f"the first is {name}: {reason}"
        )
    seconds = time.monotonic() - started
    print(f"{args.out / 'text'}: {len(mine)} lines in {seconds:.1f} s")


def _line_table(data: Path) -> Path:
    for name in ("feats.scp", "images.scp"):
        if (data / name).is_file():
            return data / name
    raise InputError(f"{data}: neither feats.scp nor images.scp: see format_lines")


def hybrid_inference_parser() -> argparse.ArgumentParser:
    """Return the parser of `hybrid_inference`."""
    parser = argparse.ArgumentParser(
        description="Search the best words of each utterance in the graph of a lexicon "
        "and an n-gram. The scores are a neural network's log posteriors minus log "
        "priors (--exp), or the likelihoods of Gaussian mixtures (without --exp). "
        "Writes OUT/text and OUT/ctm.",
    )
    add = parser.add_argument
    add("--exp", type=Path, help="has config.yaml and --model")
    add("--model", default=BEST, help="model file in --exp")
    add("--gmm", type=Path, required=True, help="from gmm_train")
    add("--lang", type=Path, required=True, help="from make_lang")
    add("--data", type=Path, required=True, help="has wav.scp and hybrid/feats.scp")
    add("--places", type=Path, required=True, help="data directory, for times in files")
    add(
        "--config",
        type=Path,
        help="YAML: acoustic_scale, beam, max_active, prior_scale",
    )
    _add_jobs(parser)
    return parser


@one_line_errors
def hybrid_inference_command(cmd: Sequence[str] | None = None) -> None:
    """Decode speech with a hybrid system, or its GMM, by a lexicon and an n-gram."""
    args = hybrid_inference_parser().parse_args(cmd)
    inputs = (args.data / "text", args.places / "text")
    remove_earlier(args.out, "text", "ctm", inputs=inputs)
    share = _share(args)
    language = read_language(args.lang)
    feats = _features(args.data)
    mine = {name: feats[name] for name in list(feats)[share]}

    # These come late, because torch and ESPnet are slow to import.
    from espnet_distopt.algorithms.options import configure
    from espnet_distopt.recipes.hmm.gmm import read_gmm
    from espnet_distopt.recipes.hmm.search import Decoding

    search = configure(Decoding, _configuration(args), str(args.config))
    mixtures, stay = read_gmm(args.gmm / "gmm.npz", language.states.names())
    if args.exp is None:
        scored = _likelihoods(mixtures, mine)
    else:
        scored = _posteriors(args, language, mine, search.prior_scale)
    started = time.monotonic()
    lost = _decode_hybrid(args, language, stay, search, scored)
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

    from espnet_distopt.recipes.hmm.gmm import cepstra

    for name, location in feats.items():
        features = torch.from_numpy(cepstra(read_matrix(location)))
        yield name, mixtures.scores(features).numpy()


def _posteriors(
    args: argparse.Namespace,
    language: Language,
    feats: Mapping[str, str],
    prior_scale: float,
) -> _Scored:
    labels = args.gmm / "train"  # The network has learned these.
    refuse_other_labels(args.exp, labels)
    from espnet_distopt.recipes.models.hybrid.posteriors import PosteriorModel

    model = PosteriorModel(*model_files(args.exp, args.model))
    require_states(labels, model.states, str(args.exp))
    require_states(labels, language.states.names(), str(args.lang))
    return model.scaled_likelihoods(feats, labels / "counts", prior_scale)


def _decode_hybrid(
    args: argparse.Namespace,
    language: Language,
    stay: Sequence[float],
    search: Any,
    scored: _Scored,
) -> int:
    """Decode the utterances, and return the number of those without a path."""
    from espnet_distopt.recipes.corpora.audio.log_mel import FRAME_SECONDS
    from espnet_distopt.recipes.hmm.search import best_path

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
    _write_tables(args.out, {"text": texts})
    return lost


def hybrid_scores_parser() -> argparse.ArgumentParser:
    """Return the parser of `hybrid_scores`."""
    parser = argparse.ArgumentParser(
        description="Write OUT/scores.ark and OUT/scores.scp: the log posteriors of "
        "each frame's pdfs minus their log priors, which Kaldi's latgen-faster-mapped "
        "takes with the final.mdl and the HCLG.fst of the alignments.",
    )
    add = parser.add_argument
    _add_model(parser, BEST)
    add(
        "--ali",
        type=Path,
        required=True,
        help="alignments of the training set, as exp/hybrid_gmm/train: their counts "
        "give the priors",
    )
    add("--data", type=Path, required=True, help="has hybrid/feats.scp")
    add("--out", type=Path, required=True, help="directory to write")
    return parser


@one_line_errors
def hybrid_scores_command(cmd: Sequence[str] | None = None) -> None:
    """Write a hybrid system's scores as Kaldi arks, to decode with Kaldi's graph."""
    args = hybrid_scores_parser().parse_args(cmd)
    remove_earlier(args.out, "scores.scp", "scores.ark")
    feats = read_table(args.data / "hybrid/feats.scp", str)
    config, parameters = model_files(args.exp, args.model)
    refuse_other_labels(args.exp, args.ali)

    # This comes late, because ESPnet is slow to import.
    from espnet_distopt.recipes.models.hybrid.posteriors import PosteriorModel

    model = PosteriorModel(config, parameters)
    require_states(args.ali, model.states, str(args.exp))
    path = args.out / "scores.ark"
    with explain_failed_write(args.out):
        args.out.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as new, FloatArkWriter(new, named=path) as ark:
            for name, scores in model.scaled_likelihoods(feats, args.ali / "counts"):
                ark[name] = scores
        with whole_file(args.out / "scores.scp") as new:
            write_table(new, ark.locations)
    print(f"{path}: {len(ark.locations)} utterances, {model.pdfs} pdfs")


def ctc_align_parser() -> argparse.ArgumentParser:
    """Return the parser of `ctc_align`."""
    parser = argparse.ArgumentParser(
        description="Align decoded utterances with their audio by the CTC output of "
        "the model that decoded them, and write the words with their times (CTM). An "
        "utterance decoded to nothing has no line.",
    )
    add = parser.add_argument
    _add_model(parser)
    add(
        "--data",
        type=Path,
        required=True,
        help="data directory: segments, reco2file_and_channel; stm, if it has one, "
        "says between which times an utterance's words are",
    )
    add("--dump", type=Path, required=True, help="the same set after format_data")
    decoded = parser.add_mutually_exclusive_group(required=True)
    decoded.add_argument(
        "--text", type=Path, help="words by utterance; the model's tokenizer splits"
    )
    decoded.add_argument(
        "--tokens", type=Path, help="tokens by utterance, as asr_inference writes them"
    )
    add("--out", type=Path, required=True, help="CTM file to write")
    return parser


@one_line_errors
def ctc_align_command(cmd: Sequence[str] | None = None) -> None:
    """Find when each decoded word was spoken, by CTC alignment, and write a CTM."""
    args = ctc_align_parser().parse_args(cmd)
    inputs = (args.text, args.tokens, args.data / "text")
    remove_earlier(args.out, inputs=inputs)
    started = time.monotonic()
    source = args.tokens or args.text
    decoded = read_table(source, str)
    places = read_places(args.data)
    samples = read_table(args.dump / "utt2num_samples", counted("utterance", "samples"))
    wavs = read_table(args.dump / "wav.scp", str)
    _check_known(source, decoded, args.data / "text", places)
    _check_known(source, decoded, args.dump / "utt2num_samples", samples)
    _check_known(source, decoded, args.dump / "wav.scp", wavs)
    spans = reference_spans(args.data)
    config, parameters = model_files(args.exp, args.model)

    # These come late, because ESPnet is slow to import.
    from espnet_distopt.recipes.models.ctc import CTCModel, align

    model = CTCModel(config, parameters)
    if args.tokens:
        tokens = {name: _tokens(line) for name, line in decoded.items()}
        _check_tokens(source, tokens, model.tokens)
    else:
        tokens = {name: model.tokenize(line) for name, line in decoded.items()}
    progress = ProgressLine("aligned {done} of {total} utterances")
    aligned = align(model, wavs, tokens, places, samples, spans, progress)
    with explain_failed_write(args.out):
        args.out.parent.mkdir(parents=True, exist_ok=True)
        write_ctm(args.out, aligned.words)
    if aligned.spread:
        print(
            f"more tokens than frames in {len(aligned.spread)} utterance(s), words "
            f"spread evenly; the first is {aligned.spread[0]}"
        )
    print(
        f"{args.out}: {len(aligned.words)} words of {len(decoded)} utterances, in "
        f"{time.monotonic() - started:.1f} s"
    )


def _tokens(line: str) -> list[str]:
    tokens = line.split()
    # ESPnet writes this one token for an utterance that is too short to decode.
    return [] if tokens == [SPACE] else tokens


def _check_known(
    source: Path, names: Iterable[str], path: Path, known: Mapping[str, object]
) -> None:
    for number, utterance in enumerate(names, start=1):
        if utterance not in known:
            raise InputError(f"{source}:{number}: {utterance} is not in {path}")


def _check_tokens(
    source: Path, decoded: Mapping[str, Sequence[str]], known: Sequence[str]
) -> None:
    # The first token is the blank, which no text contains.
    allowed = set(known[1:])
    for number, tokens in enumerate(decoded.values(), start=1):
        for token in tokens:
            if token not in allowed:
                raise InputError(
                    f"{source}:{number}: {token} is not a token of the model"
                )


def refuse_other_labels(exp: Path, labels: Path) -> None:
    """Refuse labels other than those that a hybrid system has learned.

    `labels` is their directory, which has `counts`.

    Raises:
        InputError: The labels are not those of the training.
    """
    counts, note = labels / "counts", exp / BEGUN
    if note.exists() and read_yaml(note)["learned"] != digest_of([counts]):
        raise InputError(
            f"{exp}: the network there has learned other labels than those that "
            f"{counts} sums up: remove the directory, and run stage 11 again"
        )

"""Decode speech by the best path through a model's CTC output, or by its best words."""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from espnet_distopt.bin.options import model_files
from espnet_distopt.bin.progress import say
from espnet_distopt.corpora.kaldi.tables import counted, read_table, write_table
from espnet_distopt.errors import InputError, one_line_errors
from espnet_distopt.files.writing import (
    explain_failed_write,
    remove_earlier,
    whole_file,
)
from espnet_distopt.files.yaml import read_yaml
from espnet_distopt.hmm.ngram import Ngram, read_arpa


def get_parser() -> argparse.ArgumentParser:
    """Return the command's parser."""
    parser = argparse.ArgumentParser(
        description="Decode the utterances of a directory of format_data in batches: "
        "the best token of each frame, without repetitions and blanks, or (with "
        "--ngram_file) the best words of an n-gram. Writes OUT/token and OUT/text, as "
        "espnet2.bin.asr_inference does.",
    )
    parser.add_argument("--exp", type=Path, required=True, help="has config.yaml")
    parser.add_argument("--model", required=True, help="model file in --exp")
    parser.add_argument(
        "--data", type=Path, required=True, help="has wav.scp and utt2num_samples"
    )
    parser.add_argument(
        "--ngram_file", type=Path, help="ARPA file over words, to search them"
    )
    parser.add_argument(
        "--config",
        type=Path,
        help="YAML: search (best_path, or words with --ngram_file), and for words "
        "acoustic_scale, beam, max_active, word_penalty",
    )
    parser.add_argument("--out", type=Path, required=True, help="directory to write")
    parser.add_argument("--job", type=int, default=1, help="decode utterance JOB,")
    parser.add_argument("--nj", type=int, default=1, help="JOB + NJ, JOB + 2 NJ ...")
    return parser


@one_line_errors
def main(cmd: Sequence[str] | None = None) -> None:
    """Decode the utterances, and print each of them."""
    args = get_parser().parse_args(cmd)
    remove_earlier(args.out, "text", "token", inputs=[args.data / "text"])
    if not 1 <= args.job <= args.nj:
        raise InputError(f"--job {args.job}: expected a number from 1 to {args.nj}")
    scp = args.data / "wav.scp"
    wavs = read_table(scp, str)
    samples = read_table(args.data / "utt2num_samples", counted("utterance", "samples"))
    for number, name in enumerate(wavs, start=1):
        if name not in samples:
            raise InputError(f"{scp}:{number}: {name} is not in utt2num_samples")
    config, parameters = model_files(args.exp, args.model)
    ngram = read_arpa(args.ngram_file) if args.ngram_file else None
    conf = read_yaml(args.config) if args.config else {}
    _check_search(conf.pop("search", None), ngram is not None, args.config)

    # These come late, because ESPnet is slow to import.
    from espnet_distopt.algorithms.options import configure
    from espnet_distopt.espnet.alignment.best_path import decode
    from espnet_distopt.espnet.alignment.ctc_model import CTCModel
    from espnet_distopt.hmm.search import WordSearch

    search = configure(WordSearch, conf, str(args.config))
    model = CTCModel(config, parameters)
    with explain_failed_write(args.out):
        args.out.mkdir(parents=True, exist_ok=True)
    mine = {name: wavs[name] for name in list(wavs)[args.job - 1 :: args.nj]}
    decoded: _Decoded
    if ngram is None:
        decoded = decode(model, mine, samples)
    else:
        decoded = _search(model, ngram, mine, samples, search)
    tokens, texts, lost = {}, {}, 0
    for name, found in decoded:
        lost += found is None
        tokens[name], texts[name] = " ".join(found or []), model.spell(found or [])
        print(f"{name} (speech length: {samples[name]}): {texts[name]}", flush=True)
    _write(args.out, {"token": tokens, "text": texts})
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


def _search(
    model: Any,
    ngram: Ngram,
    wavs: Mapping[str, str],
    samples: Mapping[str, int],
    search: Any,
) -> _Decoded:
    from espnet_distopt.espnet.alignment.word_search import (
        decode_words,
        spellings,
        word_graph,
    )

    spelled = spellings(model, ngram.words())
    graph = word_graph(model, ngram, spelled, search, say)
    say(f"{len(spelled)} of {len(ngram.words())} words have tokens")
    return decode_words(model, graph, spelled, wavs, samples, search)


def _write(out: Path, tables: Mapping[str, Mapping[str, str]]) -> None:
    with explain_failed_write(out):
        for name, table in tables.items():
            with whole_file(out / name) as new:
                write_table(new, table)


if __name__ == "__main__":
    main()

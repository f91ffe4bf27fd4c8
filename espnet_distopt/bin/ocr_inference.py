"""Decode text lines with a trained model: greedy, or by a prefix beam search."""

import argparse
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from espnet_distopt.bin.options import model_files
from espnet_distopt.bin.progress import TimedProgressLine
from espnet_distopt.corpora.kaldi.tables import counted, read_table, write_table
from espnet_distopt.errors import InputError, one_line_errors
from espnet_distopt.files.writing import (
    explain_failed_write,
    remove_earlier,
    whole_file,
)
from espnet_distopt.files.yaml import read_yaml


def get_parser() -> argparse.ArgumentParser:
    """Return the command's parser."""
    parser = argparse.ArgumentParser(
        description="Decode the lines of a directory of format_lines. Writes OUT/text; "
        "a line without ink, or of an impossible width, has no text there, and is "
        "listed in OUT/unfit.",
    )
    parser.add_argument("--exp", type=Path, required=True, help="has config.yaml")
    parser.add_argument(
        "--model", default="valid.loss.ave.pth", help="model file in --exp"
    )
    parser.add_argument(
        "--data",
        type=Path,
        required=True,
        help="has feats.scp or images.scp, and utt2num_frames",
    )
    parser.add_argument(
        "--config",
        type=Path,
        help="YAML: search (greedy, prefix_beam or ngram_beam), beam_size, lm_weight, "
        "penalty, batch_size",
    )
    parser.add_argument(
        "--lm", type=Path, help="directory of a language model over the same tokens"
    )
    parser.add_argument(
        "--ngram_file",
        type=Path,
        help="ARPA file of an n-gram over the same tokens, for search: ngram_beam",
    )
    parser.add_argument("--out", type=Path, required=True, help="directory to write")
    parser.add_argument("--job", type=int, default=1, help="decode the lines JOB,")
    parser.add_argument("--nj", type=int, default=1, help="JOB + NJ, JOB + 2 NJ ...")
    return parser


@one_line_errors
def main(cmd: Sequence[str] | None = None) -> None:
    """Decode the lines, and print how many there were."""
    args = get_parser().parse_args(cmd)
    remove_earlier(args.out, "text", "unfit", inputs=[args.data / "text"])
    if not 1 <= args.job <= args.nj:
        raise InputError(f"--job {args.job}: expected a number from 1 to {args.nj}")
    columns = read_table(args.data / "utt2num_frames", counted("line", "columns"))
    scp = _lines(args.data)
    names = list(read_table(scp, str))
    for number, name in enumerate(names, start=1):
        if name not in columns:
            raise InputError(f"{scp}:{number}: {name} is not in utt2num_frames")
    config, parameters = model_files(args.exp, args.model)

    # These come late, because torch and ESPnet are slow to import.
    from espnet_distopt.algorithms.options import configure
    from espnet_distopt.corpora.lines.formatting import check_scaling
    from espnet_distopt.espnet.ocr.inference import LineRecognizer
    from espnet_distopt.espnet.ocr.search import Decoding

    conf = read_yaml(args.config) if args.config else {}
    decoding = configure(Decoding, conf, str(args.config))
    recognizer = LineRecognizer(config, parameters, decoding, args.lm, args.ngram_file)
    kind = recognizer.data_type
    if scp.stem == "feats":
        kind = "kaldi_ark"
        check_scaling(args.data, *recognizer.scaling)
    with explain_failed_write(args.out):
        args.out.mkdir(parents=True, exist_ok=True)
    mine = {name: columns[name] for name in names[args.job - 1 :: args.nj]}
    started = time.monotonic()
    print(f"decoding {len(mine)} lines of {scp}, {decoding.search}", flush=True)
    progress = TimedProgressLine("decoded {done} of {total} lines", seconds=10)
    recognized = recognizer.recognize(scp, kind, mine, progress)
    _write(args.out, recognized.texts, recognized.unfit)
    if recognized.unfit:
        name, reason = min(recognized.unfit.items())
        print(
            f"{len(recognized.unfit)} unfit line(s), listed in {args.out / 'unfit'}; "
            f"the first is {name}: {reason}"
        )
    seconds = time.monotonic() - started
    print(f"{args.out / 'text'}: {len(mine)} lines in {seconds:.1f} s")


def _lines(data: Path) -> Path:
    for name in ("feats.scp", "images.scp"):
        if (data / name).is_file():
            return data / name
    raise InputError(f"{data}: neither feats.scp nor images.scp: see format_lines")


def _write(out: Path, texts: Mapping[str, str], unfit: Mapping[str, str]) -> None:
    with explain_failed_write(out):
        for name, table in (("unfit", unfit), ("text", texts)):
            with whole_file(out / name) as new:
                write_table(new, table)


if __name__ == "__main__":
    main()

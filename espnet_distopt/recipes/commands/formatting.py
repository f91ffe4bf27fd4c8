"""Commands that turn data directories into what training reads."""

import argparse
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from espnet_distopt.errors import InputError, one_line_errors
from espnet_distopt.files.text import read_text
from espnet_distopt.recipes.commands.options import ProgressLine, format_parser
from espnet_distopt.recipes.corpora.kaldi.tokens import TYPES, make_tokens


def make_tokens_parser() -> argparse.ArgumentParser:
    """Return the parser of `make_tokens`."""
    parser = argparse.ArgumentParser(
        description="Write a token list in ESPnet's form (tokens.txt; for bpe also "
        "bpe.model).",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--type", choices=TYPES, required=True, help="kind of token")
    add("--text", type=Path, required=True, help="Kaldi `text` file")
    add("--out", type=Path, required=True, help="directory to write")
    add("--nbpe", type=int, default=100, help="length of the list (bpe only)")
    return parser


@one_line_errors
def make_tokens_command(cmd: Sequence[str] | None = None) -> None:
    """Make a token list from training text: words, characters, or subwords."""
    args = make_tokens_parser().parse_args(cmd)
    tokens = make_tokens(args.text, args.out, args.type, args.nbpe)
    print(f"{args.out / 'tokens.txt'}: {len(tokens)} tokens of type {args.type}")


def format_data_parser() -> argparse.ArgumentParser:
    """Return the parser of `format_data`."""
    parser = format_parser(
        "Read every utterance of a Kaldi data directory and write a dump directory: "
        "wav.ark (or one a process), wav.scp, text, utt2spk, spk2utt, utt2num_samples, "
        "rate_and_speeds.",
        keep_all="keep utterances of any duration and without words (for test sets)",
    )
    add = parser.add_argument
    add("--min_seconds", type=float, default=0.1, help="drop shorter utterances")
    add("--max_seconds", type=float, default=20.0, help="drop longer utterances")
    add("--sample_rate", type=int, default=8000, help="rate the audio must have, Hz")
    add(
        "--speed_factors",
        default="1.0",
        help='write each utterance at these speeds, as "0.9 1.0 1.1"; the limits hold '
        "for the copies",
    )
    return parser


@one_line_errors
def format_data_command(cmd: Sequence[str] | None = None) -> None:
    """Format a data directory: cut out its utterances and pack them into arks."""
    args = format_data_parser().parse_args(cmd)
    # These come late, so that --help doesn't wait for numpy.
    from espnet_distopt.recipes.corpora.audio.formatting import (
        Limits,
        format_data,
        parse_factors,
    )

    started = time.monotonic()
    limits = Limits(min_seconds=args.min_seconds, max_seconds=args.max_seconds)
    formatted = format_data(
        args.source,
        args.target,
        limits=None if args.keep_all else limits,
        sample_rate=args.sample_rate,
        factors=parse_factors(args.speed_factors),
        nj=args.nj,
        progress=ProgressLine("utterances: {done} of {total}"),
    )
    seconds = sum(formatted.samples.values()) / args.sample_rate
    print(
        f"{args.target}: {len(formatted.samples)} utterances, {seconds / 3600:.2f} h, "
        f"in {time.monotonic() - started:.1f} s"
    )
    for reason, count in sorted(formatted.dropped.items()):
        print(f"{args.target}: dropped {count} {reason}")
    if formatted.empty:
        print(f"{args.target}: kept {formatted.empty} without samples, as silence")
    if formatted.full_scale:
        (name, most), *_ = formatted.full_scale.most_common(1)
        print(
            f"{args.target}: {formatted.full_scale.total()} samples of "
            f"{len(formatted.full_scale)} utterances are at full scale, as clipped "
            f"ones are; {most} of them in {name}"
        )
    if formatted.unreadable:
        print(
            f"{args.target}: left out {len(formatted.unreadable)} recording(s) that "
            f"cannot be read, the first: {formatted.unreadable[0]}"
        )


def format_lines_parser() -> argparse.ArgumentParser:
    """Return the parser of `format_lines`."""
    parser = format_parser(
        "Read every line image of a data directory and write a dump directory: "
        "feats.ark (or one a process) and feats.scp, or images.scp; text, utt2spk, "
        "spk2utt, utt2num_frames, skipped.txt.",
        keep_all="keep lines of any width and without text (for test sets); an image "
        "that can't be read is then an error",
    )
    add = parser.add_argument
    add("--height", type=int, default=32, help="pixels that a line is scaled to")
    add(
        "--least_rows",
        type=int,
        default=0,
        help="pad lower images with paper to so many rows before they are scaled",
    )
    add(
        "--feats",
        choices=("ark", "raw"),
        default="ark",
        help="ark: write the features; raw: check the images, which are then decoded "
        "when they are needed",
    )
    return parser


@one_line_errors
def format_lines_command(cmd: Sequence[str] | None = None) -> None:
    """Format a data directory of text lines: scale them, and pack them into arks."""
    args = format_lines_parser().parse_args(cmd)
    # This comes late, so that --help doesn't wait for numpy and scipy.
    from espnet_distopt.recipes.corpora.lines.formatting import format_lines

    started = time.monotonic()
    formatted = format_lines(
        args.source,
        args.target,
        height=args.height,
        least_rows=args.least_rows,
        feats=args.feats,
        keep_all=args.keep_all,
        nj=args.nj,
        progress=ProgressLine("lines: {done} of {total}"),
    )
    columns = formatted.columns.values()
    print(
        f"{args.target}: {len(columns)} lines, {sum(columns)} columns, in "
        f"{time.monotonic() - started:.1f} s"
    )
    verb = "kept, though" if args.keep_all else "skipped"
    reasons = Counter(why.partition(":")[0] for why in formatted.unfit.values())
    for reason, count in sorted(reasons.items()):
        print(f"{args.target}: {verb} {count}: {reason} (see skipped.txt)")


def make_features_parser() -> argparse.ArgumentParser:
    """Return the parser of `make_features`."""
    parser = argparse.ArgumentParser(
        description="Write the features of the utterances of a directory of "
        "format_data: 40 log-mel energies with first and second derivatives for each "
        "10 ms, normalized by speaker, in Kaldi's compressed form.",
    )
    add = parser.add_argument
    add("--data", type=Path, required=True, help="has wav.scp and utt2spk")
    add("--out", type=Path, required=True, help="directory to write")
    return parser


@one_line_errors
def make_features_command(cmd: Sequence[str] | None = None) -> None:
    """Compute log-mel features with deltas for a hybrid system."""
    args = make_features_parser().parse_args(cmd)
    # This comes late, because torch is slow to import.
    from espnet_distopt.recipes.corpora.audio.log_mel import write_features

    started = time.monotonic()
    progress = ProgressLine("features of {done} of {total} utterances")
    frames = write_features(args.data, args.out, progress)
    print(f"{args.out}: {frames} frames, in {time.monotonic() - started:.1f} s")


def speech_shapes_parser() -> argparse.ArgumentParser:
    """Return the parser of `speech_shapes`."""
    parser = argparse.ArgumentParser(description=speech_shapes_command.__doc__)
    add = parser.add_argument
    add("--train", type=Path, required=True, help="training set, as format_data wrote")
    add("--valid", type=Path, required=True, help="validation set")
    add("--token_type", choices=("word", "char", "bpe"), required=True)
    add("--bpemodel", help="model of the subwords (bpe)")
    add("--nj", type=int, default=1, help="processes (default: 1)")
    add("--out", type=Path, required=True, help="writes OUT/{train,valid}/*_shape")
    add("--token_list", type=Path, help="the tokens of the model")
    add(
        "--model",
        nargs=argparse.REMAINDER,
        default=[],
        help="last of all, the options of asr_train that make the model, whose frames "
        "are counted (default: a frame each 10 ms)",
    )
    return parser


@one_line_errors
def speech_shapes_command(cmd: Sequence[str] | None = None) -> None:
    """Write the shapes of formatted speech and its text, which ESPnet batches by.

    They are the shapes that ESPnet's collect_stats writes, without reading the audio.
    Utterances that have fewer frames than CTC needs for their text get none, so that
    they are not trained on; OUT/{train,valid}/left_out lists them.
    """
    args = speech_shapes_parser().parse_args(cmd)
    if args.nj < 1:
        raise InputError(f"--nj is {args.nj}, expected at least 1")
    if args.token_type == "bpe" and not Path(args.bpemodel or "").is_file():
        raise InputError(f"--bpemodel {args.bpemodel}: no such file: make the tokens")
    # This comes late, so that --help doesn't wait for ESPnet.
    from espnet_distopt.recipes.corpora.speech_shapes import LEFT_OUT, write_shapes

    known, enough = frozenset[str](), None
    if args.token_list is not None:
        known = frozenset(read_text(args.token_list).splitlines())
    if args.model:
        from espnet_distopt.recipes.models.ctc_frames import enough_frames

        enough = enough_frames(args.model)
    for name, data in (("train", args.train), ("valid", args.valid)):
        started = time.monotonic()
        number, left_out = write_shapes(
            data,
            args.out / name,
            token_type=args.token_type,
            bpemodel=args.bpemodel if args.token_type == "bpe" else None,
            known=known,
            enough=enough,
            nj=args.nj,
            progress=ProgressLine("shapes: {done} of {total}"),
        )
        print(f"{data}: {number} shapes in {time.monotonic() - started:.1f} s")
        if left_out:
            first, why = next(iter(left_out.items()))
            print(
                f"{data}: left out {len(left_out)} too short for their text, which CTC "
                f"cannot learn (see {args.out / name / LEFT_OUT}); the first is "
                f"{first}: {why}"
            )

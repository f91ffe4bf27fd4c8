"""Commands that make data directories: from corpora, own data, or out of nothing."""

import argparse
import os
import shutil
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from espnet_distopt.errors import InputError, one_line_errors
from espnet_distopt.files.whole_directory import whole_directory
from espnet_distopt.files.writing import explain_failed_write
from espnet_distopt.recipes.commands.options import (
    ProgressLine,
    add_max_lost,
    corpus_parser,
    say,
)
from espnet_distopt.recipes.corpora.kaldi import directory
from espnet_distopt.recipes.corpora.kaldi.directory import SpeechSet, to_data_dir
from espnet_distopt.recipes.corpora.ldc.discs import Losses
from espnet_distopt.recipes.corpora.ldc.evaluation import (
    Evaluation,
    read_eval2000,
    read_rt03,
)
from espnet_distopt.recipes.corpora.ldc.fisher import read_fisher
from espnet_distopt.recipes.corpora.ldc.swbd import (
    cap_duplicates,
    read_conv_tab,
    read_swb1,
    split_dev,
)
from espnet_distopt.recipes.corpora.lines import iam
from espnet_distopt.recipes.corpora.lines.sets import summarize, write_sets

_OPTIONAL = ("train_fisher", "train_all", "rt03")
_MARKER = "prepared_by"
_MADE_HERE = "prepare_swbd\n"
"""What the file `_MARKER` in each set says."""

_PUBLISHED = (
    "for comparison, Kaldi and ESPnet have of the full discs: train_nodup 286 h, "
    "train_dev 4000 utterances (5.1 h), eval2000 4459 references (1831 swbd, 2628 "
    "callhome), 4322 of them with words"
)


def prepare_swbd_parser() -> argparse.ArgumentParser:
    """Return the parser of `prepare_swbd`."""
    parser = argparse.ArgumentParser(description=prepare_swbd_command.__doc__)
    add = parser.add_argument
    add("--swb1", type=Path, required=True, help="LDC97S62")
    add("--swb1_text", type=Path, help="MS98 transcripts (default: below --swb1)")
    add(
        "--dev_speakers",
        choices=("keep", "exclude"),
        default="keep",
        help="exclude: leave out of training whoever speaks in train_dev, as conv.tab "
        "tells, which costs 12 to 16 %% of it; keep: train on all the rest, as Kaldi "
        "and ESPnet do (default)",
    )
    add("--conv_tab", type=Path, help="conv.tab: who speaks, to --dev_speakers exclude")
    add("--eval2000_speech", type=Path, required=True, help="LDC2002S09")
    add("--eval2000_text", type=Path, required=True, help="LDC2002T43")
    add(
        "--fisher_speech",
        type=Path,
        nargs="+",
        default=[],
        help="LDC2004S13 LDC2005S13",
    )
    add("--fisher_text", type=Path, nargs="+", default=[], help="LDC2004T19 LDC2005T19")
    add("--rt03", type=Path, help="LDC2007S10")
    add("--out", type=Path, required=True, help="where the data directories go")
    add(
        "--dev_segments",
        type=int,
        help="at least so many utterances, of whole conversations, go to train_dev "
        "(default: 4000, or a tenth of a corpus of less than 40000)",
    )
    add(
        "--max_duplicates",
        type=int,
        default=300,
        help="how often a training set may repeat one text (default: 300)",
    )
    what = "the recordings, transcripts and segments of Switchboard and Fisher"
    add_max_lost(parser, what, "they are bad")
    return parser


@one_line_errors
def prepare_swbd_command(cmd: Sequence[str] | None = None) -> None:
    """Prepare Switchboard-1 and eval2000: from the LDC's discs to data directories.

    Writes train_nodup, train_dev and eval2000 (with its stm and glm) below --out. With
    Fisher also train_fisher (all of it, such as for a language model) and train_all
    (train_nodup and Fisher, 2,000 hours); with --rt03 also rt03. Of these sets it
    removes those that it has made before and does not make now.
    """
    args = prepare_swbd_parser().parse_args(cmd)
    _check_swbd(args)
    training = _training_sets(args)
    evaluations = _evaluations(args)
    sets = [*training, *(each.speech for each in evaluations)]
    _write_sets(args.out, training, evaluations)
    made = {each.name for each in sets}
    _remove_earlier(args.out, [name for name in _OPTIONAL if name not in made])
    print(directory.summarize(sets))
    print(_PUBLISHED)


def _check_swbd(args: argparse.Namespace) -> None:
    if bool(args.fisher_speech) != bool(args.fisher_text):
        raise InputError("Fisher needs both: --fisher_speech and --fisher_text")
    for name in ("dev_segments", "max_duplicates"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise InputError(f"--{name} is {value}, expected at least 1")
    if not 0 <= args.max_lost <= 100:
        raise InputError(f"--max_lost is {args.max_lost}, expected 0 to 100")
    if args.dev_speakers == "exclude" and args.conv_tab is None:
        raise InputError(
            "--dev_speakers exclude needs --conv_tab, the table of Switchboard's "
            "documentation that tells who speaks"
        )


def _training_sets(args: argparse.Namespace) -> list[SpeechSet]:
    """Return train_nodup and train_dev, and with Fisher train_fisher and train_all."""
    # It is small and read first, so that a mistake in it shows at once.
    speakers = None
    if args.conv_tab is not None:
        losses = Losses("lines", args.max_lost)
        speakers = read_conv_tab(args.conv_tab, losses)
        losses.check(say)
    say(f"reading {args.swb1}")
    corpus = read_swb1(args.swb1, args.swb1_text, say, args.max_lost)
    exclude = args.dev_speakers == "exclude"
    train, dev = split_dev(corpus, args.dev_segments, speakers, exclude, say)
    train_nodup = cap_duplicates(train, args.max_duplicates)
    if not args.fisher_speech:
        return [train_nodup, dev]
    say(f"reading {', '.join(map(str, args.fisher_speech))}")
    fisher = read_fisher(args.fisher_speech, args.fisher_text, say, args.max_lost)
    # Switchboard comes first, so that Fisher's copies of a text displace none of it.
    both = replace(
        train,
        audio={**fisher.audio, **train.audio},
        utterances=(*train_nodup.utterances, *fisher.utterances),
    )
    capped = cap_duplicates(both, args.max_duplicates).utterances
    train_all = replace(
        both, name="train_all", utterances=tuple(sorted(capped, key=lambda u: u.id))
    )
    return [train_nodup, dev, replace(fisher, name="train_fisher"), train_all]


def _evaluations(args: argparse.Namespace) -> list[Evaluation]:
    say(f"reading {args.eval2000_speech} and {args.eval2000_text}")
    discs = args.eval2000_speech, args.eval2000_text
    evaluations = [read_eval2000(*discs, log=say)]
    if args.rt03 is not None:
        say(f"reading {args.rt03}")
        evaluations.append(read_rt03(args.rt03, log=say))
    return evaluations


def _write_sets(
    out: Path, training: Sequence[SpeechSet], evaluations: Sequence[Evaluation]
) -> None:
    """Write every set, or none if one of them can't be written."""
    with ExitStack() as whole:

        def write(speech: SpeechSet) -> Path:
            path = out / speech.name
            new = whole.enter_context(whole_directory(path))
            to_data_dir(speech).write_files(new, path)
            (new / _MARKER).write_text(_MADE_HERE, encoding="utf-8")
            return new

        for each in training:
            write(each)
        for evaluation in evaluations:
            new = write(evaluation.speech)
            (new / "stm").write_text(evaluation.stm, encoding="utf-8")
            shutil.copyfile(evaluation.glm, new / "glm")


def _remove_earlier(out: Path, names: Sequence[str]) -> None:
    """Remove sets that an earlier run has made from other discs or with other options.

    Such a set may hold the speakers that are now held out of training.
    """
    for path in (out / name for name in names):
        marker = path / _MARKER
        if marker.is_file() and marker.read_text(encoding="utf-8") == _MADE_HERE:
            with explain_failed_write(path):
                shutil.rmtree(path.resolve())
                path.unlink(missing_ok=True)  # a link to another disk
            say(f"removed {path}, which is of an earlier run")
        elif path.exists():
            say(f"{path} is not of this run; it stays, because others may have made it")


def prepare_fsdd_parser() -> argparse.ArgumentParser:
    """Return the parser of `prepare_fsdd`."""
    parser = argparse.ArgumentParser(
        description="Write the data directories train, dev, test_known (the known "
        "speakers) and test_unseen (theo, who is not in training).",
    )
    add = parser.add_argument
    add(
        "--fsdd",
        type=Path,
        default=os.environ.get("FSDD") or None,
        help="copy of the dataset (default: $FSDD)",
    )
    add("--out", type=Path, default=Path("data"), help="where (default: data)")
    add("--seed", type=int, default=0, help="of everything (default 0)")
    return parser


@one_line_errors
def prepare_fsdd_command(cmd: Sequence[str] | None = None) -> None:
    """Prepare digit strings from the Free Spoken Digit Dataset."""
    args = prepare_fsdd_parser().parse_args(cmd)
    # This comes late, so that --help doesn't wait for numpy.
    from espnet_distopt.recipes.corpora.fsdd import URL, prepare

    if args.fsdd is None:
        raise InputError(
            "no copy of the dataset: set FSDD=/path/to/free-spoken-digit-dataset, or "
            f"let the recipe clone {URL}"
        )
    if args.seed < 0:
        raise InputError(f"--seed {args.seed}: expected 0 or more")
    summaries = prepare(args.fsdd, args.out, seed=args.seed)
    print(f"{'set':<12} {'strings':>7} {'words':>7} {'hours':>6}")
    for summary in summaries:
        print(
            f"{summary.name:<12} {summary.strings:>7} {summary.words:>7} "
            f"{summary.hours:>6.2f}"
        )


def prepare_iam_parser() -> argparse.ArgumentParser:
    """Return the parser of `prepare_iam`."""
    parser = argparse.ArgumentParser(
        description="Write the data directories train, dev and test of IAM's lines, "
        "from the archives ascii.tgz (or xml.tgz) and lines.tgz.",
    )
    add = parser.add_argument
    add(
        "--iam",
        type=Path,
        required=True,
        help="directory that has ascii/ (or xml/) and lines/",
    )
    add("--out", type=Path, required=True, help="as data")
    for name in ("train", "dev", "test"):
        add(
            f"--{name}_ids",
            type=Path,
            nargs="+",
            help=f"lists of the ids of lines or forms for {name}; default: the "
            "archive's own trainset.txt, validationset1.txt, validationset2.txt and "
            "testset.txt",
        )
    return parser


@one_line_errors
def prepare_iam_command(cmd: Sequence[str] | None = None) -> None:
    """Prepare the IAM handwriting database: data directories of its lines."""
    args = prepare_iam_parser().parse_args(cmd)
    given = {"train": args.train_ids, "dev": args.dev_ids, "test": args.test_ids}
    if any(given.values()) and not all(given.values()):
        raise InputError("expected --train_ids, --dev_ids and --test_ids, or none")
    lists = given if all(given.values()) else iam.own_lists(args.iam)
    sets = iam.read_iam(args.iam, iam.read_split(lists))
    write_sets({args.out / name: lines for name, lines in sets.items()})
    print(summarize(sets))
    trained = set(sets["train"].utt2spk.values())
    for name in ("dev", "test"):
        if both := trained & {*sets[name].utt2spk.values()}:
            print(f"{name}: {len(both)} of its writers are also in train")


def prepare_lines_parser() -> argparse.ArgumentParser:
    """Return the parser of `prepare_lines`."""
    parser = argparse.ArgumentParser(
        description=prepare_lines_command.__doc__,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--out", type=Path, required=True, help="data directory, as data/train")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--table",
        type=Path,
        help="file of lines: image, text and perhaps writer, separated by tabs",
    )
    source.add_argument(
        "--pages", type=Path, nargs="+", help="PAGE files, or directories of them"
    )
    add(
        "--sets",
        action="store_true",
        help="with --pages DIRECTORY: write OUT/train, OUT/dev and OUT/test; the sets "
        "are the directories of these names in it, or one page in ten is of dev, one "
        "of test and the others are of train",
    )
    add("--writer", default="", help="with --pages: of all lines, if not one a page")
    return parser


@one_line_errors
def prepare_lines_command(cmd: Sequence[str] | None = None) -> None:
    """Prepare lines of your own: images with a table, or pages in PAGE XML."""
    args = prepare_lines_parser().parse_args(cmd)
    if args.table and (args.writer or args.sets):
        raise InputError("--writer and --sets go with --pages")
    if args.sets and len(args.pages) > 1:
        raise InputError("--sets goes with one directory of pages")
    # These come late, so that --help doesn't wait for scipy.
    from espnet_distopt.recipes.corpora.lines.own import (
        divide_pages,
        read_table_of_lines,
        write_pages,
    )

    if args.table:
        lines = read_table_of_lines(args.table)
        lines.write(args.out)
        made = {args.out: lines}
    else:
        divided = {args.out: args.pages}
        if args.sets:
            parts = divide_pages(args.pages[0])
            divided = {args.out / name: pages for name, pages in parts.items()}
        progress = ProgressLine("pages: {done} of {total}")
        made = write_pages(divided, args.writer, progress)
    print(summarize({out.name: lines for out, lines in made.items()}))
    for out, lines in made.items():
        if lines.skipped:
            print(f"{out / 'skipped.txt'} lists what was skipped, and why")


_SIZES = {
    "conversations": (200, "training conversations"),
    "test_conversations": (6, "conversations of each test half"),
    "turns": (66, "utterances in a conversation"),
    "speakers": (200, "people in training and in the Switchboard half"),
    "test_speakers": (10, "people in the CallHome half"),
    "topics": (11, "topics of the conversations; fewer are easier to recognize"),
    "alternatives": (11, "of each phrase; fewer are easier to recognize"),
}


def make_mini_swbd_parser() -> argparse.ArgumentParser:
    """Return the parser of `make_mini_swbd`."""
    return corpus_parser(
        make_mini_swbd_command.__doc__, out="directory of the corpus", sizes=_SIZES
    )


@one_line_errors
def make_mini_swbd_command(cmd: Sequence[str] | None = None) -> None:
    """Make a synthetic Switchboard: telephone conversations on discs as the LDC's."""
    args = make_mini_swbd_parser().parse_args(cmd)
    # These come late, so that --help doesn't wait for numpy and scipy.
    from espnet_distopt.recipes.corpora.mini_swbd.corpus import (
        Sizes,
        as_sets,
        make_corpus,
    )

    started = time.monotonic()
    progress = ProgressLine("conversations: {done} of {total}")
    sizes = Sizes(**{name: getattr(args, name) for name in _SIZES})
    recorded = make_corpus(args.out, sizes, args.seed, args.nj, progress)
    print(f"{args.out}: made in {time.monotonic() - started:.0f} s")
    print(directory.summarize(as_sets(recorded)))


_LINE_SIZES = {
    "train_printed": (4000, "printed training lines"),
    "train_digits": (8000, "handwritten training lines"),
    "dev_printed": (300, "printed development lines"),
    "dev_digits": (100, "handwritten development lines"),
    "test_printed": (400, "test lines in known fonts, and as many in unseen ones"),
    "test_digits": (400, "handwritten test lines"),
}


def make_mini_ocr_parser() -> argparse.ArgumentParser:
    """Return the parser of `make_mini_ocr`."""
    return corpus_parser(
        make_mini_ocr_command.__doc__,
        out="directory to make: images, and the data directories train, dev and test",
        sizes=_LINE_SIZES,
    )


@one_line_errors
def make_mini_ocr_command(cmd: Sequence[str] | None = None) -> None:
    """Make a corpus of text lines: printed ones, and real handwritten digits."""
    args = make_mini_ocr_parser().parse_args(cmd)
    # These come late, so that --help doesn't wait for numpy and scipy.
    from espnet_distopt.recipes.corpora.mini_ocr.corpus import LineSizes, make_corpus

    started = time.monotonic()
    progress = ProgressLine("lines: {done} of {total}")
    sizes = LineSizes(**{name: getattr(args, name) for name in _LINE_SIZES})
    sets = make_corpus(args.out, sizes, args.seed, args.nj, progress)
    print(f"{args.out}: made in {time.monotonic() - started:.0f} s")
    print(summarize(sets))

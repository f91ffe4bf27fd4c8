"""Prepare Switchboard-1 and eval2000: from the LDC's discs to data directories.

Writes train_nodup, train_dev and eval2000 (with its stm and glm) below --out. With
Fisher also train_fisher (all of it, such as for a language model) and train_all
(train_nodup and Fisher, 2,000 hours); with --rt03 also rt03. Of these sets it removes
those that it has made before and does not make now.
"""

import argparse
import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from espnet_distopt.bin.options import add_max_lost
from espnet_distopt.bin.progress import say
from espnet_distopt.errors import InputError, one_line_errors
from espnet_distopt.files.writing import explain_failed_write

if TYPE_CHECKING:
    from espnet_distopt.corpora.kaldi.speech_set import SpeechSet
    from espnet_distopt.corpora.ldc.evaluation import Evaluation

_OPTIONAL = ("train_fisher", "train_all", "rt03")
_MARKER = "prepared_by"
_MADE_HERE = "prepare_swbd\n"
"""What the file `_MARKER` in each set says."""

_PUBLISHED = (
    "for comparison, Kaldi and ESPnet have of the full discs: train_nodup 286 h, "
    "train_dev 4000 utterances (5.1 h), eval2000 4459 references (1831 swbd, 2628 "
    "callhome), 4322 of them with words"
)


def get_parser() -> argparse.ArgumentParser:
    """Return the command's parser."""
    parser = argparse.ArgumentParser(description=__doc__)
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
    add(
        "--fisher_text",
        type=Path,
        nargs="+",
        default=[],
        help="LDC2004T19 LDC2005T19",
    )
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
def main(cmd: Sequence[str] | None = None) -> None:
    """Prepare the sets, and print a summary."""
    args = get_parser().parse_args(cmd)
    _check(args)
    # This comes late, so that --help doesn't wait for numpy.
    from espnet_distopt.corpora.kaldi.speech_set import summarize

    training = _training_sets(args)
    evaluations = _evaluations(args)
    sets = [*training, *(each.speech for each in evaluations)]
    _write(args.out, training, evaluations)
    made = {each.name for each in sets}
    _remove_earlier(args.out, [name for name in _OPTIONAL if name not in made])
    print(summarize(sets))
    print(_PUBLISHED)


def _check(args: argparse.Namespace) -> None:
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


def _training_sets(args: argparse.Namespace) -> list["SpeechSet"]:
    """Return train_nodup and train_dev, and with Fisher train_fisher and train_all."""
    from espnet_distopt.corpora.ldc.conv_tab import read_conv_tab
    from espnet_distopt.corpora.ldc.fisher import read_fisher
    from espnet_distopt.corpora.ldc.losses import Losses
    from espnet_distopt.corpora.ldc.swbd import cap_duplicates, read_swb1, split_dev

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
    return [
        train_nodup,
        dev,
        replace(fisher, name="train_fisher"),
        train_all,
    ]


def _evaluations(args: argparse.Namespace) -> list["Evaluation"]:
    from espnet_distopt.corpora.ldc.eval2000 import read_eval2000
    from espnet_distopt.corpora.ldc.rt03 import read_rt03

    say(f"reading {args.eval2000_speech} and {args.eval2000_text}")
    discs = args.eval2000_speech, args.eval2000_text
    evaluations = [read_eval2000(*discs, log=say)]
    if args.rt03 is not None:
        say(f"reading {args.rt03}")
        evaluations.append(read_rt03(args.rt03, log=say))
    return evaluations


def _write(
    out: Path, training: Sequence["SpeechSet"], evaluations: Sequence["Evaluation"]
) -> None:
    """Write every set, or none if one of them can't be written."""
    from espnet_distopt.corpora.kaldi.speech_set import to_data_dir
    from espnet_distopt.files.whole_directory import whole_directory

    with ExitStack() as whole:

        def write(speech: "SpeechSet") -> Path:
            path = out / speech.name
            directory = whole.enter_context(whole_directory(path))
            to_data_dir(speech).write_files(directory, path)
            (directory / _MARKER).write_text(_MADE_HERE, encoding="utf-8")
            return directory

        for each in training:
            write(each)
        for evaluation in evaluations:
            directory = write(evaluation.speech)
            (directory / "stm").write_text(evaluation.stm, encoding="utf-8")
            shutil.copyfile(evaluation.glm, directory / "glm")


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


if __name__ == "__main__":
    main()

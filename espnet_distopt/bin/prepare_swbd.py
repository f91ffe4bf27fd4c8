"""Prepare Switchboard-1 and eval2000: from the LDC's discs to data directories.

Writes train_nodup, train_dev and eval2000 (with its stm and glm) below --out.
"""

import argparse
import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from espnet_distopt.errors import one_line_errors


def get_parser() -> argparse.ArgumentParser:
    """Build the parser of this command."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--swb1", type=Path, required=True, help="LDC97S62 with the MS98 transcripts")
    add("--eval2000_speech", type=Path, required=True, help="LDC2002S09")
    add("--eval2000_text", type=Path, required=True, help="LDC2002T43")
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
        help="how often train_nodup may repeat one text (default: 300)",
    )
    return parser


@one_line_errors
def main(cmd: Sequence[str] | None = None) -> None:
    """Prepare the sets and print a summary."""
    args = get_parser().parse_args(cmd)
    # Late, so that --help doesn't wait for numpy.
    from espnet_distopt.data.eval2000 import read_eval2000
    from espnet_distopt.data.hub5 import mend_stm
    from espnet_distopt.data.kaldi_dir import whole_directory
    from espnet_distopt.data.speech_set import summarize, to_data_dir
    from espnet_distopt.data.swbd import cap_duplicates, read_swb1, split_dev

    print(f"reading {args.swb1}", flush=True)
    train, dev = split_dev(read_swb1(args.swb1, log=print), args.dev_segments)
    train = cap_duplicates(train, args.max_duplicates)
    print(f"reading {args.eval2000_speech} and {args.eval2000_text}", flush=True)
    evaluation = read_eval2000(args.eval2000_speech, args.eval2000_text)
    sets = [train, dev, evaluation.speech]
    with ExitStack() as whole:
        for each in sets:
            path = args.out / each.name
            directory = whole.enter_context(whole_directory(path))
            to_data_dir(each).write_files(directory, path)
            if each is evaluation.speech:
                stm = evaluation.stm.read_text(encoding="utf-8", errors="replace")
                (directory / "stm").write_text(mend_stm(stm), encoding="utf-8")
                shutil.copyfile(evaluation.glm, directory / "glm")
    print(summarize(sets))


if __name__ == "__main__":
    main()

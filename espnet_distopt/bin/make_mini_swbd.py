"""Make a synthetic Switchboard: telephone conversations on discs as the LDC's."""

import argparse
import time
from collections.abc import Sequence

from espnet_distopt.bin.options import corpus_parser
from espnet_distopt.bin.progress import ProgressLine
from espnet_distopt.errors import one_line_errors

_SIZES = {
    "conversations": (200, "training conversations"),
    "test_conversations": (6, "conversations of each test half"),
    "turns": (66, "utterances in a conversation"),
    "speakers": (200, "people in training and in the Switchboard half"),
    "test_speakers": (10, "people in the CallHome half"),
    "topics": (11, "topics of the conversations; fewer are easier to recognize"),
    "alternatives": (11, "of each phrase; fewer are easier to recognize"),
}


def get_parser() -> argparse.ArgumentParser:
    """Return the command's parser."""
    return corpus_parser(__doc__, out="directory of the corpus", sizes=_SIZES)


@one_line_errors
def main(cmd: Sequence[str] | None = None) -> None:
    """Make the corpus, and print a summary."""
    args = get_parser().parse_args(cmd)
    # These come late, so that --help doesn't wait for numpy and scipy.
    from espnet_distopt.corpora.kaldi.speech_set import summarize
    from espnet_distopt.corpora.mini_swbd.corpus import as_sets, make_corpus
    from espnet_distopt.corpora.mini_swbd.plan import Sizes

    started = time.monotonic()
    progress = ProgressLine("conversations: {done} of {total}", every=10)
    sizes = Sizes(**{name: getattr(args, name) for name in _SIZES})
    recorded = make_corpus(args.out, sizes, args.seed, args.nj, progress)
    print(f"{args.out}: made in {time.monotonic() - started:.0f} s")
    print(summarize(as_sets(recorded)))


if __name__ == "__main__":
    main()

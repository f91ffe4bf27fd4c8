"""Find when each decoded word was spoken, by CTC alignment, and write a CTM."""

import argparse
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from espnet_distopt.bin.options import model_files
from espnet_distopt.bin.progress import ProgressLine
from espnet_distopt.corpora.hub5.placing import reference_spans
from espnet_distopt.corpora.kaldi.places import read_places
from espnet_distopt.corpora.kaldi.tables import counted, read_table
from espnet_distopt.corpora.kaldi.tokens import SPACE
from espnet_distopt.errors import InputError, one_line_errors
from espnet_distopt.files.writing import explain_failed_write, remove_earlier


def get_parser() -> argparse.ArgumentParser:
    """Return the command's parser."""
    parser = argparse.ArgumentParser(
        description="Align decoded utterances with their audio by the CTC output of "
        "the model that decoded them, and write the words with their times (CTM). An "
        "utterance decoded to nothing has no line.",
    )
    parser.add_argument("--exp", type=Path, required=True, help="has config.yaml")
    parser.add_argument("--model", required=True, help="model file in --exp")
    parser.add_argument(
        "--data",
        type=Path,
        required=True,
        help="data directory: segments, reco2file_and_channel; stm, if it has one, "
        "says between which times an utterance's words are",
    )
    parser.add_argument(
        "--dump", type=Path, required=True, help="the same set after format_data"
    )
    decoded = parser.add_mutually_exclusive_group(required=True)
    decoded.add_argument(
        "--text", type=Path, help="words by utterance; the model's tokenizer splits"
    )
    decoded.add_argument(
        "--tokens", type=Path, help="tokens by utterance, as asr_inference writes them"
    )
    parser.add_argument("--out", type=Path, required=True, help="CTM file to write")
    return parser


@one_line_errors
def main(cmd: Sequence[str] | None = None) -> None:
    """Align the utterances, and print how many words were written."""
    args = get_parser().parse_args(cmd)
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
    from espnet_distopt.corpora.hub5.ctm import write_ctm
    from espnet_distopt.espnet.alignment.alignment import align
    from espnet_distopt.espnet.alignment.ctc_model import CTCModel

    model = CTCModel(config, parameters)
    if args.tokens:
        tokens = {name: _tokens(line) for name, line in decoded.items()}
        _check_tokens(source, tokens, model.tokens)
    else:
        tokens = {name: model.tokenize(line) for name, line in decoded.items()}
    progress = ProgressLine("aligned {done} of {total} utterances", every=500)
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
    source: Path, decoded: Mapping[str, str], path: Path, known: Mapping[str, object]
) -> None:
    for number, utterance in enumerate(decoded, start=1):
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


if __name__ == "__main__":
    main()

"""The command stands in for `python` in the recipes' tests.

It records each call and makes the files that the call would make. STUB_CALLS names the
record, which has a JSON list of arguments on each line; a command of the package,
`-m espnet_distopt score`, is there `-m distopt.score`. STUB_FAIL names a module that
fails, STUB_STOP a module whose learners are told to stop, STUB_HANG a module that hangs
with a child of its own, and STUB_REAL the modules that really run, besides scoring.
With STUB_NO_KENLM no import succeeds.
"""

import json
import os
import runpy
import shutil
import signal
import subprocess
import sys
import time
from hashlib import sha256
from itertools import pairwise, takewhile
from pathlib import Path

RANK_FAILURE = """\
W1201 some warning of torch
[rank1]: Traceback (most recent call last):
[rank1]:   File "train.py", line 1, in <module>
[rank1]: RuntimeError: rank 1 ran out of luck
launch: the run failed: learner 1 on host ended with status 1
"""


def option(name: str) -> str:
    return sys.argv[sys.argv.index(name) + 1]


def speech_shapes() -> None:
    write_shapes(Path(option("--out")))


def write_shapes(root: Path) -> None:
    for part in ("train", "valid"):
        directory = root / part
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "speech_shape").write_text("a-1 8000\n")
        (directory / "text_shape").write_text("a-1 2\n")
        (directory / "feats_stats.npz").write_text("-")


def train() -> None:
    directory = Path(option("--output_dir"))
    print("epoch 1: loss 1.0")
    print("a line of the log", file=sys.stderr)
    (directory / "config.yaml").write_text("-\n")
    (directory / "valid.loss.ave_3best.pth").write_text("-\n")
    average = directory / "valid.loss.ave.pth"  # a link, as ESPnet makes it
    average.unlink(missing_ok=True)
    average.symlink_to("valid.loss.ave_3best.pth")


def asr_train() -> None:
    if "--collect_stats" in sys.argv:
        write_shapes(Path(option("--output_dir")))
    else:
        train()


def asr_inference() -> None:
    keys = Path(option("--key_file")).read_text().splitlines()
    references = Path("dump/test/text").read_text().splitlines()
    directory = Path(option("--output_dir"), "1best_recog")
    directory.mkdir(parents=True)
    chosen = {line.split()[0] for line in keys}
    lines = [line for line in references if line.split()[0] in chosen]
    for _ in lines:
        print("INFO: speech length: 8000", file=sys.stderr)
    for name in ("text", "token"):
        (directory / name).write_text("\n".join(lines) + "\n")


def ctc_inference() -> None:
    lines = Path(option("--data"), "text").read_text().splitlines()
    directory = Path(option("--out"))
    directory.mkdir(parents=True)
    for name in ("text", "token"):
        mine = lines[int(option("--job")) - 1 :: int(option("--nj"))]
        (directory / name).write_text("\n".join(mine) + "\n")


def lm_train() -> None:
    asr_train()


def ocr_train() -> None:
    asr_train()


def ocr_inference() -> None:
    texts = Path(option("--data"), "text").read_text().splitlines()
    lines = texts[int(option("--job")) - 1 :: int(option("--nj"))]
    print(f"decoded {len(lines)} of {len(lines)} lines")
    directory = Path(option("--out"))
    directory.mkdir(parents=True)
    (directory / "unfit").write_text("")
    (directory / "text").write_text("\n".join(lines) + "\n")


def ctc_align() -> None:
    """Write times: an utterance takes two seconds and a word one, all in file x, A."""
    decoded = Path(option("--tokens")).read_text().splitlines()
    Path(option("--out")).write_text(
        "".join(
            f"x A {2 * number + index}.10 0.50 {word}\n"
            for number, line in enumerate(decoded)
            for index, word in enumerate(line.split()[1:])
        )
    )


def hybrid_train() -> None:
    train()


def hybrid_inference() -> None:
    lines = Path(option("--data"), "text").read_text().splitlines()
    mine = lines[int(option("--job")) - 1 :: int(option("--nj"))]
    directory = Path(option("--out"))
    directory.mkdir(parents=True)
    (directory / "ctm").write_text("x A 0.10 0.50 one\n")
    (directory / "text").write_text("\n".join(mine) + "\n")


def make_lang() -> None:
    directory = Path(option("--out"))
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "states.txt").write_text("SIL_0\nSIL_1\nSIL_2\n")
    digest = sha256(Path(option("--lexicon")).read_bytes()).hexdigest()
    made = f"--order {option('--order')}\n--lexicon {digest}\n"
    (directory / "made_with").write_text(made)


def make_features() -> None:
    directory = Path(option("--out"))
    directory.mkdir(exist_ok=True)
    (directory / "feats.scp").write_text("a-1 feats.ark:4\nb-2 feats.ark:9\n")


def gmm_train() -> None:
    directory = Path(option("--out"))
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "gmm.npz").write_text("-")
    (directory / "train").mkdir(exist_ok=True)
    (directory / "train" / "ali.scp").write_text("a-1 ali.ark:4\n")


def import_alignments() -> None:
    out = Path(option("--out"))
    (out / "train").mkdir(parents=True, exist_ok=True)
    (out / "imported_from").write_text(f"{Path(option('--ali'))}\n")
    (out / "train" / "ali.scp").write_text("a-1 ali.ark:4\n")


def make_tokens() -> None:
    directory = Path(option("--out"))
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "tokens.txt").write_text("<blank>\n<unk>\none\n<sos/eos>\n")


def format_data() -> None:
    source, target = (Path(argument) for argument in sys.argv[3:5])
    shutil.copytree(source, target, dirs_exist_ok=True)
    factors = option("--speed_factors") if "--speed_factors" in sys.argv else "1"
    speeds = " ".join(f"{float(factor):g}" for factor in factors.split())
    (target / "rate_and_speeds").write_text(f"{option('--sample_rate')} {speeds}\n")


def prepare_fsdd() -> None:
    for name, speaker in (("test_known", "jim"), ("test_unseen", "ann")):
        directory = Path("data", name)
        directory.mkdir(parents=True, exist_ok=True)
        for file in ("wav.scp", "text", "utt2spk"):
            (directory / file).write_text(f"{speaker}-{name}-1 {speaker}\n")
        (directory / "spk2utt").write_text(f"{speaker} {speaker}-{name}-1\n")


def hang(saves: bool) -> None:
    if saves:  # A training does so, and says it by its status.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
    child = subprocess.Popen(["sleep", "600"])
    temporary = Path(f"hanging.{os.getpid()}")
    temporary.write_text(f"{os.getpid()} {child.pid}\n")
    temporary.rename("hanging")
    time.sleep(600)


def main() -> None:
    if "espnet_distopt" in takewhile(lambda word: word != "--", sys.argv):
        place = sys.argv.index("espnet_distopt")
        sys.argv[place : place + 2] = [f"distopt.{sys.argv[place + 1]}"]
    with Path(os.environ["STUB_CALLS"]).open("a") as record:
        record.write(json.dumps(sys.argv[1:]) + "\n")
    if sys.argv[1] == "-c":  # does an import succeed?
        sys.exit("STUB_NO_KENLM" in os.environ)
    own = takewhile(lambda word: word != "--", sys.argv)
    modules = [b for a, b in pairwise(own) if a == "-m"]
    name = modules[-1].rpartition(".")[2]
    if name == os.environ.get("STUB_FAIL"):
        sys.stderr.write(RANK_FAILURE)
        sys.exit(1)
    if name == os.environ.get("STUB_STOP"):
        sys.exit(75)
    if name == os.environ.get("STUB_HANG"):
        hang(saves=name == "asr_train")
    real = os.environ.get("STUB_REAL", "").split()
    if name in ("score", "score_hub5", "wer_report", *real):
        sys.argv = sys.argv[2:]
        module = modules[-1]
        if module == f"distopt.{name}":
            sys.argv[:1] = ["distopt", name]
            module = "espnet_distopt"
        runpy.run_module(module, run_name="__main__")
    elif name in globals():
        globals()[name]()


if __name__ == "__main__":
    main()

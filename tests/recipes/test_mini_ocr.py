"""This test runs the whole mini_ocr recipe: few lines, one epoch, no stand-ins."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from espnet_distopt.files.tables import read_table
from espnet_distopt.recipes.corpora.kaldi.tokens import characters, read_characters
from espnet_distopt.recipes.hmm.ngram import read_arpa
from tests.recipes.toy_recipe import ROOT

FEW = {
    **{"train_printed": 40, "dev_printed": 8, "test_printed": 6},
    **{"train_digits": 8, "dev_digits": 4, "test_digits": 4, "nj": 1},
}
BOTH = "conf/decode.yaml conf/decode_greedy.yaml"


def test_the_whole_recipe_decodes_with_its_ngram(tmp_path: Path) -> None:
    root = tmp_path / "a copy"  # A path with a blank, as users have.
    made = shutil.ignore_patterns("corpus", "data", "dump", "exp")
    source, target = (each / "egs" / "mini_ocr" for each in (ROOT, root))
    shutil.copytree(source, target, symlinks=True, ignore=made)
    for name in ("local", "conf", "espnet_distopt"):
        (root / name).symlink_to(ROOT / name)
    recipe = root / "egs" / "mini_ocr" / "ocr1"
    sizes = " ".join(f"--{name} {count}" for name, count in FEW.items())
    done = subprocess.run(
        [
            *["./run.sh", "--distopt", "none", "--nj", "1", "--decode_config", BOTH],
            *["--local_data_opts", sizes],
            *["--train_args", "--max_epoch 1 --num_workers 0 --batch_size 8"],
        ],
        cwd=recipe,
        env={**os.environ, "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    experiment = recipe / "exp" / "ocr_none_1"
    ngram = read_arpa(recipe / "data" / "ngram" / "characters_6.arpa")
    known = read_characters(recipe / "data" / "token_list" / "char" / "tokens.txt")
    fit = {}
    for way in ("decode", "decode_greedy"):
        texts = read_table(experiment / way / "test" / "text", str)
        assert len(texts) == 2 * 6 + 4
        lines = [characters(text, known) for text in texts.values()]
        log10 = sum(map(ngram.sentence, lines))
        fit[way] = log10 / sum(len(line) + 1 for line in lines)
        assert f"| ocr_none_1/{way} |" in (recipe / "exp" / "RESULTS.md").read_text()
    # After one epoch the model knows nothing, so the n-gram decides.
    assert fit["decode"] > fit["decode_greedy"] + 0.5

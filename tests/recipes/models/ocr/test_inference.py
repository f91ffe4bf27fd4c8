"""Decoding of lines by a model that has learned to read three letters."""

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from espnet_distopt.files.tables import read_table
from espnet_distopt.recipes.commands.decoding import ocr_inference_command as main
from espnet_distopt.recipes.commands.language import make_ngram_command as make_ngram
from espnet_distopt.recipes.models.ocr.inference import LineRecognizer, batches
from espnet_distopt.recipes.models.ocr.search import (
    Decoding,
    PrefixScorer,
    greedy,
    prefix_beam,
)
from espnet_distopt.recipes.models.ocr.task import DistoptOCRTask
from tests.recipes.models.ocr.toy import HEIGHT, arguments, write_lines, write_toy_lines
from tests.refusal import Refused

TOKENS = ["<blank>", "<unk>", "a", "b", "<sos/eos>"]
MORE = ("--optim_conf", "lr=0.01", "--keep_nbest_models", "1")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data, an experiment that has learned them, and lines to decode."""
    root = tmp_path_factory.mktemp("lines")
    write_toy_lines(root, train=48)
    options = arguments(root, root / "exp", "--max_epoch", "24", *MORE)
    DistoptOCRTask.main(cmd=options)
    texts = ["abc", "a", "cab ba", "bb", "aaa cc b", "c", "ba"]
    names = {f"pen-{number}": text for number, text in enumerate(texts)}
    write_lines(root / "test", names)
    return root


def decode(root: Path, out: Path, *more: str) -> dict[str, str]:
    data = [] if "--data" in more else ["--data", str(root / "test")]
    options = ["--exp", str(root / "exp"), "--model", "24epoch.pth"]
    main([*options, "--out", str(out), *data, *more])
    return read_table(out / "text", str)


@pytest.fixture(scope="module")
def decoded(root: Path) -> dict[str, str]:
    return decode(root, root / "greedy")


def test_it_reads_what_it_has_learned(root: Path, decoded: dict[str, str]) -> None:
    assert decoded == read_table(root / "test" / "text", str)
    assert (root / "greedy" / "unfit").read_text() == ""


@pytest.mark.parametrize("search", ["greedy", "prefix_beam"])
def test_neither_search_nor_batch_changes_it(
    search: str, root: Path, decoded: dict[str, str], tmp_path: Path
) -> None:
    config = tmp_path / "decode.yaml"
    config.write_text(f"search: {search}\nbeam_size: 3\nbatch_size: 2\n")
    assert decode(root, tmp_path / "out", "--config", str(config)) == decoded


def test_images_are_decoded_as_arks_are(
    root: Path, decoded: dict[str, str], tmp_path: Path
) -> None:
    data = tmp_path / "raw"
    data.mkdir()
    for name in ("images.scp", "utt2num_frames"):
        (data / name).write_bytes((root / "test" / name).read_bytes())
    assert decode(root, tmp_path / "out", "--data", str(data)) == decoded


def test_arks_scaled_in_another_way_are_refused(
    root: Path, tmp_path: Path, refused: Refused
) -> None:
    for name in ("feats.scp", "images.scp", "utt2num_frames"):
        (tmp_path / name).write_bytes((root / "test" / name).read_bytes())
    (tmp_path / "line_scaling").write_text(f"{HEIGHT} 64\n")
    error = refused(decode, root, tmp_path / "out", "--data", str(tmp_path))
    assert f"{HEIGHT} 64, and the model's with {HEIGHT} 0" in error
    (tmp_path / "feats.scp").unlink()  # Images are scaled as the model expects.
    assert decode(root, tmp_path / "out", "--data", str(tmp_path))


def test_jobs_share_the_lines(
    root: Path, decoded: dict[str, str], tmp_path: Path
) -> None:
    shares = [
        decode(root, tmp_path / str(job), "--job", str(job), "--nj", "3")
        for job in (1, 2, 3)
    ]
    assert [len(share) for share in shares] == [3, 2, 2]
    assert {name: text for share in shares for name, text in share.items()} == decoded


def test_lines_that_are_none_have_no_text_and_are_listed(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "raw"
    write_lines(data, {"pen-1": "ab", "pen-3": " "})
    (data / "feats.scp").unlink()
    Image.new("L", (1, 90)).save(tmp_path / "narrow.png")
    scp = (data / "images.scp").read_text().splitlines()
    scp.insert(1, f"pen-2 {tmp_path}/narrow.png")
    (data / "images.scp").write_text("\n".join(scp) + "\n")
    (data / "utt2num_frames").write_text("pen-1 24\npen-2 0\npen-3 16\n")
    assert decode(root, tmp_path / "out", "--data", str(data)) == {
        "pen-1": "ab",
        "pen-2": "",
        "pen-3": "",
    }
    unfit = read_table(tmp_path / "out" / "unfit", str)
    assert list(unfit) == ["pen-2", "pen-3"]
    assert unfit["pen-2"].startswith("too narrow")
    assert unfit["pen-3"] == "no ink"
    assert "2 unfit line(s)" in capsys.readouterr().out


class Posteriors(torch.nn.Module):
    """Stands for ESPnet's CTC output: the encoder's outputs are the posteriors."""

    def log_softmax(self, encoded: torch.Tensor) -> torch.Tensor:
        return encoded.log_softmax(-1)

    def argmax(self, encoded: torch.Tensor) -> torch.Tensor:
        return encoded.argmax(-1)


def collapsed(path: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(token for token, _ in itertools.groupby(path) if token)


class Letters:
    """Stands for a language model: what follows depends on the prefix read so far."""

    def init_state(self, x: torch.Tensor) -> int:
        return 0

    def score(
        self, y: torch.Tensor, state: int, x: torch.Tensor
    ) -> tuple[torch.Tensor, int]:
        state = (3 * state + int(y[-1])) % 7
        generator = torch.Generator().manual_seed(state)
        scores = torch.randn(len(TOKENS), generator=generator, dtype=torch.float64)
        return scores.log_softmax(0), state


def by_letters(text: tuple[int, ...]) -> float:
    """Return the log-probability of a whole sentence by `Letters`."""
    end, total, state = len(TOKENS) - 1, 0.0, 0
    for read, token in itertools.pairwise((end, *text, end)):
        scores, state = Letters().score(torch.tensor([read]), state, torch.empty(0))
        total += float(scores[token])
    return total


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("with_lm", [False, True])
def test_both_searches_against_all_paths(seed: int, with_lm: bool) -> None:
    torch.manual_seed(seed)
    scores = 2 * torch.randn(2, 5, len(TOKENS), dtype=torch.float64)
    scores[..., [1, 4]] = -30.0  # never <unk>, never the sentence's end
    lengths = torch.tensor([5, 3])
    decoding = Decoding("prefix_beam", beam_size=70, lm_weight=0.7, penalty=0.5)
    end = len(TOKENS) - 1
    scorer = (lambda: PrefixScorer(Letters(), end)) if with_lm else None
    found = prefix_beam(Posteriors(), TOKENS, decoding, scorer)(scores, lengths)
    best = greedy(Posteriors())(scores, lengths)
    for row, length, path, text in zip(scores, [5, 3], best, found, strict=True):
        of_text: dict[tuple[int, ...], float] = {}
        of_path = {}
        probabilities = row[:length].softmax(-1).numpy()
        for each in itertools.product((0, 2, 3), repeat=length):
            value = np.prod([p[t] for p, t in zip(probabilities, each, strict=True)])
            of_path[each] = float(value)
            of_text[collapsed(each)] = of_text.get(collapsed(each), 0.0) + value
        assert tuple(path) == collapsed(max(of_path, key=lambda key: of_path[key]))
        total = {
            key: np.log(value)
            + decoding.penalty * len(key)
            + (decoding.lm_weight * by_letters(key) if with_lm else 0.0)
            for key, value in of_text.items()
        }
        assert tuple(text) == max(total, key=lambda key: total[key])


def test_a_language_model_of_espnets(root: Path, tmp_path: Path) -> None:
    from espnet2.tasks.lm import LMTask
    from espnet2.utils.yaml_no_alias_safe_dump import yaml_no_alias_safe_dump

    lm = tmp_path / "lm"
    lm.mkdir()
    options = ["--token_list", str(root / "tokens.txt"), "--output_dir", str(lm)]
    for option in ("rnn_type=lstm", "unit=4", "nlayers=1"):
        options += ["--lm_conf", option]
    args = LMTask.get_parser().parse_args([*options, "--token_type", "char"])
    torch.save(LMTask.build_model(args).state_dict(), lm / "valid.loss.ave.pth")
    (lm / "config.yaml").write_text(yaml_no_alias_safe_dump(vars(args)))
    config = tmp_path / "decode.yaml"
    config.write_text("search: prefix_beam\nlm_weight: 0.01\n")
    decoded = decode(root, tmp_path / "a", "--config", str(config), "--lm", str(lm))
    assert decoded == read_table(root / "test" / "text", str)

    config.write_text("search: prefix_beam\nlm_weight: 20\n")
    changed = decode(root, tmp_path / "b", "--config", str(config), "--lm", str(lm))
    assert changed != decoded

    args.token_list = [*args.token_list[:-2], "z", args.token_list[-1]]
    (lm / "config.yaml").write_text(yaml_no_alias_safe_dump(vars(args)))
    with pytest.raises(SystemExit):
        decode(root, tmp_path / "c", "--config", str(config), "--lm", str(lm))


def test_an_ngram_of_characters(root: Path, tmp_path: Path) -> None:
    tokens, arpa = root / "tokens.txt", tmp_path / "lm.arpa"
    options = ["--text", str(root / "train" / "text"), "--order", "3"]
    make_ngram(["--token_list", str(tokens), "--out", str(arpa), *options])
    config = tmp_path / "decode.yaml"
    config.write_text("search: ngram_beam\nlm_weight: 0\n")
    more = ["--config", str(config), "--ngram_file", str(arpa)]
    plain = decode(root, tmp_path / "plain", *more)
    assert plain == decode(root, root / "greedy_again")
    # All texts of the training begin with a, and end in b.
    config.write_text("search: ngram_beam\nlm_weight: 3\n")
    for text in decode(root, tmp_path / "heavy", *more).values():
        assert text[0] == "a" and text[-1] == "b"


def test_batches_hold_all_lines_the_widest_first_and_alone() -> None:
    columns = {f"l{number}": 10 + number for number in range(9)} | {"wide": 16_000}
    found = list(batches(columns, 4))
    assert [len(batch) for batch in found] == [1, 4, 4, 1]
    widths = [columns[name] for batch in found for name in batch]
    assert widths == sorted(columns.values(), reverse=True)


def test_a_vgg_rnn_on_arks_decodes_in_stock_espnet(root: Path, tmp_path: Path) -> None:
    options = arguments(root, tmp_path / "exp", "--max_epoch", "1", *MORE)
    options = [
        option
        for key, option in zip(["", *options], options, strict=False)
        if "--encoder_conf" not in (key, option)
    ]
    vgg = ["--encoder", "vgg_rnn", "--line_augmentation", "true"]
    for value in ("num_layers=1", "hidden_size=8", "output_size=8"):
        vgg += ["--encoder_conf", value]
    DistoptOCRTask.main(cmd=[*options, *vgg])
    model = tmp_path / "exp" / "1epoch.pth"
    theirs = decoded_by_espnet(root, model, tmp_path / "stock")
    ours = LineRecognizer(model.with_name("config.yaml"), model, Decoding()).recognize(
        root / "test" / "feats.scp", "kaldi_ark", dict.fromkeys(theirs, 8)
    )
    lines = read_table(root / "test" / "text", str)
    assert theirs.keys() == ours.texts.keys() == lines.keys()


def test_espnets_inference_does_not_see_the_shortcut(
    root: Path, tmp_path: Path
) -> None:
    shortcut = ["--encoder_conf", "shortcut=true", "--max_epoch", "1"]
    shortcut += ["--model_conf", "interctc_weight=0.1"]
    DistoptOCRTask.main(cmd=arguments(root, tmp_path / "exp", *shortcut, *MORE))
    decoded = decoded_by_espnet(root, tmp_path / "exp/1epoch.pth", tmp_path / "stock")
    assert decoded.keys() == read_table(root / "test" / "text", str).keys()
    results = [path.name for path in (tmp_path / "stock" / "1best_recog").iterdir()]
    assert not [name for name in results if "interctc" in name]


def decoded_by_espnet(root: Path, model: Path, out: Path) -> dict[str, str]:
    """Return what ESPnet's own asr_inference makes of the test lines."""
    from espnet2.bin.asr_inference import inference

    scp = str(root / "test" / "feats.scp")
    options = stock_options() | {
        "output_dir": str(out),
        "data_path_and_name_and_type": [(scp, "speech", "kaldi_ark")],
        "asr_train_config": str(model.with_name("config.yaml")),
        "asr_model_file": str(model),
        "beam_size": 5,
        "ctc_weight": 1.0,
    }
    inference(**options)
    return read_table(out / "1best_recog" / "text", str)


def stock_options() -> dict[str, object]:
    from espnet2.bin.asr_inference import get_parser

    args = get_parser().parse_args(
        ["--output_dir", "x", "--data_path_and_name_and_type", "x,speech,kaldi_ark"]
    )
    options = vars(args)
    del options["config"]
    return {**options, "num_workers": 0, "log_level": "ERROR"}


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        (["--exp", "nowhere"], "nowhere/config.yaml: no such file"),
        (["--model", "x.pth"], "x.pth: no such file"),
        (["--data", "nowhere"], "nowhere/utt2num_frames: no such file"),
        (["--job", "4", "--nj", "3"], "--job 4: expected a number from 1 to 3"),
        (["--config", "{tmp}/beam.yaml"], "beam.yaml: beam_size must be >= 1, not 0"),
        (
            ["--config", "{tmp}/search.yaml"],
            "search must be one of greedy, prefix_beam, ngram_beam",
        ),
        (["--lm", "nowhere"], "a language model needs search: prefix_beam"),
        (["--config", "{tmp}/lm.yaml", "--lm", "nowhere"], "nowhere: not a language"),
        (["--ngram_file", "nowhere"], "search: ngram_beam needs an n-gram, and the re"),
        (["--config", "{tmp}/ngram.yaml"], "ngram_beam needs an n-gram"),
        (["--config", "{tmp}/ngram.yaml", "--ngram_file", "nowhere"], "nowhere: no"),
        (["--data", "{tmp}/high"], "lines are 17 pixels high, but input_size is 16"),
        (["--data", "{tmp}/empty"], "neither feats.scp nor images.scp"),
        (["--data", "{tmp}/other"], "images.scp:1: pen-9 is not in "),
        (["--model", "text.pth"], "text.pth: not a model of"),
    ],
)
def test_bad_input(
    root: Path, tmp_path: Path, refused: Refused, more: list[str], expected: str
) -> None:
    write_bad_input(tmp_path)
    (root / "exp" / "text.pth").write_text("no model")
    out = tmp_path / "out"
    out.mkdir()
    (out / "text").write_text("an earlier one")
    options = (option.format(tmp=tmp_path) for option in more)
    assert expected in refused(decode, root, out, *options)
    assert list(out.iterdir()) == []


def write_bad_input(folder: Path) -> None:
    (folder / "beam.yaml").write_text("beam_size: 0\n")
    (folder / "search.yaml").write_text("search: best\n")
    (folder / "lm.yaml").write_text("search: prefix_beam\n")
    (folder / "ngram.yaml").write_text("search: ngram_beam\n")
    from espnet_distopt.recipes.corpora.kaldi.arks import MatrixArkWriter

    for name in ("high", "empty", "other"):
        (folder / name).mkdir()
        (folder / name / "utt2num_frames").write_text("pen-1 20\n")
    with MatrixArkWriter(folder / "high.ark") as ark:
        ark["pen-1"] = np.eye(20, HEIGHT + 1, dtype=np.float32)
    (folder / "high" / "feats.scp").write_text(f"pen-1 {ark.locations['pen-1']}\n")
    (folder / "other" / "images.scp").write_text("pen-9 a.png\n")

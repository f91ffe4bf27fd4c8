"""Lines as ESPnet trains on them: data type, augmentation, every algorithm."""

from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from espnet2.train.dataset import ESPnetDataset
from PIL import Image
from torch.optim import Adam

from espnet_distopt.algorithms import ALGORITHMS
from espnet_distopt.errors import InputError
from espnet_distopt.espnet.training.simulated import EspnetProblem
from espnet_distopt.files.tables import read_table
from espnet_distopt.recipes.models.ocr.data import line_images
from espnet_distopt.recipes.models.ocr.task import DistoptOCRTask
from espnet_distopt.simulation import Compute, Simulation, VirtualLearner
from tests.espnet.training.learners import read, train
from tests.recipes.models.ocr.toy import HEIGHT, arguments, write_toy_lines

IMAGES = f"line_image_{HEIGHT}"
AUGMENTED = ("--line_augmentation", "true")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("lines")
    write_toy_lines(root)
    return root


def weights(path: Path) -> dict[str, torch.Tensor]:
    return torch.load(path, weights_only=True)


def assert_same(one: Path, other: Path) -> None:
    left, right = weights(one), weights(other)
    assert left.keys() == right.keys()
    for name, tensor in left.items():
        assert torch.equal(tensor, right[name]), name


def test_images_are_the_lines_of_the_arks(data: Path) -> None:
    folder = data / "train"
    images = ESPnetDataset([(str(folder / "images.scp"), "speech", IMAGES)])
    arks = ESPnetDataset([(str(folder / "feats.scp"), "speech", "kaldi_ark")])
    names = list(images)
    assert names == list(arks) == list(read_table(folder / "text", str))
    for name in names:
        one, other = images[name][1]["speech"], arks[name][1]["speech"]
        assert one.dtype == other.dtype == np.float32
        np.testing.assert_allclose(one, other, rtol=0, atol=0.5 / 255 + 1e-6)


@pytest.mark.parametrize(
    ("kind", "options", "rows"),
    [(IMAGES, ["--line_least_rows", "64"], 64), (f"{IMAGES}_64", [], 0)],
)
def test_images_scaled_otherwise_than_decoding_will_are_refused(
    kind: str, options: list[str], rows: int, data: Path, tmp_path: Path
) -> None:
    command = [*arguments(data, tmp_path, kind=kind), *options]
    args = DistoptOCRTask.get_parser().parse_args(command)
    need = line_images(HEIGHT, rows)
    message = rf"images\.scp: its type is {kind}, and .* need {need}$"
    with pytest.raises(InputError, match=message):
        DistoptOCRTask.build_model(args)


def test_images_with_few_rows_are_padded(data: Path) -> None:
    scp = str(data / "train" / "images.scp")
    plain = ESPnetDataset([(scp, "speech", IMAGES)])
    padded = ESPnetDataset([(scp, "speech", line_images(HEIGHT, 2 * HEIGHT))])
    name = next(iter(plain))
    one, other = plain[name][1]["speech"], padded[name][1]["speech"]
    assert other.shape == (len(one) // 2, HEIGHT)
    assert other.any() and not other[:, : HEIGHT // 4].any()


def test_a_shortcut_is_trained_beside_the_blstm(data: Path, tmp_path: Path) -> None:
    options = ["--encoder_conf", "shortcut=true", "--distopt", "allreduce"]
    options += ["--model_conf", "interctc_weight=0.25", "--max_epoch", "1"]
    DistoptOCRTask.main(cmd=arguments(data, tmp_path, *options))
    found = torch.load(tmp_path / "checkpoint.pth", weights_only=False)["reporter"]
    train, valid = (found["stats"][1][name] for name in ("train", "valid"))
    total = 0.75 * train["loss_ctc"] + 0.25 * train["loss_interctc_layer0"]
    assert total == pytest.approx(train["loss"], rel=1e-4)
    # The model is chosen by the loss of what decodes.
    assert "loss_interctc_layer0" not in valid and valid["loss"] == valid["loss_ctc"]
    assert "encoder.shortcut.weight" in weights(tmp_path / "1epoch.pth")


@pytest.mark.parametrize(
    "kind",
    ["line_image", "line_image_", "line_image_x", "line_image_0", "line_image_8_x"],
)
def test_a_data_type_without_a_height(data: Path, kind: str) -> None:
    with pytest.raises(InputError, match="expected line_image_HEIGHT"):
        ESPnetDataset([(str(data / "train" / "images.scp"), "speech", kind)])


def test_an_image_that_is_gone_is_named(data: Path, tmp_path: Path) -> None:
    scp = tmp_path / "images.scp"
    scp.write_text(f"pen-1 {tmp_path}/gone.png\n")
    with pytest.raises(InputError, match=r"gone\.png: no such file"):
        ESPnetDataset([(str(scp), "speech", IMAGES)])["pen-1"]


def test_a_line_that_is_too_narrow_ends_the_training(
    data: Path, tmp_path: Path
) -> None:
    path = tmp_path / "narrow.png"
    Image.new("L", (1, 64)).save(path)
    scp = tmp_path / "images.scp"
    scp.write_text(f"pen-1 {path}\n")
    with pytest.raises(InputError, match="too narrow: 0 columns"):
        ESPnetDataset([(str(scp), "speech", IMAGES)])["pen-1"]


def preprocessed(data: Path, train: bool, *options: str) -> list[np.ndarray]:
    args = DistoptOCRTask.get_parser().parse_args(arguments(data, data, *options))
    preprocess = DistoptOCRTask.build_preprocess_fn(args, train)
    line = np.zeros((40, HEIGHT), np.float32)
    line[::5] = 1
    results = []
    for _ in range(6):
        result = preprocess("pen-1", {"speech": line, "text": "ab a"})
        assert result["text"].tolist() == [3, 4, 2, 3]
        results.append(result["speech"])
    return [r for r in results if not np.array_equal(r, line)]


def test_only_the_training_set_is_augmented(data: Path) -> None:
    np.random.seed(0)
    assert preprocessed(data, True, *AUGMENTED)
    assert not preprocessed(data, False, *AUGMENTED)
    assert not preprocessed(data, True)
    none = [
        option
        for name in ("slant", "stretch", "elastic", "noise")
        for option in ("--line_augmentation_conf", f"{name}=0")
    ]
    assert not preprocessed(data, True, *AUGMENTED, *none)


def test_no_line_becomes_too_narrow_for_its_text(data: Path) -> None:
    squeezed = (*AUGMENTED, "--line_augmentation_conf", "stretch=0.5")
    args = DistoptOCRTask.get_parser().parse_args(arguments(data, data, *squeezed))
    preprocess = DistoptOCRTask.build_preprocess_fn(args, True)
    line = np.zeros((24, HEIGHT), np.float32)
    np.random.seed(0)
    for text, narrow in (("abbca", False), ("abca", True)):
        lines = [preprocess("pen-1", {"speech": line, "text": text}) for _ in range(30)]
        # A frame is four columns, and there is one more between two equal letters.
        assert any(len(each["speech"]) < 24 for each in lines) == narrow


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
def test_every_algorithm_trains_it(algorithm: str, data: Path) -> None:
    problem = EspnetProblem(arguments(data, data), 2, task=DistoptOCRTask)
    options = {"per_node": 2} if algorithm == "hadpsgd" else {}
    learners = []
    for rank in range(4):
        model, gradient = problem.replica(rank, 4)
        optimizer = Adam(model.parameters(), lr=0.02)
        learners.append(
            VirtualLearner(model, optimizer, gradient, algorithm, rank, 4, **options)
        )
    before = problem.held_out_loss(learners[0].model)
    simulation = Simulation(learners, Compute(spread=0.5))
    simulation.start()
    simulation.epoch(12)
    for learner in learners:
        assert problem.held_out_loss(learner.model) < 0.7 * before


@pytest.mark.parametrize("algorithm", ["bmuf_adam", "adpsgd"])
def test_two_learners_train_on_images(
    algorithm: str, data: Path, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    options = arguments(data, tmp_path / "exp", *AUGMENTED, kind=IMAGES)
    options += ["--distopt", algorithm, "--max_epoch", "1"]
    codes = train(options, 2, tmp_path / "meet", log, task=DistoptOCRTask)
    assert codes == [0, 0], read(log)
    saved = weights(tmp_path / "exp" / "1epoch.pth")
    assert all(tensor.isfinite().all() for tensor in saved.values())
    assert "encoder.cnn.0.norm.running_mean" in saved


def test_a_resumed_training_draws_the_same_augmentation(
    data: Path, tmp_path: Path
) -> None:
    for name, epochs in (("whole", "2"), ("parts", "1"), ("parts", "2")):
        more = (*AUGMENTED, "--distopt", "allreduce", "--max_epoch", epochs)
        DistoptOCRTask.main(cmd=arguments(data, tmp_path / name, *more))
    assert_same(tmp_path / "whole" / "2epoch.pth", tmp_path / "parts" / "2epoch.pth")


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        (["--input_size", "none"], "input_size: expected the height"),
        (
            ["--encoder_conf", "depth=3"],
            "encoder_conf has depth, which encoder: ",
        ),
        (["--encoder_conf", "shortcut=true"], "shortcut needs model_conf: interctc_"),
        (["--model_conf", "interctc_weight=0.1"], "interctc_weight .* and the reverse"),
        (
            [*AUGMENTED, "--line_augmentation_conf", "slnt=1"],
            "line_augmentation_conf: unknown option 'slnt'; did you mean slant.*=0.3",
        ),
        (["--input_size", "9"], "the lines are 16 pixels high, but input_size is 9"),
        (["--distopt", "nonsense"], "nonsense"),
    ],
)
def test_bad_input(data: Path, tmp_path: Path, more: list[str], expected: str) -> None:
    with pytest.raises(InputError, match=expected):
        DistoptOCRTask.main(cmd=arguments(data, tmp_path, *more))


@pytest.mark.parametrize("name", ["cnn_blstm", "cnn_blstm_small"])
def test_the_shared_configurations(name: str, data: Path) -> None:
    path = Path(__file__).parents[4] / "conf" / f"{name}.yaml"
    options = ["--config", str(path), "--token_list", str(data / "tokens.txt")]
    args = DistoptOCRTask.get_parser().parse_args([*options, "--token_type", "char"])
    content = yaml.safe_load(path.read_text())
    assert {key: vars(args)[key] for key in content} == content
    assert DistoptOCRTask.build_preprocess_fn(args, True) is not None
    model = DistoptOCRTask.build_model(args).eval()
    lines = torch.rand(2, 50, args.input_size)
    _, lengths = model.encode(lines, torch.tensor([50, 41]))
    assert lengths.tolist() == [13, 11]

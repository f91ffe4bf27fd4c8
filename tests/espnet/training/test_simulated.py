"""An ESPnet model in simulation, beside ESPnet's own figures."""

import shlex
from pathlib import Path

import pytest
import torch
from torch.optim import SGD

from espnet_distopt.bin import simulate
from espnet_distopt.errors import InputError
from espnet_distopt.espnet.training.simulated import EspnetProblem
from espnet_distopt.espnet.training.tasks import DistoptASRTask
from espnet_distopt.simulation import Compute, Simulation, VirtualLearner
from tests.espnet.toy import arguments

FLOAT64 = ("--train_dtype", "float64")


def problem(data: Path, *more: str, batch_size: int = 2) -> EspnetProblem:
    return EspnetProblem(arguments(data, data / "exp", *more), batch_size)


def trained(
    problem: EspnetProblem, algorithm: str, size: int, steps: int = 8
) -> Simulation:
    learners = []
    for rank in range(size):
        model, gradient = problem.replica(rank, size)
        optimizer = SGD(model.parameters(), lr=0.02, momentum=0.9)
        own = model, optimizer, gradient, algorithm, rank, size
        learners.append(VirtualLearner(*own))
    simulation = Simulation(learners, Compute(spread=0.5))
    simulation.start()
    simulation.epoch(steps)
    return simulation


def test_two_learners_under_allreduce_are_one_with_the_whole_batch(data: Path) -> None:
    one = trained(problem(data, *FLOAT64, batch_size=6), "allreduce", 1)
    two = trained(problem(data, *FLOAT64, batch_size=3), "allreduce", 2)
    torch.testing.assert_close(two.consensus(), one.consensus(), rtol=1e-9, atol=1e-11)
    losses = [0.0] * 8
    for step in two.record:
        losses[step.step - 1] += step.loss / 2
    # ESPnet's losses are float32.
    assert losses == pytest.approx([step.loss for step in one.record], rel=1e-6)


def test_the_config_of_an_experiment_says_it_all(data: Path, tmp_path: Path) -> None:
    exp = tmp_path / "exp"
    DistoptASRTask.main(cmd=arguments(data, exp, "--max_epoch", "1"))
    again = EspnetProblem(["--config", str(exp / "config.yaml")], batch_size=2)
    first = problem(data)
    assert again.describe() == first.describe()
    (ours, gradient), (theirs, other) = again.replica(0, 1), first.replica(0, 1)
    assert gradient(0) == other(0)
    for mine, plain in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(mine, plain)


def test_one_step_is_that_of_the_whole_model(data: Path) -> None:
    """A frontend whose features are computed once gives the same gradient."""
    cut = problem(data, *FLOAT64, batch_size=1)
    model, gradient = cut.replica(0, 1)
    loss = gradient(0)
    cut_gradients = [p.grad for p in model.parameters()]
    args = DistoptASRTask.get_parser().parse_args(arguments(data, data, *FLOAT64))
    torch.manual_seed(args.seed)
    whole = DistoptASRTask.build_model(args).double().train()
    assert whole.frontend is not None
    assert model.frontend is None
    for part, ours in zip(whole.parameters(), model.parameters(), strict=True):
        assert torch.equal(part, ours)  # the same seed, the same initial parameters
    iterator = DistoptASRTask.build_streaming_iterator(
        args.train_data_path_and_name_and_type,
        preprocess_fn=DistoptASRTask.build_preprocess_fn(args, True),
        collate_fn=DistoptASRTask.build_collate_fn(args, True),
        batch_size=1,
        dtype="float64",
    )
    distances = []
    for _, batch in iterator:
        whole.zero_grad()
        other, *_ = whole(**batch)
        other.backward()
        pairs = zip(whole.parameters(), cut_gradients, strict=True)
        distances.append(
            abs(float(other.detach()) - loss)
            + sum(float((p.grad - g).abs().sum()) for p, g in pairs)
        )
    assert min(distances) < 1e-10  # one utterance is the one that was drawn
    assert sorted(distances)[1] > 1e-3


@pytest.mark.parametrize("algorithm", ["allreduce", "adpsgd", "bmuf"])
def test_training_is_a_pure_function_of_the_seed(data: Path, algorithm: str) -> None:
    dropout = ("--encoder_conf", "dropout=0.3", "--encoder_conf", "num_layers=2")
    runs = [trained(problem(data, *dropout), algorithm, 4) for _ in range(2)]
    assert runs[0].record == runs[1].record
    assert torch.equal(runs[0].consensus(), runs[1].consensus())
    other = trained(problem(data, *dropout, "--seed", "1"), algorithm, 4)
    assert not torch.equal(runs[0].consensus(), other.consensus())


def test_training_lowers_the_held_out_loss(data: Path) -> None:
    toy = problem(data, batch_size=6)
    simulation = trained(toy, "adpsgd", 4, steps=30)
    model, _ = toy.replica(0, 1)
    before = toy.held_out_loss(model)
    vector = simulation.consensus()
    torch.nn.utils.vector_to_parameters(vector, model.parameters())
    assert model.training
    assert toy.held_out_loss(model) < 0.7 * before


def test_held_out_loss_is_espnets_own(data: Path, tmp_path: Path) -> None:
    """ESPnet's features depend on the padding of a batch: so batches of one there."""
    more = ("--max_epoch", "1", "--valid_batch_size", "1")
    DistoptASRTask.main(cmd=arguments(data, tmp_path, *more))
    checkpoint = torch.load(tmp_path / "checkpoint.pth", weights_only=False)
    theirs = checkpoint["reporter"]["stats"][1]["valid"]["loss"]
    toy = problem(data)
    model, _ = toy.replica(0, 1)
    weights = torch.load(tmp_path / "1epoch.pth", weights_only=True)
    model.load_state_dict(weights, strict=False)
    assert toy.held_out_loss(model) == pytest.approx(theirs, rel=1e-5)


def test_every_pass_has_every_utterance_once(data: Path) -> None:
    toy = problem(data, batch_size=3)
    seen: list[str] = []
    collate = toy._collate

    def watch(utterances: list[tuple[str, dict[str, torch.Tensor]]]) -> object:
        seen.extend(name for name, _ in utterances)
        return collate(utterances)

    toy._collate = watch
    gradients = [toy.replica(rank, 4)[1] for rank in range(4)]
    for step in range(4):
        for gradient in gradients:
            gradient(step)
    first, second = seen[:24], seen[24:]
    assert len(set(first)) == len(set(second)) == toy.samples == 24
    assert first != second


def test_describe_says_what_it_is(data: Path) -> None:
    text = problem(data).describe()
    model, _ = problem(data).replica(0, 1)
    count = sum(p.numel() for p in model.parameters())
    assert f"{count:,} parameters" in text
    assert "24 utterances, 8 held out, features computed once, seed 0" in text


def test_bad_input(data: Path) -> None:
    some = ["--train_data_path_and_name_and_type", "a,speech,sound"]
    with pytest.raises(InputError, match="lack --train_data_path_and_name_and_type"):
        EspnetProblem([])
    with pytest.raises(InputError, match="lack --token_list"):
        EspnetProblem(some)
    with pytest.raises(InputError, match="init_param"):
        problem(data, "--init_param", "some.pth")
    with pytest.raises(InputError, match="batch size must be >= 1, not 0"):
        problem(data, batch_size=0).replica(0, 1)


def test_data_that_is_elsewhere_is_named(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A recipe's paths are relative, and the command may be started elsewhere."""
    lost = "dump/train/wav.scp,speech,sound"
    words = arguments(data, data / "exp")
    at = words.index("--train_data_path_and_name_and_type") + 1
    config = tmp_path / "train.yaml"
    config.write_text("num_workers: 0\n")
    further = shlex.join([*words[:at], lost, *words[at + 1 :]])
    command = ["--config", str(config), f"--train_args={further}"]
    with pytest.raises(SystemExit) as end:
        simulate.main(command)
    assert end.value.code == 2
    error = capsys.readouterr().err.splitlines()[-1]  # ESPnet may warn before.
    assert error.startswith(f"error: {config} names dump/train/wav.scp, which is not")

"""What this package relies on in ESPnet; fails first when a version moves a seam."""

import dataclasses
import inspect
from pathlib import Path

import pytest
import yaml
from espnet2.iterators.sequence_iter_factory import SequenceIterFactory
from espnet2.tasks.abs_task import AbsTask, IteratorOptions
from espnet2.tasks.asr import ASRTask
from espnet2.train.dataset import ESPnetDataset
from espnet2.train.distributed_utils import DistributedOption
from espnet2.train.reporter import SubReporter
from espnet2.train.trainer import Trainer, TrainerOptions

from espnet_distopt.espnet.training.run import DistoptOptions
from espnet_distopt.espnet.training.tasks import DistoptASRTask

ROOT = Path(__file__).resolve().parents[3]


def parameters(function: object) -> set[str]:
    return set(inspect.signature(function).parameters)  # type: ignore[arg-type]


def test_the_trainer_is_replaceable() -> None:
    assert AbsTask.trainer is Trainer
    assert ASRTask.trainer is Trainer  # ours is a subclass, nothing is patched
    assert DistoptASRTask.trainer is not Trainer


def test_signatures() -> None:
    both = {"model", "iterator", "reporter", "options", "distributed_option"}
    more = {"optimizers", "schedulers", "scaler", "summary_writer"}
    assert parameters(Trainer.train_one_epoch) == both | more
    assert parameters(Trainer.validate_one_epoch) == both
    of_run = {"model", "optimizers", "trainer_options", "distributed_option"}
    assert of_run <= parameters(Trainer.run)
    of_resume = {"checkpoint", "model", "reporter", "optimizers"}
    assert of_resume <= parameters(Trainer.resume)
    assert "dataset" in parameters(AbsTask.check_task_requirements)


def test_data_sets_say_what_they_read() -> None:
    source = inspect.getsource(ESPnetDataset)
    assert "self.loader_dict[name] = loader" in source
    assert "self.debug_info[name] = path, _type" in source


def test_fields() -> None:
    names = {field.name for field in dataclasses.fields(TrainerOptions)}
    assert {"output_dir", "max_epoch", "seed", "accum_grad"} <= names
    assert names < {field.name for field in dataclasses.fields(DistoptOptions)}
    names = {field.name for field in dataclasses.fields(IteratorOptions)}
    assert "distributed" in names
    names = {field.name for field in dataclasses.fields(DistributedOption)}
    assert {"distributed", "dist_rank"} <= names


def test_batches_are_made_whole_and_then_cut() -> None:
    build = AbsTask.build_sequence_iter_factory
    assert {"args", "iter_options", "mode"} == parameters(build)
    source = inspect.getsource(build)
    assert "batch[rank::world_size]" in source
    assert "else args.min_batch_size" in source
    factory = SequenceIterFactory([], [["a", "b"], ["c"]], shuffle=True)
    assert list(factory.sampler) == [["a", "b"], ["c"]]
    assert sorted(factory.build_iter(1).batch_sampler) == [["a", "b"], ["c"]]


def test_the_loop_reads_the_iterator_and_reports_per_step() -> None:
    source = inspect.getsource(Trainer.train_one_epoch)
    assert "reporter.measure_iter_time(iterator" in source
    assert hasattr(SubReporter, "get_epoch")


def test_children_can_import_the_task() -> None:
    import pickle

    assert pickle.loads(pickle.dumps(DistoptASRTask)) is DistoptASRTask


def test_stock_espnet_rejects_our_keys(tmp_path: Path) -> None:
    # the reason why the recipes use our entry point for statistics, too
    config = tmp_path / "train.yaml"
    config.write_text("distopt: adpsgd\n")
    with pytest.raises(SystemExit):
        ASRTask.get_parser().parse_args(["--config", str(config)])
    args = DistoptASRTask.get_parser().parse_args(["--config", str(config)])
    assert args.distopt == "adpsgd"


@pytest.mark.parametrize(
    "path", sorted(ROOT.glob("conf/blstm*.yaml")), ids=lambda p: p.name
)
def test_every_training_config_parses(path: Path) -> None:
    args = DistoptASRTask.get_parser().parse_args(["--config", str(path)])
    assert args.encoder == "rnn"
    assert set(yaml.safe_load(path.read_text())) <= set(vars(args))


def test_text_lines_have_a_config_for_every_algorithm() -> None:
    """A recipe takes a missing one for the defaults."""
    speech, lines = (
        {path.name for path in (ROOT / "conf" / folder).iterdir()}
        for folder in ("distopt", "distopt_ocr")
    )
    assert speech == lines


@pytest.mark.parametrize(
    "path",
    sorted(ROOT.glob("conf/distopt*/*.yaml")),
    ids=lambda p: f"{p.parent.name}-{p.stem}",
)
def test_every_algorithm_config_is_valid(path: Path) -> None:
    from espnet_distopt.recipes.commands import check

    assert yaml.safe_load(path.read_text())["distopt"] == path.stem
    check.main(["--distopt_config", str(path), "--nlearners", "4"])

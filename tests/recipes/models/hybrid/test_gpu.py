"""Trainings of a hybrid system's model on a GPU, captured and eager."""

from pathlib import Path

import pytest
import torch

from espnet_distopt.recipes.models.hybrid.task import DistoptHybridTask, HybridTask
from tests.espnet.training.learners import Sharing, read, train
from tests.recipes.models.hybrid.toy import arguments, write_toy_frames

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="this machine has no GPU"
)


@pytest.mark.parametrize(
    ("algorithm", "learners"), [("none", 1), ("allreduce", 2), ("bmuf", 2)]
)
@pytest.mark.parametrize("mixed", [False, True])
def test_a_captured_training_gives_the_eager_model(
    mixed: bool, algorithm: str, learners: int, tmp_path: Path
) -> None:
    write_toy_frames(tmp_path)
    models = []
    for capture in (True, False):
        exp, log = tmp_path / f"exp_{capture}", tmp_path / f"log_{capture}"
        options = ["--ngpu", "1", "--local_rank", "0", "--distopt", algorithm]
        options += ["--optim", "sgd", "--optim_conf", "lr=0.5"]
        options += ["--dist_backend", "gloo", "--use_amp", str(mixed).lower()]
        options += ["--capture_steps", str(capture).lower()]
        options += [] if capture else ["--frames_in_memory", "0"]
        meet = tmp_path / f"meet_{capture}"
        codes = train(
            arguments(tmp_path, exp, *options),
            learners,
            meet,
            log,
            Sharing(),
            task=DistoptHybridTask,
        )
        assert codes == [0] * learners, read(log)
        assert ("steps are captured" in read(log)) is capture, read(log)
        assert ("held in memory (cuda)" in read(log)) is capture, read(log)
        models.append(torch.load(exp / "2epoch.pth", map_location="cpu"))
    for name, tensor in models[0].items():
        tolerance = 5e-2 if mixed else 1e-4
        torch.testing.assert_close(tensor, models[1][name], rtol=0, atol=tolerance)


def test_chunks_of_a_model_are_what_its_encoder_packs(tmp_path: Path) -> None:
    write_toy_frames(tmp_path)
    args = HybridTask.get_parser().parse_args(arguments(tmp_path, tmp_path / "exp"))
    model = HybridTask.build_model(args).cuda().train()
    x = torch.randn(5, 7, 8).cuda()
    states = torch.randint(6, (5, 7)).cuda()
    lengths = torch.full((5,), 7).cuda()
    loss, stats, _ = model(x, lengths, states, lengths)
    model.captured = None
    other, others, _ = model(x, lengths, states, lengths)
    torch.testing.assert_close(loss, other, rtol=1e-5, atol=1e-6)
    assert float(stats["acc"]) == float(others["acc"])

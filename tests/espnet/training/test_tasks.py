"""Which of ESPnet's tasks can be trained by `DistoptTrainer`."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from espnet2.tasks.enh import EnhancementTask
from espnet2.tasks.lid import LIDTask
from espnet2.tasks.spk import SpeakerTask
from espnet2.tasks.st import STTask

from espnet_distopt.errors import InputError
from espnet_distopt.espnet.training import tasks
from espnet_distopt.espnet.training.tasks import DistoptLMTask, distopt_task
from tests.espnet.toy import arguments
from tests.espnet.training.learners import trained


@pytest.mark.parametrize("task", [SpeakerTask, LIDTask])
def test_a_task_with_a_trainer_of_its_own_is_refused(task: type) -> None:
    with pytest.raises(InputError, match=f"{task.__name__} trains by a .*Trainer of"):
        distopt_task(task, "Refused", __name__)


def test_the_tasks_of_espnet_by_name() -> None:
    found = []
    for name in tasks.names_of_tasks():
        try:
            assert getattr(tasks, name) is tasks.task(name)
            found.append(name)
        except InputError as error:
            others = "trains by a|cannot be imported: No module named"
            assert re.search(others, str(error))
    assert {"asr", "diar", "enh", "mt", "s2t", "slu", "st"} <= set(found)
    assert not {"gan_codec", "lid", "spk", "uasr"} & set(found)
    assert tasks.task("lm") is DistoptLMTask
    with pytest.raises(InputError, match=r"no task tss: expected asr, .*, uasr"):
        tasks.task("tss")
    assert not hasattr(tasks, "tss")


def test_two_learners_translate(data: Path, tmp_path: Path) -> None:
    model = {
        "encoder": "rnn",
        "encoder_conf": "num_layers=1 hidden_size=6 output_size=8 use_projection=false",
        "decoder": "transformer",
        "decoder_conf": "attention_heads=2 linear_units=8 num_blocks=1",
        "model_conf": "asr_weight=0.0 mt_weight=0.0",
    }
    options = arguments(data, tmp_path / "exp", "--distopt", "adpsgd", model=model)
    options += ["--src_token_list", str(data / "tokens.txt")]
    options += ["--src_token_type", "word"]
    launch = ["-m", "espnet_distopt.bin.launch", "--nproc", "2"]
    train = ["-m", "espnet_distopt.bin.espnet_train", "st"]
    done = subprocess.run(
        [sys.executable, *launch, *train, *options],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "consensus_distance=" in done.stderr
    STTask.build_model_from_file(
        tmp_path / "exp/config.yaml", tmp_path / "exp/2epoch.pth"
    )


def test_two_learners_enhance_speech(data: Path, tmp_path: Path) -> None:
    exp = tmp_path / "exp"
    options = ["--distopt", "adpsgd", "--ngpu", "0", "--output_dir", str(exp)]
    for name in ("train", "valid"):
        for kind in ("speech_mix", "speech_ref1"):
            key = f"--{name}_data_path_and_name_and_type"
            options += [key, f"{data}/{name}/wav.scp,{kind},kaldi_ark"]
        options += [f"--{name}_shape_file", f"{data}/{name}/shape"]
    options += ["--num_spk", "1", "--batch_type", "sorted", "--batch_size", "4"]
    for part in ("encoder", "decoder"):
        for size in ("n_fft=64", "hop_length=32"):
            options += [f"--{part}_conf", size]
    small = ("num_spk=1", "layer=1", "unit=4", "rnn_type=blstm", "nonlinear=relu")
    for each in small:
        options += ["--separator_conf", each]
    options += ["--max_epoch", "2", "--num_workers", "0", "--use_tensorboard", "false"]
    # The class is pickled on its way to the learners.
    trained(options, 2, tmp_path, task=tasks.task("enh"))
    saved = exp / "config.yaml", exp / "2epoch.pth"
    model, _ = EnhancementTask.build_model_from_file(*saved)
    assert all(each.isfinite().all() for each in model.state_dict().values())

"""Which of ESPnet's tasks can be trained by `DistoptTrainer`."""

import pytest
from espnet2.tasks.lid import LIDTask
from espnet2.tasks.lm import LMTask
from espnet2.tasks.spk import SpeakerTask

from espnet_distopt.errors import InputError
from espnet_distopt.espnet.training.tasks import distopt_task


@pytest.mark.parametrize("task", [SpeakerTask, LIDTask])
def test_a_task_with_a_trainer_of_its_own_is_refused(task: type) -> None:
    with pytest.raises(InputError, match=f"{task.__name__} trains by a .*Trainer of"):
        distopt_task(task, "Refused", __name__)


def test_a_task_with_the_common_trainer_is_taken() -> None:
    assert issubclass(distopt_task(LMTask, "Taken", __name__), LMTask)

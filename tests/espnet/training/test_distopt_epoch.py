"""What the learners agree on at the end of an epoch."""

import pytest

from espnet_distopt.espnet.training.distopt_epoch import nobody_stepped


@pytest.mark.parametrize(
    ("learners", "stops"),
    [
        ([(True, True), (True, True)], False),
        ([(True, False), (True, True)], False),
        ([(True, False), (True, False)], True),
        # The loop of a learner without a batch has had no valid step, either.
        ([(True, False), (False, False)], True),
        ([(True, True), (False, False)], False),
        ([(False, False), (False, False)], False),
    ],
)
def test_a_training_ends_once_no_learner_has_a_valid_step(
    learners: list[tuple[bool, bool]], stops: bool
) -> None:
    """Gradients that are not finite must not go on for ever where data is short."""
    had = sum(trained for trained, _ in learners) / len(learners)
    valid = sum(trained and ok for trained, ok in learners) / len(learners)
    for trained, ok in learners:
        asked: list[float] = []

        def mean(number: float, asked: list[float] = asked) -> float:
            asked.append(number)
            return (had, valid)[len(asked) - 1]

        assert nobody_stepped(mean, trained, ok) == stops
        assert asked == [float(trained), float(trained and ok)][: len(asked)]
        assert len(asked) == (2 if had else 1)

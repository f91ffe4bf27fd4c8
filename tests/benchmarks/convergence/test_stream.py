"""A stream's samples depend on the seed and their numbers alone."""

import numpy as np
import pytest
import torch
from convergence import stream_problems
from convergence.stream_problems import (
    BLOCK,
    FRAMES,
    KEPT,
    MELS,
    Samples,
    Stream,
    Transformed,
)
from torch import Tensor

from tests.benchmarks.convergence.speech import sets

RANGES = {
    name: getattr(stream_problems, name) for name in ("GAIN", "SPEED", "SHIFT", "NOISE")
}


@pytest.fixture(autouse=True)
def _still(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let samples not be transformed, unless a test says otherwise."""
    for name in RANGES:
        monkeypatch.setattr(stream_problems, name, 0.0)


def numbers(rng: np.random.Generator, count: int) -> Samples:
    return (torch.from_numpy(rng.random(count)),)


def read(stream: Stream, first: int, count: int) -> Tensor:
    return stream.read(first, count)[0]


def test_a_sample_depends_on_the_seed_and_its_number_alone() -> None:
    edge = BLOCK - 3
    at_once = read(Stream(numbers, 5), edge, 8)
    stream = Stream(numbers, 5)
    backwards = [read(stream, edge + n, 1) for n in reversed(range(8))]
    assert torch.equal(at_once, torch.cat(backwards[::-1]))
    assert not torch.equal(at_once, read(Stream(numbers, 6), edge, 8))


def test_no_two_blocks_are_alike() -> None:
    found = read(Stream(numbers, 0), 0, 4 * BLOCK)
    assert len(found.unique()) == 4 * BLOCK


def test_a_block_that_was_forgotten_is_drawn_again() -> None:
    stream = Stream(numbers, 0)
    first = read(stream, 0, 9).clone()
    for block in range(1, KEPT + 2):
        read(stream, block * BLOCK, 1)
    assert torch.equal(read(stream, 0, 9), first)


def transformed() -> Transformed:
    return Transformed(sets()["valid"], sets()["train"])


def draw(count: int = 50) -> Samples:
    return transformed().digits(np.random.default_rng(1), count)


def test_without_transformations_a_digit_is_a_normalized_recording() -> None:
    x, digits = draw()
    frames = sets()["train"].log_mels.flatten(0, 1)
    known = (sets()["valid"].log_mels - frames.mean(0)) / frames.std(0)
    for features, digit in zip(x, digits, strict=True):
        same = (known - features).abs().amax((1, 2)) < 1e-5
        assert sets()["valid"].digits[same].tolist() == [int(digit)]


def test_a_gain_adds_the_same_to_all_log_mels(monkeypatch: pytest.MonkeyPatch) -> None:
    known, _ = draw()
    monkeypatch.setattr(stream_problems, "GAIN", 10.0)
    moved, _ = draw()
    scale = sets()["train"].log_mels.flatten(0, 1).std(0)
    # A digit's place in the sequence of random numbers is the same in both.
    added = (moved - known) * scale
    assert torch.allclose(added, added[:, :1, :1].expand_as(added), atol=1e-4)
    levels = added[:, 0, 0]
    assert levels.abs().max() <= np.log(10) < levels.abs().max() * 1.3
    assert levels.min() < 0 < levels.max()


@pytest.mark.parametrize("name", ["SPEED", "SHIFT", "NOISE"])
def test_every_transformation_changes_samples(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    known, same = draw()
    monkeypatch.setattr(stream_problems, name, 0.5)
    x, digits = draw()
    assert torch.equal(digits, same)
    assert (x - known).abs().mean() > 0.05


def test_a_shift_by_a_frame_is_a_shift_by_a_frame() -> None:
    frames = transformed()
    rows = torch.arange(3)[:, None].expand(3, FRAMES)
    rng = np.random.default_rng(0)
    at = torch.arange(FRAMES).float().expand(3, FRAMES)
    level = torch.zeros(3, 1)
    known = frames._frames(rng, rows, at, level)
    late = frames._frames(rng, rows, at + 1, level)
    assert torch.allclose(late[:, :-1], known[:, 1:])
    assert torch.allclose(late[:, -1], known[:, -1])
    half = frames._frames(rng, rows, at + 0.5, level)
    assert torch.allclose(half[:, :-1], (known[:, :-1] + known[:, 1:]) / 2, atol=1e-6)


def test_the_labels_of_a_string_are_its_digits_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in RANGES.items():
        monkeypatch.setattr(stream_problems, name, value)
    x, labels, strings = transformed().strings(
        np.random.default_rng(2), 200, length=3, frames=30
    )
    assert x.shape == (200, 30, MELS)
    for frames, string in zip(labels.tolist(), strings.tolist(), strict=True):
        runs = [d for n, d in enumerate(frames) if n == 0 or d != frames[n - 1]]
        assert runs == [d for n, d in enumerate(string) if n == 0 or d != string[n - 1]]
        assert all(frames.count(digit) >= 5 for digit in string)


def test_without_transformations_a_string_is_its_recordings_one_after_another() -> None:
    frames = 3 * FRAMES
    x, labels, strings = transformed().strings(
        np.random.default_rng(2), 20, length=3, frames=frames
    )
    at_once = sets()["valid"].log_mels
    training = sets()["train"].log_mels.flatten(0, 1)
    known = (at_once - training.mean(0)) / training.std(0)
    assert torch.equal(labels, strings.repeat_interleave(FRAMES, 1))
    for features in x.unflatten(1, (3, FRAMES)).flatten(0, 1):
        assert (known - features).abs().amax((1, 2)).min() < 1e-4

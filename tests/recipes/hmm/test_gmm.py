"""Mixtures against their formulas, and a flat start that finds the phones by itself."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from espnet_distopt.errors import InputError
from espnet_distopt.recipes.hmm.gmm import (
    Aligner,
    FlatStart,
    Mixtures,
    Statistics,
    align_all,
    cepstra,
    even_alignment,
    read_gmm,
    train,
    write_gmm,
)
from tests.recipes.hmm.toy import LEXICON, STATES, phone_segments


def mixtures() -> Mixtures:
    generator = torch.Generator().manual_seed(0)
    return Mixtures(
        torch.randn(3, 2, generator=generator).log_softmax(1),
        torch.randn(3, 2, 4, generator=generator),
        torch.rand(3, 2, 4, generator=generator) + 0.5,
    )


def test_the_likelihood_of_a_mixture_is_that_of_torchs_distributions() -> None:
    x, model = torch.randn(7, 4), mixtures()
    normal = torch.distributions.Normal(model.means, model.variances.sqrt())
    each = normal.log_prob(x[:, None, None]).sum(3) + model.log_weights
    torch.testing.assert_close(model.scores(x), each.logsumexp(2))


def test_an_estimate_never_lowers_the_likelihood() -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(900, 4, generator=generator)
    pdfs = torch.arange(900) % 3
    model, values = mixtures(), []
    for _ in range(6):
        statistics = Statistics(model)
        statistics.add(x, pdfs)
        values.append(statistics.log_likelihood)
        model = statistics.estimate()
    assert values == sorted(values)
    assert values[-1] > values[0] + 100


def test_one_gaussian_gets_the_mean_and_the_variance() -> None:
    x = torch.randn(5000, 2) * torch.tensor([1.0, 3.0]) + 2
    statistics = Statistics(Mixtures.flat(1, 2))
    statistics.add(x, torch.zeros(5000, dtype=torch.long))
    model = statistics.estimate()
    torch.testing.assert_close(model.means[0, 0], x.mean(0))
    torch.testing.assert_close(model.variances[0, 0], x.var(0, unbiased=False))


def test_a_split_keeps_weights_and_means() -> None:
    model = mixtures()
    total = model.log_weights.exp().sum(1)
    mean = (model.log_weights.exp()[:, :, None] * model.means).sum(1)
    model.split()
    torch.testing.assert_close(model.log_weights.exp().sum(1), total)
    again = (model.log_weights.exp()[:, :, None] * model.means).sum(1)
    torch.testing.assert_close(again, mean)


def test_a_component_without_frames_is_switched_off() -> None:
    model = mixtures()
    model.means[0, 1] = 1e4
    statistics = Statistics(model)
    statistics.add(torch.randn(100, 4), torch.zeros(100, dtype=torch.long))
    new = statistics.estimate()
    assert new.log_weights[0].tolist() == [0.0, -math.inf]
    torch.testing.assert_close(new.log_weights[1:], model.log_weights[1:])
    assert torch.isfinite(new.scores(torch.randn(5, 4))).all()


def test_an_even_alignment() -> None:
    pdfs = even_alignment(["oh"], LEXICON, STATES, 18)
    assert pdfs is not None
    assert phone_segments(STATES, pdfs) == [
        ("SIL", 0, 6),
        ("oh", 6, 12),
        ("SIL", 12, 18),
    ]
    assert even_alignment(["oh"], LEXICON, STATES, 8) is None


def speech(rng: np.random.Generator) -> tuple[list[str], list[tuple[str, int]], object]:
    """Return words, their phones with lengths, and features that tell phones apart."""
    words = list(rng.choice(["hi", "oh"], int(rng.integers(2, 5))))
    phones = ["SIL", *(p for word in words for p in LEXICON[word][0]), "SIL"]
    timed = [(phone, int(rng.integers(5, 15))) for phone in phones]
    centres = {phone: 3 * np.eye(4)[n] for n, phone in enumerate(STATES.phones)}
    rows = [
        centres[phone] + (frame / length) * 0.5
        for phone, length in timed
        for frame in range(length)
    ]
    features = np.array(rows) + 0.3 * rng.standard_normal((len(rows), 4))
    return words, timed, features.astype(np.float32)


def test_a_flat_start_finds_the_boundaries_of_phones() -> None:
    rng = np.random.default_rng(0)
    spoken = {f"u{n:02d}": speech(rng) for n in range(40)}
    features = {name: each[2] for name, each in spoken.items()}
    texts = {name: each[0] for name, each in spoken.items()}
    lexicon = {word: LEXICON[word] for word in ("hi", "oh")}
    model, aligner = train(features, texts, lexicon, STATES, FlatStart(8, 1))
    wrong = total = 0
    for name, pdfs in align_all(aligner, model, features, texts).items():
        ends = np.cumsum([length for _, length in spoken[name][1]])
        found = [end for _, _, end in phone_segments(STATES, pdfs)]
        assert len(found) == len(ends)
        wrong += sum(abs(a - b) > 1 for a, b in zip(found, ends, strict=True))
        total += len(ends)
    assert wrong < 0.05 * total


def test_sets_that_share_an_utterance_are_aligned_each_with_its_own_words() -> None:
    mixtures, aligner = Mixtures.flat(len(STATES), 4), Aligner(LEXICON, STATES)
    features = {"a": np.zeros((18, 4), np.float32)}
    for word in ("hi", "oh"):
        found = align_all(aligner, mixtures, features, {"a": [word]})
        phones = [phone for phone, *_ in phone_segments(STATES, found["a"])]
        assert [phone for phone in phones if phone != "SIL"] == [*LEXICON[word][0]]


def test_utterances_that_are_all_too_short() -> None:
    features = {"a": np.zeros((8, 4), np.float32)}
    with pytest.raises(InputError, match="none of 1 utterances has as many frames"):
        train(features, {"a": ["oh"]}, LEXICON, STATES, FlatStart(2, 0))


def test_passes_and_doublings() -> None:
    options = FlatStart(20, 4)
    doubled = [number for number in range(1, 21) if options.doubles_after(number)]
    assert doubled == [4, 8, 12, 16]
    for passes, doublings in ((0, 0), (3, 3), (3, -1)):
        with pytest.raises(InputError, match="fewer doublings than passes"):
            FlatStart(passes, doublings)


def test_a_stored_gmm(tmp_path: Path) -> None:
    path, model = tmp_path / "gmm.npz", mixtures()
    write_gmm(path, model, np.array([0.1, 0.2, 0.3]), ["a", "b", "c"])
    again, stay = read_gmm(path, ["a", "b", "c"])
    assert torch.equal(again.means, model.means)
    assert stay == [0.1, 0.2, 0.3]
    for other in (["a", "c", "b"], ["a", "b", "c", "d"]):
        with pytest.raises(InputError, match="other states than the lexicon"):
            read_gmm(path, other)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(InputError, match="not a trained GMM"):
        read_gmm(path, ["a", "b", "c"])
    with pytest.raises(InputError, match="no such file"):
        read_gmm(tmp_path / "none", ["a", "b", "c"])


def test_cepstra_are_those_of_the_cosine_transform() -> None:
    from scipy.fft import dct

    features = np.random.default_rng(0).standard_normal((5, 120)).astype(np.float32)
    expected = dct(features[:, 40:80], type=2, axis=1)[:, :13] / 2 * np.sqrt(2 / 40)
    np.testing.assert_allclose(
        cepstra(features)[:, 13:26], expected, rtol=1e-4, atol=1e-5
    )
    with pytest.raises(InputError, match="features of 41 dimensions"):
        cepstra(np.zeros((3, 41), np.float32))

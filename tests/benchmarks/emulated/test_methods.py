"""The replica whose computing is emulated."""

import torch
from emulated.methods import LAYERS, Emulated, batch


def test_gradients_are_found_and_not_copied() -> None:
    model = Emulated(LAYERS * 4, seconds=0.0, rank=1)
    model(batch()).backward()
    first = [weight.grad for weight in model.weights]
    values = [grad.clone() for grad in first]
    assert all(grad.abs().sum() > 0 for grad in first)
    model.zero_grad()
    model(batch()).backward()
    for weight, before, value in zip(model.weights, first, values, strict=True):
        assert weight.grad.data_ptr() == before.data_ptr()
        assert torch.equal(weight.grad, value)


def test_learners_have_gradients_of_their_own() -> None:
    models = [Emulated(LAYERS * 4, seconds=0.0, rank=rank) for rank in (0, 1)]
    for model in models:
        model(batch()).backward()
    first, second = (model.weights[0] for model in models)
    assert torch.equal(first, second)
    assert not torch.equal(first.grad, second.grad)

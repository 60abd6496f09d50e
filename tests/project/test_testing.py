"""The public test doubles."""

import numpy as np
import pytest

import becausal
from becausal.api import Request, explain_many
from becausal.core.contracts import AsyncClassifier, Classifier
from becausal.search.minimise import minimise
from becausal.testing import MaskClassifier, run_search

IMAGE = np.zeros((8, 8, 3), np.uint8)


def two_pixels(visible):
    """Sure with both pixels, undecided with one."""
    return 0.1 + 0.4 * visible[:, 1, 2] + 0.4 * visible[:, 6, 6]


def test_it_is_a_classifier_that_explain_takes():
    model = MaskClassifier(two_pixels)
    assert isinstance(model, Classifier)
    explanation = becausal.explain(IMAGE, model, grain=1)
    assert explanation.label == "yes"
    core, enough = explanation.levels
    assert sorted(zip(*np.nonzero(core.visible), strict=True)) == [(1, 2), (6, 6)]
    assert (enough.visible >= core.visible).all()
    assert enough.certificate is not None
    assert enough.certificate.holds
    assert explanation.confidence == pytest.approx(0.9)
    assert sum(model.batches) == len(model.asked) == explanation.calls
    assert max(model.batches) <= model.batch_size


def test_a_function_that_returns_integers_is_a_model_of_labels_only():
    model = MaskClassifier(lambda v: v[:, 3, 3].astype(int), labels=["dog", "cat"])
    explanation = becausal.explain(IMAGE, model, grain=1, smallest=True)
    assert explanation.label == "cat"
    assert np.isnan(explanation.confidence)
    assert explanation.pixels == 1


def test_as_a_device_it_gives_the_same_and_batches_are_padded():
    plain, device = MaskClassifier(two_pixels), MaskClassifier(two_pixels, depth=2, fixed_sizes=(4, 16, 64))
    assert isinstance(device, AsyncClassifier)
    request = Request(grain=1)
    one, other = (list(explain_many([IMAGE] * 3, m, request=request, width=3, workers=0)) for m in (plain, device))
    for a, b in zip(one, other, strict=True):
        assert (a.visible == b.visible).all()
        assert a.calls == b.calls
    assert set(device.batches) <= {4, 16, 64}


def test_a_search_is_answered_by_hand():
    start, saliency = np.ones((8, 8), bool), np.zeros((8, 8))
    minimal, asked = run_search(minimise(start, saliency, finest=1), two_pixels, threshold=0.8)
    assert minimal.visible.sum() == 2
    assert minimal.grain == 1
    assert asked.shape[1:] == (8, 8)
    assert two_pixels(minimal.visible[None])[0] == pytest.approx(0.9)

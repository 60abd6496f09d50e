"""Records over arrays compare by identity, so that `==` and `hash` never fail."""

import numpy as np

import becausal
from becausal.core.contracts import Answers, Finding
from becausal.testing import MaskClassifier


def test_records_over_arrays_can_be_compared_and_hashed():
    image = np.zeros((6, 6, 3), np.uint8)
    one, other = (becausal.explain(image, MaskClassifier(lambda v: 0.9 * v[:, 2, 2]), grain=1) for _ in range(2))
    answers = Answers(np.ones(3, bool), np.ones(3), np.ones(3))
    finding = Finding(np.zeros((2, 2)))
    for record, second in ((one, other), (answers, Answers.none()), (finding, Finding(np.zeros((2, 2))))):
        assert record == record
        assert record != second
        assert len({record, second}) == 2

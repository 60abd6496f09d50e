"""Whether an explanation keeps its label on random backgrounds that no search has seen."""

from dataclasses import replace

from becausal.core.contracts import Classifier
from becausal.core.explanation import ExplanationRecord
from becausal.core.metrics import HELD_OUT, HELD_OUT_COUNT, Transfer
from becausal.core.problem import Problem
from becausal.engine.engine import Engine
from becausal.images.backgrounds import RandomBackgrounds
from becausal.search.certifying import transfer


def measure_transfer(explanation: ExplanationRecord, classifier: Classifier) -> Transfer:
    """On how many held-out backgrounds the explanation keeps the label, whatever its confidence; not among its calls."""
    target = replace(explanation.target, floor=0.0)
    sampler = RandomBackgrounds(explanation.view, explanation.origin.seed)
    problem = Problem(explanation.view, explanation.backgrounds, target, sampler=sampler)
    search = transfer(explanation.visible, first=HELD_OUT, count=HELD_OUT_COUNT)
    return Engine(classifier).run(problem, search).result

"""A method is a class and a row of `METHODS`, as ARCHITECTURE.md says: an imaginary one, which every interface finds."""

import json
import sys
from dataclasses import dataclass
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import pytest

import becausal
from becausal.api.compare import choose_methods
from becausal.core.contracts import Finding, Needs, Search, Stop
from becausal.core.errors import OptionError
from becausal.core.problem import Problem
from becausal.interfaces.cli.app import main
from becausal.interfaces.serve.page import available_methods
from becausal.lab.selection import select_methods
from becausal.methods import METHODS, Method
from becausal.models import as_classifier

BRIGHT = (slice(2, 4), slice(4, 8))


@dataclass(frozen=True, kw_only=True)
class Stripes:
    """How much of the confidence is lost without each stripe of rows.

    Attributes:
        height: Rows of a stripe.
    """

    height: int = 2

    name: ClassVar[str] = "stripes"
    needs: ClassVar[Needs] = "labels"

    def search(self, problem: Problem, rng: np.random.Generator) -> Search[Finding]:
        saliency, number = np.zeros(problem.grid), np.arange(problem.grid[0]) // self.height
        try:
            for stripe in range(number[-1] + 1):
                shown = np.ones(problem.grid, bool)
                shown[number == stripe] = False
                saliency[number == stripe] = 1 - (yield shown[None]).confidence[0]
        except Stop:
            pass
        return Finding(saliency)


def bright_box(batch: np.ndarray) -> np.ndarray:
    share = batch[(slice(None), *BRIGHT)].mean(axis=(1, 2, 3)) / 255
    return np.stack([1 - share, share], axis=1)


@pytest.fixture(autouse=True)
def stripes(monkeypatch: pytest.MonkeyPatch) -> None:
    """What adding it takes: its module, and its row."""
    module: Any = ModuleType("becausal.methods.stripes")
    module.Stripes = Stripes
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(METHODS, "stripes", Method("stripes", "Stripes", "labels", "stripes, one by one"))


def test_it_explains_with_its_options() -> None:
    image = np.full((12, 12, 3), 255, np.uint8)
    explanation = becausal.explain(
        image, bright_box, method="stripes", options={"height": "4"}, fills="black", smallest=True, grain=1
    )
    assert explanation.responsibility[:4].min() > explanation.responsibility[4:].max()
    assert explanation.checks.minimal_grain == 1
    assert explanation.visible.sum() == explanation.visible[BRIGHT].sum() == 5  # more than half of eight
    assert explanation.origin.options["height"] == 4
    assert explanation.verify(bright_box, image=image).holds
    with pytest.raises(OptionError, match="the method stripes has no option 'width'; it has height"):
        becausal.explain(image, bright_box, method="stripes", options={"width": 4})


def test_a_budget_ends_it_early() -> None:
    image = np.full((200, 8, 3), 255, np.uint8)
    explanation = becausal.explain(image, bright_box, method="stripes", fills="black", max_calls=60)
    assert explanation.calls <= 60
    assert explanation.stopped_by == "budget"


def test_every_list_of_methods_has_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["methods", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[-1] == {
        "name": "stripes", "needs": "labels", "summary": "stripes, one by one",
    }  # fmt: skip
    assert main(["methods", "stripes", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [{"option": "height", "default": 2, "meaning": "Rows of a stripe."}]
    assert "stripes" in choose_methods("all")
    model = as_classifier(bright_box)
    assert "stripes" in available_methods(model)
    assert select_methods("stripes:height=3", model, becausal.Request())[0] == ("stripes:height=3",)

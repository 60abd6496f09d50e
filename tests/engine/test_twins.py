"""Twins: a faster stand-in may guide a search; what is claimed comes from the model itself."""

import threading
from contextlib import suppress

import numpy as np
import pytest

import becausal
from becausal.core.contracts import Answers, Done, Question, Stop, Twin, step
from becausal.core.errors import AnswerError, FillError, TwinError
from becausal.models import as_classifier
from becausal.models.preprocess import PRESETS
from becausal.search.checking import removals
from becausal.search.drive import drive
from becausal.search.minimise import Minimal
from becausal.search.twins import EVERY, compare_twin, confirm_minimal, find_difference
from becausal.testing import MaskClassifier

SIDE = 8
IMAGE = np.zeros((SIDE, SIDE, 3), np.uint8)


def answers(*confidence, spent=0):
    values = np.array(confidence, float)
    return Answers(values >= 0.5, values - 0.5, values, spent)


def rows(count):
    return np.arange(SIDE * SIDE).reshape(SIDE, SIDE) < np.arange(1, count + 1)[:, None, None]


# The searches alone, answered by hand


def asking(waves):
    found = []
    for wave in waves:
        found.append((yield wave))
    return found


def test_the_first_wave_and_one_in_sixteen_are_asked_of_the_model_too():
    search = compare_twin(asking([rows(3)] * (EVERY + 2)), 0.01)
    state, exact, spent = step(search, None), [], 0
    while not isinstance(state, Done):
        spent += len(state)
        exact.append(Question.of(state).exact)
        state = step(search, answers(*[0.7] * len(state), spent=spent))
    assert np.flatnonzero(exact).tolist() == [1, EVERY + 2]
    assert [found.spent for found in state.result] == [3 * (i + 1) for i in range(EVERY + 2)]  # it does not notice


@pytest.mark.parametrize(("said", "expected"), [
    (answers(0.7, 0.2), None),
    (answers(0.71, 0.2), "confidence of 0.7100 where the model has 0.7000"),
    (Answers(np.array([True, True]), np.array([0.2, 0.1]), np.array([0.7, 0.2])), None),
    (Answers(np.array([False, False]), np.array([-0.1, -0.1]), np.array([0.7, 0.2])), "another label"),
])  # fmt: skip
def test_what_is_wrong_with_a_twin(said, expected):
    model = Answers(np.array([True, False]), np.array([0.6, -0.3]), np.array([0.7, 0.2]))  # the second is close to the other
    error = find_difference(said, model, 0.005)
    assert (error is None) if expected is None else expected in str(error)


def test_a_wrong_twin_ends_the_search():
    search = compare_twin(asking([rows(3)]), 0.01)
    step(search, None)
    step(search, answers(0.7, 0.7, 0.7))
    state = step(search, answers(0.7, 0.3))  # the first and the last of them
    assert isinstance(state, Done)
    assert isinstance(state.result, TwinError)
    assert state.result.is_wrong


def test_a_stop_during_the_comparison_keeps_the_answers():
    def search():
        try:
            yield rows(2)
        except Stop as stop:
            return stop.answers, stop.reason

    compared = compare_twin(search(), 0.01)
    step(compared, None)
    step(compared, answers(0.7, 0.8))
    found, reason = step(compared, Stop("interrupt")).result
    assert found.confidence.tolist() == [0.7, 0.8]
    assert reason == "interrupt"


def test_exactly_marks_every_question():
    search = drive(asking([rows(2), Question(rows(1), draws=[7])]), exact=True)
    first = step(search, None)
    second = step(search, answers(0.1, 0.1))
    assert Question.of(first).exact
    assert Question.of(second).exact
    assert second.draws.tolist() == [7]


def decide(search, needed):
    """Answer a search by a model that needs these pixels; each gives an equal share of its confidence."""
    state = step(search, None)
    while not isinstance(state, Done):
        assert Question.of(state).exact
        share = (np.asarray(state) & needed).sum(axis=(1, 2)) / needed.sum()
        state = step(search, Answers(share >= 1, np.where(share >= 1, 0.01, -0.01), share))
    return state.result


def test_a_set_that_is_not_quite_minimal_is_settled_by_the_model():
    needed, found = np.zeros((2, SIDE, SIDE), bool)
    needed[2:4, 2:4] = found[2:4, 2:6] = True
    settled = decide(confirm_minimal(Minimal(found, 1), 0.0, needed * 1.0), needed)
    assert (settled.visible == needed).all()
    assert settled.grain == 1
    same = decide(confirm_minimal(Minimal(needed, 1), 0.0, needed * 1.0), needed)
    assert (same.visible == needed).all()


@pytest.mark.parametrize(("margin", "is_wrong"), [(-0.01, False), (-3.0, True)])
def test_a_set_that_the_model_does_not_find_sufficient_is_refused(margin, is_wrong):
    search = confirm_minimal(Minimal(rows(4)[3], None), 0.0, np.ones((SIDE, SIDE)))
    step(search, None)
    with pytest.raises(TwinError) as raised:
        search.send(Answers(np.array([False, False]), np.array([margin, margin]), np.array([0.4, 0.4])))
    assert raised.value.is_wrong == is_wrong


def test_a_set_that_is_not_quite_sufficient_gets_a_cell_where_it_may():
    needed = np.zeros((SIDE, SIDE), bool)
    needed[2:4, 2:4] = True
    found = needed.copy()
    found[3, 3], found[6, 6] = False, True
    saliency = 0.5 * needed + 0.2 * found
    settled = decide(confirm_minimal(Minimal(found, 1), 0.0, saliency, may_grow=True), needed)
    assert (settled.visible == needed).all()  # the cell that was missing is there, and the one that is not needed is gone
    assert settled.grain == 1
    with pytest.raises(TwinError):
        decide(confirm_minimal(Minimal(found, 1), 0.0, saliency), needed)


# Through the front door, with a twin made by hand


def needs(*pixels):
    """The share of these pixels that is shown, as a confidence."""
    places = np.array(pixels)

    def function(visible):
        return 0.05 + 0.9 * visible[:, places[:, 0], places[:, 1]].mean(axis=1)

    return function


class Twinned:
    """A classifier with a twin: two functions of what is visible. made: how many twins it may make."""

    def __init__(self, function, other, *, made=1, depth=0):
        self.model, self.other = MaskClassifier(function, depth=depth), MaskClassifier(other, depth=depth)
        self.batch_size, self.fixed_sizes, self.depth = self.model.batch_size, (), depth
        self.stage, self.ask, self.classify, self.submit = (
            self.model.stage, self.model.ask, self.model.classify, self.model.submit
        )  # fmt: skip
        self.left = made

    @property
    def info(self):
        return self.model.info

    def find_twin(self):
        return Twin("a toy", 0.01, self.other.ask, self.other.submit) if self.left else None

    def drop_twin(self):
        self.left -= 1


RIGHT = needs((1, 1), (1, 2), (5, 5), (6, 6))


def wrong_everywhere(visible):
    return 1 - RIGHT(visible)


def wrong_on_small_sets(visible):
    return np.where(visible.sum(axis=(1, 2)) < 8, 0.95, RIGHT(visible))


def wrong_on_removals(visible):
    return np.where(visible.sum(axis=(1, 2)) < 12, 0.05, RIGHT(visible))


def broken(visible):
    raise RuntimeError("no such kernel")


def without_scores(visible):
    return np.full(len(visible), np.nan)


def explain(model, **options):
    return becausal.explain(IMAGE, model, **({"smallest": True, "grain": 1} | options))


@pytest.mark.parametrize("depth", [0, 2])
@pytest.mark.parametrize("options", [{}, {"smallest": False}, {"method": "rise", "grain": 2}, {"several": 2}])
def test_a_good_twin_guides_and_the_model_certifies(options, depth):
    model = Twinned(RIGHT, RIGHT, depth=depth)
    plain = MaskClassifier(RIGHT, depth=depth)
    explanation, expected = explain(model, **options), explain(plain, **options)
    assert (explanation.visible == expected.visible).all()
    assert explanation.checks == expected.checks
    assert np.allclose(explanation.responsibility, expected.responsibility)
    assert "a toy guided the search; every claim and every score is of the model itself" in explanation.notes
    assert len(model.model.asked) + len(model.other.asked) == explanation.calls
    assert len(model.other.asked) > len(model.model.asked) / 2
    own = {visible.tobytes() for visible in model.model.asked}
    claimed = [explanation.visible, ~explanation.visible, np.ones((SIDE, SIDE), bool), np.zeros((SIDE, SIDE), bool)]
    for level in explanation.levels:
        claimed += [level.visible, ~level.visible, *removals(level.visible, level.checks.minimal_grain)]
    assert all(visible.tobytes() in own for visible in claimed)


@pytest.mark.parametrize("wrong", [wrong_everywhere, wrong_on_small_sets, wrong_on_removals, broken, without_scores])
def test_a_wrong_twin_is_dropped_and_the_search_repeated(wrong):
    model = Twinned(RIGHT, wrong)
    explanation, expected = explain(model), explain(MaskClassifier(RIGHT))
    assert (explanation.visible == expected.visible).all()
    assert explanation.checks == expected.checks
    assert model.left == 0
    assert [note for note in explanation.notes if "gave another answer" in note]
    assert not [note for note in explanation.notes if "guided" in note]
    assert explanation.stopped_by == "finished"
    assert explanation.calls >= len(model.model.asked)  # and those of the first try


def test_rounding_does_not_repeat_the_search_for_a_ranking():
    def share(visible, rounding=0.0):
        return 0.095 + rounding + 0.8 * visible.mean(axis=(1, 2))  # with the rounding, a pixel less is enough

    model = Twinned(share, lambda visible: share(visible, 0.008))
    options = {"method": "rise", "options": {"masks": 50}, "smallest": True}
    explanation, expected = (
        becausal.explain(IMAGE, model, **options),
        becausal.explain(IMAGE, MaskClassifier(share), **options),
    )
    assert (explanation.visible == expected.visible).all()
    assert "a toy guided the search; every claim and every score is of the model itself" in explanation.notes


def test_a_twin_that_is_out_of_date_is_made_again():
    model = Twinned(RIGHT, wrong_everywhere, made=2)
    drop = model.drop_twin

    def renew():
        drop()
        model.other = MaskClassifier(RIGHT)

    model.drop_twin = renew
    explanation = explain(model)
    assert model.left == 1
    assert ["guided" in note for note in explanation.notes][-2:] == [False, True]
    assert "another answer" in explanation.notes[-2]


def test_several_images_and_one_wrong_twin():
    model = Twinned(RIGHT, wrong_on_small_sets)
    request = becausal.Request(smallest=True, grain=1)
    found = list(becausal.explain_many([IMAGE] * 3, model, request=request))
    assert len(found) == 3
    assert len({explanation.visible.tobytes() for explanation in found}) == 1
    assert all(explanation.checks.minimal_grain == 1 for explanation in found)


@pytest.mark.parametrize("options", [{"max_calls": 80}, {"contrast": True, "smallest": False}])
def test_where_a_twin_is_not_used(options):
    model = Twinned(RIGHT, RIGHT)
    explain(model, **options)
    assert not model.other.asked


def test_a_certificate_of_random_backgrounds_is_the_models_own():
    model = Twinned(RIGHT, RIGHT)
    explanation = explain(model, smallest=False, holds=0.9)
    certificate = explanation.levels[-1].certificate
    assert certificate.holds
    same = explanation.visible.tobytes()
    assert sum(visible.tobytes() == same for visible in model.model.asked) >= certificate.asked


def test_a_failure_of_the_model_itself_is_no_fault_of_the_twin():
    def fails(visible):
        if visible.sum() < 60 * len(visible):
            raise RuntimeError("broken")
        return RIGHT(visible)

    with pytest.raises(AnswerError, match="RuntimeError: broken"):
        explain(Twinned(fails, RIGHT))


# Torch modules

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from becausal.models import torch_module  # noqa: E402
from becausal.models.torch_device import HostComposer  # noqa: E402
from becausal.scenes import make_scene  # noqa: E402


class Base(nn.Module):
    """A small network. shift: how far its scores are rolled, as an attribute that no parameter shows."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 16, 4, stride=2, padding=1)
        self.pool = nn.AvgPool2d(4)
        self.big = nn.Linear(16 * 36, 64)
        self.fc = nn.Linear(64, 6)
        nn.init.zeros_(self.fc.bias)
        self.fc.bias.data[2] = 0.02  # plain images have this label
        self.shift = 0

    def see(self, x):
        return self.big(self.pool(torch.relu(self.conv(x))).flatten(1)).relu()

    def forward(self, x):
        """What an image has more than a plain one of its mean colour, so that plain images are all alike."""
        plain = x.mean((2, 3), keepdim=True).expand(-1, -1, *x.shape[2:])
        return torch.roll(self.fc(self.see(x) - self.see(plain)) * 20, self.shift, 1)


def permute_in_place(module):
    for values in (module.fc.weight, module.fc.bias):
        values.data.copy_(values.data[[3, 4, 5, 0, 1, 2]].clone())


CHANGES = {
    "one row": lambda m: m.fc.weight.data[3].mul_(-3),
    "rows in place": permute_in_place,
    "object": lambda m: setattr(m, "shift", 3),
    "hook": lambda m: m.fc.register_forward_hook(lambda of, given, found: torch.roll(found, 3, 1)),
}


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def wrap(module, *, half=False, **options):
    """half: with a twin in half precision, as on a GPU; a CPU takes it, too, if slowly."""
    how = {"preprocess": "imagenet", "resize": "squash/48x48", "returns": "logits"}
    classifier = as_classifier(module, **(how | options))
    classifier._half = half
    return classifier


def photo(seed=7):
    return make_scene(seed).image


def alone(module, classifier, view):
    """What the module itself says of one view."""
    with torch.inference_mode():
        values = torch.from_numpy(np.moveaxis(PRESETS["imagenet"].apply(view[None]), -1, 1).copy())
        return torch.softmax(module(values), 1).numpy()[0]


def explain_it(classifier, grain=12):
    """The explanation under the first fill that does not have the label already."""
    for fill in ("grey", "blur", "noise"):
        with suppress(FillError):
            return becausal.explain(photo(), classifier, smallest=True, grain=grain, fills=fill)
    pytest.fail("no fill works")


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_module_gets_its_own_answer(name):
    module = Base().eval()
    classifier = wrap(module, half=True)
    explain_it(classifier)
    CHANGES[name](module)
    explanation = explain_it(classifier)
    expected = alone(module, classifier, explanation.view)
    assert explanation.label_id == expected.argmax()
    assert abs(explanation.confidence - expected.max()) < 1e-3
    assert explanation.verify(wrap(module)).holds, explanation.notes


def test_a_twin_is_made_once_and_again_after_the_module_has_changed():
    module = Base().eval()
    classifier = wrap(module, half=True)
    first = classifier.find_twin()
    explain_it(classifier)
    assert classifier.find_twin() is first
    CHANGES["rows in place"](module)
    assert [note for note in explain_it(classifier).notes if "repeated" in note]
    second = classifier.find_twin()
    assert second is not None
    assert second is not first
    fresh = wrap(module, half=True)
    fresh.find_twin()
    fresh.drop_twin()
    assert fresh.find_twin() is None  # one that was wrong at once is not made again


def test_half_precision_guides_and_float32_certifies():
    module = Base().eval()
    explanation = explain_it(wrap(module, half=True), grain=6)
    assert (
        "a copy of the module in half precision guided the search; every claim and every score is of the model itself"
        in (explanation.notes)
    )
    assert explanation.verify(wrap(Base().eval())).holds
    assert next(module.parameters()).dtype == torch.float32
    assert not explanation.origin.loading.get("half")
    assert not [note for note in explain_it(wrap(Base().eval())).notes if "guided" in note]


@pytest.mark.parametrize("kind", ["tensor", "dict", "tuple", "object"])
def test_the_twin_of_any_form_of_output(kind):
    class Forms(Base):
        def forward(self, x):
            y = super().forward(x)
            found = {"dict": {"other": x, "logits": y}, "tuple": (y, x), "object": type("Out", (), {"logits": y})()}
            return found.get(kind, y)

    classifier, plain = wrap(Forms().eval(), half=True), wrap(Base().eval())
    pixels = np.stack([photo(seed)[:48, :48] for seed in range(3)])
    assert np.allclose(classifier.classify(pixels), plain.classify(pixels), atol=1e-5)
    staged, which, visible = [classifier.stage(*pixels[:2])], np.zeros(5, np.intp), np.ones((5, 48, 48), bool)
    visible[1:, :20] = False
    twin = classifier.find_twin()
    assert np.allclose(classifier.ask(staged, which, visible), twin.ask(staged, which, visible), atol=twin.tolerance)


def test_what_cannot_be_copied_has_no_twin_in_half_precision():
    module = Base().eval()
    module.lock = threading.Lock()
    assert wrap(module, half=True).find_twin() is None


def test_gradients_come_from_the_module():
    module = Base().eval()
    inner, prepare = wrap(module).torch_form()
    assert inner is module
    assert prepare(photo()[None, :48, :48]).shape == (1, 3, 48, 48)


class Reshapes(Base):
    def see(self, x):
        features = self.pool(torch.relu(self.conv(x)))
        return self.big(features.view(len(x), -1)).relu()  # fails with channels last


@pytest.mark.parametrize(("make", "times", "expected"), [
    (Base, (2.0, 1.0), True), (Base, (1.0, 2.0), False), (Reshapes, (2.0, 1.0), False),
])  # fmt: skip
def test_channels_are_last_where_torch_is_faster_so(make, times, expected, monkeypatch):
    left = list(times)
    monkeypatch.setattr(torch_module, "_MIN_PARAMETERS", 1)
    monkeypatch.setattr(torch_module, "_measure", lambda torch, module, batch: (module(batch), left.pop(0))[1])
    module = make().eval()
    classifier = wrap(module)
    assert module.conv.weight.is_contiguous(memory_format=torch.channels_last) == expected
    pixels = np.stack([photo(seed)[:48, :48] for seed in range(3)])
    assert classifier._composer.to_tensor(pixels).is_contiguous(memory_format=torch.channels_last) == expected
    fresh = make().eval()
    assert np.allclose(classifier.classify(pixels), [alone(fresh, classifier, view) for view in pixels], atol=1e-5)


@pytest.mark.parametrize("preset", [*PRESETS])
def test_both_orders_in_memory_hold_the_same_values(preset):
    pixels = np.random.default_rng(0).integers(0, 256, (2, 12, 10, 3)).astype(np.uint8)
    first, last = HostComposer(PRESETS[preset]), HostComposer(PRESETS[preset], is_channels_last=True)
    visible, which = np.random.default_rng(0).random((5, 12, 10)) < 0.5, np.zeros(5, np.intp)
    batches = [made.compose([made.stage(*pixels)], which, visible) for made in (first, last)]
    assert torch.equal(*batches)
    assert torch.equal(first.to_tensor(pixels), last.to_tensor(pixels))

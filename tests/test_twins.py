"""Twins: a faster stand-in may guide a search; what is claimed comes from the model itself."""

import gc
import os
import sys
import threading
import time
import warnings
from contextlib import suppress

import numpy as np
import pytest

import becausal
from becausal.core.contracts import Answers, Question, Stop
from becausal.core.errors import AnswerError, FillError, OptionError, TargetError, TwinError
from becausal.core.searches import Done, step
from becausal.core.twins import Twin
from becausal.models import as_classifier
from becausal.models.loading import Loading
from becausal.models.preprocess import PRESETS
from becausal.search.checking import removals
from becausal.search.drive import Terms, drive
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
    (Answers(np.array([True, True]), np.array([0.2, 0.1]), np.array([0.7, 0.2])), "another label"),
])  # fmt: skip
def test_what_is_wrong_with_a_twin(said, expected):
    error = find_difference(said, answers(0.7, 0.2), 0.005)
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
    search = drive(asking([rows(2), Question(rows(1), draws=[7])]), Terms(exact=True))
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
    settled = decide(confirm_minimal(Minimal(found, 1), None, 0.0, needed * 1.0), needed)
    assert (settled.visible == needed).all()
    assert settled.grain == 1
    same = decide(confirm_minimal(Minimal(needed, 1), None, 0.0, needed * 1.0), needed)
    assert (same.visible == needed).all()


@pytest.mark.parametrize(("margin", "is_wrong"), [(-0.01, False), (-3.0, True)])
def test_a_set_that_the_model_does_not_find_sufficient_is_refused(margin, is_wrong):
    search = confirm_minimal(Minimal(rows(4)[3], None), None, 0.0, np.ones((SIDE, SIDE)))
    step(search, None)
    with pytest.raises(TwinError) as raised:
        search.send(Answers(np.array([False, False]), np.array([margin, margin]), np.array([0.4, 0.4])))
    assert raised.value.is_wrong == is_wrong


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
    for level, inner in zip(explanation.levels, (None, *explanation.levels), strict=False):
        if level.checks.minimal_grain:
            within = None if inner is None else inner.visible
            if level.checks.cells:
                claimed += list(removals(level.visible, level.checks.minimal_grain, within))
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


@pytest.mark.parametrize("options", [{"max_calls": 80}, {"contrast": True}])
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

from becausal.models import torch_export, torch_twin  # noqa: E402
from becausal.models.torch_compose import HostComposer  # noqa: E402
from becausal.models.torch_export import export_module, run_apart  # noqa: E402
from becausal.scenes import make_scene  # noqa: E402
from twin_toys import CHANGES, FORWARDS, GLOBAL, Base  # noqa: E402


@pytest.fixture(autouse=True)
def _small_world(monkeypatch):
    """One thread, small modules count as large, and measured times decide nothing."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    monkeypatch.setattr(torch_twin, "MIN_PARAMETERS", 1)
    monkeypatch.setattr(torch_twin, "_FASTER", np.inf)
    monkeypatch.setattr(torch_twin, "_KNOWN", type(torch_twin._KNOWN)())
    GLOBAL["shift"] = 0
    yield
    torch.set_num_threads(before)


def wrap(module, runtime="auto", **options):
    how = {"preprocess": "imagenet", "resize": "squash/48x48", "returns": "logits"}
    return as_classifier(module, runtime=runtime, **(how | options))


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
            return becausal.explain(photo(), classifier, smallest=True, grain=grain, fill=fill)
    pytest.fail("no fill works")


def explain_module(module, **options):
    return explain_it(wrap(module, **options))


UNSTABLE = {
    "state in a dict", "state in an object", "state in a buffer", "moving mean", "dropout", "random", "rarely random",
    "mean of the batch", "from eight on", "chunks of four", "dlpack", "f-string", "item", "storage", "thread", "unique",
    "shape of nonzero", "autograd function", "caught decomposition", "bincount", "masked select",
}  # fmt: skip  # what these answer depends on the batch, on earlier batches, or on chance


@pytest.mark.parametrize("kind", FORWARDS)
def test_the_answer_is_the_modules_own(kind):
    """Whatever an export of the module computes, and even if the exporter crashes."""
    module = Base(kind).eval()
    if kind not in UNSTABLE:
        classifier = wrap(module)
        view = np.random.default_rng(0).integers(0, 256, (48, 48, 3)).astype(np.uint8)
        assert np.allclose(classifier.classify(view[None])[0], alone(module, classifier, view), atol=1e-4)
    try:
        explanation = explain_module(Base(kind).eval())
    except (AnswerError, TargetError):
        if kind not in UNSTABLE and kind != "NaN of a plain image":
            raise
        return
    own = wrap(Base(kind).eval(), "torch", batch_size=1)
    if kind in UNSTABLE:  # one by one they may well answer otherwise; then it is said
        assert explanation.notes or explanation.verify(own).holds
        return
    expected = alone(Base(kind).eval(), own, explanation.view)
    assert explanation.label_id == expected.argmax()
    assert abs(explanation.confidence - expected.max()) < 1e-3
    assert explanation.verify(own).holds, explanation.notes


@pytest.mark.parametrize("is_wrapped_again", [True, False])
@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_module_gets_its_own_answer(name, is_wrapped_again):
    kind, change = CHANGES[name]
    module = Base(kind).eval()
    classifier = wrap(module)
    explain_it(classifier)
    change(module)
    if is_wrapped_again:
        classifier = wrap(module)
    explanation = explain_it(classifier)
    expected = alone(module, classifier, explanation.view)
    assert explanation.label_id == expected.argmax()
    assert abs(explanation.confidence - expected.max()) < 1e-3
    assert explanation.verify(wrap(module, "torch")).holds, explanation.notes


def test_a_module_is_exported_and_guides():
    explanation = explain_module(Base().eval())
    assert "the module exported to ONNX guided the search; every claim and every score is of the model itself" in (
        explanation.notes
    )
    alone_found = explain_module(Base().eval(), runtime="torch")
    assert (explanation.visible == alone_found.visible).all()
    assert not [note for note in alone_found.notes if "guided" in note]


def test_a_module_is_exported_once_and_again_after_it_has_changed(monkeypatch):
    exported = []

    def export(module, images):
        exported.append(module)
        return export_module(module, images)

    monkeypatch.setattr(torch_twin, "export_module", export)
    module = Base().eval()
    for _ in range(3):
        explain_module(module)
    assert len(exported) == 1
    CHANGES["rows in place"][1](module)
    assert [note for note in explain_module(module).notes if "repeated" in note]
    assert len(exported) == 2
    explain_module(module)
    assert len(exported) == 2
    exported.clear()
    del module
    gc.collect()
    assert not list(torch_twin._KNOWN)  # nothing keeps a module alive


@pytest.mark.parametrize("patch", [
    {"MIN_PARAMETERS": 10**9}, {"_MAX_BYTES": 10}, {"_FASTER": 0.0}, {"export_module": lambda *_: b""},
    {"export_module": lambda *_: b"no model"},
])  # fmt: skip
def test_without_an_export_the_module_does_it_all(patch, monkeypatch):
    for name, value in patch.items():
        monkeypatch.setattr(torch_twin, name, value)
    assert wrap(Base().eval()).find_twin() is None


def test_without_onnx_there_is_no_export(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    assert wrap(Base().eval()).find_twin() is None


def test_a_process_apart_that_dies_hangs_or_fails_costs_nothing_else(capfd):
    assert run_apart(lambda: b"data", 20) == b"data"
    assert run_apart(lambda: bytes(5_000_000), 20) == bytes(5_000_000)
    assert run_apart(lambda: os.write(1, b"to nowhere") and 1 / 0, 20) == b""
    assert run_apart(os.abort, 20) == b""
    begun = time.monotonic()
    assert run_apart(lambda: time.sleep(60), 0.3) == b""
    assert time.monotonic() - begun < 20
    assert capfd.readouterr() == ("", "")


def test_a_system_that_cannot_fork_has_no_export(monkeypatch):
    monkeypatch.delattr(torch_export.os, "fork")
    assert run_apart(lambda: b"data", 20) == b""


def test_scripted_modules_and_other_forms_of_output():
    class Forms(Base):
        def forward(self, x):
            y = self.base(x)
            return {"dict": {"other": x, "logits": y}, "tuple": (y, x), "object": type("Out", (), {"logits": y})()}[
                self.kind
            ]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit is deprecated
        modules = [torch.jit.trace(Base().eval(), torch.zeros(2, 3, 48, 48)), *map(Forms, ("dict", "tuple", "object"))]
    for module in modules:
        classifier, plain = wrap(module.eval()), wrap(Base().eval())
        assert classifier.find_twin() is not None
        pixels = np.stack([photo(seed)[:48, :48] for seed in range(3)])
        assert np.allclose(classifier.classify(pixels), plain.classify(pixels), atol=1e-5)
        staged, which, visible = [classifier.stage(*pixels[:2])], np.zeros(5, np.intp), np.ones((5, 48, 48), bool)
        visible[1:, :20] = False
        assert np.allclose(
            classifier.ask(staged, which, visible), classifier.find_twin().ask(staged, which, visible), atol=1e-4
        )


def test_half_precision_guides_and_float32_certifies():
    """As on a GPU: a copy of the module in half precision. A CPU takes it, too, if slowly."""
    classifier, module = wrap(Base().eval(), "torch"), Base().eval()
    classifier._stand_ins = torch_twin.StandIns(module, "half", lambda: torch_twin.make_half(module))
    explanation = explain_it(classifier, grain=6)
    assert [note for note in explanation.notes if "half precision guided the search" in note]
    assert explanation.verify(wrap(Base().eval(), "torch")).holds
    assert next(module.parameters()).dtype == torch.float32
    assert not explanation.origin.loading.get("half")


def test_what_cannot_be_copied_has_no_twin_in_half_precision():
    module = Base().eval()
    module.lock = threading.Lock()
    assert torch_twin.make_half(module) is None


def test_the_runtimes_that_are_left():
    with pytest.raises(OptionError, match="unknown runtime 'onnxruntime'; expected one of auto, torch"):
        wrap(Base().eval(), "onnxruntime")
    assert Loading.from_record({"runtime": "onnxruntime", "preprocess": "tf"}) == Loading(preprocess="tf")


def test_gradients_come_from_the_module():
    module = Base().eval()
    inner, prepare = wrap(module).torch_form()
    assert inner is module
    assert prepare(photo()[None, :48, :48]).shape == (1, 3, 48, 48)


def test_a_padding_states_its_value():
    """Otherwise onnxruntime does not merge it with the next convolution, which takes a quarter longer."""
    onnx = pytest.importorskip("onnx")
    padded = nn.Sequential(nn.Identity(), Base()).eval()
    padded.forward = lambda x: padded[1](nn.functional.pad(x, (0, 1, 0, 1))[:, :, 1:, 1:])
    graph = onnx.load_from_string(export_module(padded, torch.zeros(2, 3, 48, 48))).graph
    assert [bool(node.input[2]) for node in graph.node if node.op_type == "Pad"] == [True]


class Reshapes(Base):
    def see(self, x):
        features = self.pool(torch.relu(self.conv(x)))
        return self.big(features.view(len(x), -1)).relu()  # fails with channels last


@pytest.mark.parametrize(("make", "times", "expected"), [
    (Base, (2.0, 1.0), True), (Base, (1.0, 2.0), False), (Reshapes, (2.0, 1.0), False),
])  # fmt: skip
def test_channels_are_last_where_torch_is_faster_so(make, times, expected, monkeypatch):
    left = [times[0]] * 2 + [times[1]] * 2
    monkeypatch.setattr(torch_twin, "measure", lambda function: (function(), left.pop(0))[1])
    module = make().eval()
    classifier = wrap(module, "torch")
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

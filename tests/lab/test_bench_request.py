"""What is asked of the explanations of a bench: the request reaches every explanation, and is saved whole."""

import inspect
import json
from dataclasses import fields, replace

import pytest

from becausal import Request
from becausal.core.errors import BecausalError, OptionError
from becausal.lab import BENCHES, load_bench, run
from becausal.lab.base import BenchSettings
from becausal.models import as_classifier
from test_bench import bombed, bright, photos, plain_figures  # noqa: F401 - three are fixtures

pytestmark = pytest.mark.usefixtures("plain_figures")

#: Every option of a request but one with a value that is not its default; smallest and confidence exclude each other.
FULL = Request(
    method="sbfl",
    options={"mutants": 60},
    target=1,
    against=0,
    top=2,
    confidence=0.5,
    fills=("black", "grey"),
    contrast=True,
    several=2,
    grain=2,
    seed=3,
    seeds=2,
    max_calls=900,
)
HELD = replace(FULL, contrast=False, several=1, holds=0.9, backgrounds="streets")  # these exclude each other


def test_run_has_few_parameters_and_no_options_of_a_request_or_a_model():
    names = list(inspect.signature(run).parameters)
    assert len(names) <= 12
    assert not {"seed", "fill", "grain", "max_calls", "labels", "preprocess", "device"} & set(names)


@pytest.mark.parametrize("name", BENCHES)
def test_every_option_reaches_the_explanations(name):
    """A new option of `Request` needs no change in a bench; this fails until it has a value in FULL or HELD."""
    for f in fields(Request):
        assert f.name in ("smallest", "box", "at") or any(getattr(full, f.name) != f.default for full in (FULL, HELD))
    bench = load_bench(name)
    own = {"method", "options", *bench.sets, *({"seed"} if name == "faithfulness" else ())}
    for full in (FULL, HELD):
        arms = bench.arms(BenchSettings(bench=name, methods=("causal", "dc-causal"), request=full))
        for arm in arms:
            assert all(getattr(arm.request, f.name) == getattr(full, f.name) for f in fields(Request) if f.name not in own)
        methods = {arm.request.method for arm in arms if isinstance(arm.request.method, str)}  # without a bench's control
        assert methods == {"causal", "dc-causal"}


@pytest.mark.parametrize("name", BENCHES)
def test_a_bench_asks_the_question_of_the_paper_unless_told_otherwise(name):
    """One set in one fill: nobody pays for a certificate. Only `paste` is about both sets."""

    def requests(asked):
        return [arm.request for arm in load_bench(name).arms(BenchSettings(bench=name, methods=("rise",), request=asked))]

    plain = requests(Request(fills=("grey",)))
    assert all((each.smallest, each.share_held) == ((False, 0.9) if name == "paste" else (True, None)) for each in plain)
    assert all(each.smallest for each in requests(Request(smallest=True)))
    for asked in (Request(holds=0.8, fills=("grey",)), Request(confidence=0.9), Request(contrast=True), Request(several=2)):
        found = requests(asked)
        assert all((each.share, each.holds, each.several) == (asked.share, asked.holds, asked.several) for each in found)


def test_a_bench_measures_the_smallest_sets_that_keep_the_label(bombed, tmp_path):  # noqa: F811
    """As the paper does, and not the two sets of a plain explanation."""
    given = {"data": bombed, "methods": "causal", "limit": 1}
    done = run("photobombing", bright, out=tmp_path / "plain", request=Request(fills=("black",)), **given)
    asked = run("photobombing", bright, out=tmp_path / "asked", request=Request(fills=("black",), smallest=True), **given)
    most = run("photobombing", bright, out=tmp_path / "most", request=Request(fills=("black",), confidence=0.9), **given)
    assert done.rows[0]["_shown"] == asked.rows[0]["_shown"]
    assert done.rows[0]["size"] < most.rows[0]["size"]
    assert done.rows[0]["confidence"] < 0.9 * done.rows[0]["original"] <= most.rows[0]["confidence"]


def test_confidence_and_several_fills_hold_in_a_bench(bombed, tmp_path):  # noqa: F811
    given = {"data": bombed, "methods": "causal", "limit": 2}
    plain = run("photobombing", bright, out=tmp_path / "plain", request=Request(fills=("black",)), **given)
    asked = Request(confidence=0.95, fills=("black", "#101010"))
    done = run("photobombing", bright, out=tmp_path / "run", request=asked, **given)
    saved = json.loads((tmp_path / "run" / "settings.json").read_text())
    assert saved["request"] == json.loads(json.dumps(asked.record()))
    assert done.summary()["settings"]["request"] == asked.record()
    assert "--confidence 0.95 --fill black --fill '#101010' --seed 0" in done.summary()["command"]
    assert all(row["confidence"] >= 0.95 * row["original"] - 1e-6 for row in done.rows)
    assert sum(row["size"] for row in done.rows) > sum(row["size"] for row in plain.rows)
    assert "fill black, #101010" in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")


def test_a_resumed_run_compares_whole_records(bombed, tmp_path):  # noqa: F811
    given = {"data": bombed, "methods": "random", "limit": 1, "out": tmp_path / "run"}
    model = as_classifier(bright, labels=["dark", "bright"])
    asked = Request(confidence=0.5)
    run("photobombing", model, request=asked, **given)
    saved = json.loads((tmp_path / "run" / "settings.json").read_text())
    assert saved["loading"] == dict(model.info.loading) == {"labels": ["dark", "bright"]}
    run("photobombing", model, request=asked, resume=True, **given)
    for other, name in (
        (Request(confidence=0.6), "request.confidence: 0.5 then, 0.6 now"),
        (Request(confidence=0.5, contrast=True), "request.contrast: False then, True now"),
        (Request(confidence=0.5, fills=("black",)), r"request.fills: \['grey'\] then, \['black'\] now"),
    ):
        with pytest.raises(OptionError, match=rf"other settings \({name}\)"):
            run("photobombing", model, request=other, resume=True, **given)
    relabelled = as_classifier(bright, labels=["dim", "bright"])
    with pytest.raises(OptionError, match=r"loading\.labels"):
        run("photobombing", relabelled, request=asked, resume=True, **given)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("fills", {"fills": ("black",)}, "the bench fills sets fills itself"),
        ("convergence", {"max_calls": 100}, "the bench convergence sets max_calls itself"),
        ("exact", {"confidence": 0.5}, "the bench exact has no use for confidence"),
        ("exact", {"grain": 4}, "the bench exact has no use for grain"),
        ("exact", {"fills": ("black", "grey")}, "takes one fill, not 2"),
        ("scenes", {"method": "rise"}, "not method in the request"),
        ("scenes", {"options": {"masks": 5}}, "not options in the request"),
        ("scenes", {"several": 2}, "several"),
        ("scenes", {"fills": ("grey", "plaid")}, "unknown fill 'plaid'"),
    ],
)
def test_options_without_effect_are_refused(name, changes, message, tmp_path):
    methods = "random" if "several" in changes else None
    with pytest.raises(BecausalError, match=message) as caught:
        run(name, "bundled", methods=methods, request=replace(Request(), **changes), out=tmp_path / "run")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()

"""The bench `sanity`: weights are randomised, and maps, explanations and controls change as they should."""

import importlib.util
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from becausal import Request, load_model
from becausal.api.jobs import prepare
from becausal.core.errors import OptionError, TargetError
from becausal.engine.engine import Engine
from becausal.lab import run
from becausal.lab.base import BenchSettings, split_method
from becausal.lab.rows import read_table, unpack_map, unpack_set
from becausal.lab.sanity import (
    ALONE,
    BENCH,
    CASCADE,
    NO_SUPPORT,
    EdgeMap,
    NetworkClassifier,
    choose_layers,
    compare_with_trained,
    default_methods,
    explain_label,
    make_arms,
    structural_similarity,
    take_network,
)
from becausal.methods import METHODS, make_explainer
from becausal.models import as_classifier
from becausal.scenes import make_scene
from test_bench import STUB

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("captum", reason="captum is not installed")
from torch import nn  # noqa: E402

SCENE = make_scene(61_000_000).image
SCRIPT = Path(__file__).parents[2] / "benchmarks" / "sanity_labels.py"


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@cache
def bundled() -> NetworkClassifier:
    return take_network(load_model("bundled", threads=1))


def weights_of(classifier) -> dict[str, np.ndarray]:
    return {name: values.detach().numpy().copy() for name, values in classifier.module.named_parameters()}


def toy(*, ends_in_softmax: bool = False) -> NetworkClassifier:
    """Images of 16 px; the left half raises the score of label 0 and lowers that of label 1, the right half does nothing."""
    linear = nn.Linear(6, 2)
    with torch.no_grad():
        linear.weight.copy_(torch.tensor([[4.0, 0.0] * 3, [-4.0, 0.0] * 3]))
        linear.bias.copy_(torch.tensor([-7.0, 7.0]))
    layers = [nn.AdaptiveAvgPool2d((1, 2)), nn.Flatten(), linear, *([nn.Softmax(1)] if ends_in_softmax else [])]
    return take_network(as_classifier(nn.Sequential(*layers), preprocess="unit", resize=16))


def bright_left() -> np.ndarray:
    image = np.full((16, 16, 3), 128, np.uint8)
    image[:, :8] = 255
    return image


# ------------------------------------------------------------------ networks


def test_the_layers_of_a_cascade_come_from_the_end_and_grow():
    assert [choose_layers(CASCADE, step, 9) for step in (0, 33, 67)] == [[8], [6, 7, 8], [3, 4, 5, 6, 7, 8]]
    for count in (1, 2, 5, 60):
        found = [choose_layers(CASCADE, step, count) for step in (0, 33, 67, 100)]
        assert all(set(a) <= set(b) for a, b in pairwise(found))
        assert found[0] == [count - 1]
        assert found[-1] == list(range(count))
    assert [choose_layers(ALONE, step, 9) for step in (0, 50)] == [[0], [4]]
    assert choose_layers("trained", 0, 9) == choose_layers("seed", 0, 9) == []


def test_randomised_layers_keep_their_values_in_another_order_and_others_keep_their_weights():
    network = bundled()
    before = weights_of(network)
    some = weights_of(network.randomised([7, 8], np.random.default_rng(3)))
    every = weights_of(network.randomised(range(9), np.random.default_rng(3)))
    last = {name for name in before if name.startswith(("head", network.layers[7]))}
    assert len(network.layers) == 9
    assert len(last) == 4
    for name, values in before.items():
        assert np.array_equal(some[name], every[name] if name in last else values)
        assert not np.array_equal(every[name], values)
        assert np.array_equal(np.sort(every[name].ravel()), np.sort(values.ravel()))
    other = weights_of(network.randomised([8], np.random.default_rng(4)))
    assert not np.array_equal(other["head.weight"], some["head.weight"])
    assert all(np.array_equal(values, before[name]) for name, values in weights_of(network).items())


def test_the_network_gives_the_scores_of_its_classifier():
    classifier, network = load_model("bundled", threads=1), bundled()
    grey = np.full_like(SCENE, 128)
    visible = np.random.default_rng(0).random((3, *SCENE.shape[:2])) < 0.5
    which = np.zeros(3, np.intp)
    assert np.allclose(classifier.classify(SCENE[None]), network.classify(SCENE[None]), atol=1e-5)
    for model in (classifier, network):
        answers = model.ask([model.stage(SCENE, grey)], which, visible)
        assert np.allclose(answers, network.classify(np.where(visible[..., None], SCENE, grey)), atol=1e-5)


def test_a_network_that_ends_in_a_softmax_gives_its_own_probabilities():
    plain, soft = toy(), toy(ends_in_softmax=True)
    assert soft.gives_probabilities
    assert np.allclose(plain.classify(bright_left()[None]), soft.classify(bright_left()[None]), atol=1e-6)


def test_several_outputs_that_may_all_hold_are_not_made_exclusive():
    module = nn.Sequential(nn.AdaptiveAvgPool2d((1, 2)), nn.Flatten(), nn.Linear(6, 3))
    classifier = as_classifier(module, preprocess="unit", resize=16, returns="multilabel-logits")
    pixels = bright_left()[None]
    assert np.allclose(take_network(classifier).classify(pixels), classifier.classify(pixels), atol=1e-6)


# ------------------------------------------------------------------ the question, and what is compared


def job_for(method: str, image: np.ndarray, **options):
    request = Request(method=method, options=options, smallest=True, grain=1 if method == "causal" else "default")
    return prepare(image, Engine(toy()), request)


@pytest.mark.parametrize(("method", "options"), [("causal", {}), ("rise", {"masks": 100}), ("ig", {"steps": 5})])
def test_an_explanation_keeps_the_score_half_way(method, options):
    job = job_for(method, bright_left(), **options)
    row = explain_label(job, 0)
    whole, masked = toy().classify(np.stack([bright_left(), np.full((16, 16, 3), 128, np.uint8)]))[:, 0]
    assert (row["score"], row["masked_score"]) == (pytest.approx(whole), pytest.approx(masked))
    visible = unpack_set(row["_shown"])
    kept = toy().classify(np.where(visible[..., None], bright_left(), 128).astype(np.uint8)[None])[0, 0]
    assert kept >= (whole + masked) / 2
    assert row["size"] == visible.mean() < 1
    if method == "causal":
        assert not visible[:, 8:].any()


def test_without_support_there_is_a_map_but_no_explanation():
    row = explain_label(job_for("rise", bright_left(), masks=200), 1)
    assert row["no_set"] == NO_SUPPORT
    assert not {"_shown", "size"} & set(row)
    saliency = unpack_map(row["_map"])
    assert saliency[:, :8].mean() < saliency[:, 8:].mean()  # the left half speaks against label 1
    for method in ("causal", "dc-causal", "sbfl"):
        with pytest.raises(TargetError, match="does not raise the score"):
            explain_label(job_for(method, bright_left()), 1)


def slow_ssim(a: np.ndarray, b: np.ndarray, radius: int = 3) -> float:
    """By the definition: windows around every pixel, the border repeated outside."""
    a, b = np.pad(a, radius, mode="edge"), np.pad(b, radius, mode="edge")
    found = []
    for i in range(a.shape[0] - 2 * radius):
        for j in range(a.shape[1] - 2 * radius):
            x, y = (part[i : i + 2 * radius + 1, j : j + 2 * radius + 1] for part in (a, b))
            together = ((x - x.mean()) * (y - y.mean())).mean()
            light = (2 * x.mean() * y.mean() + 1e-4) / (x.mean() ** 2 + y.mean() ** 2 + 1e-4)
            found.append(light * (2 * together + 9e-4) / (x.var() + y.var() + 9e-4))
    return float(np.mean(found))


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), st.tuples(st.integers(1, 9), st.integers(1, 9)))
def test_ssim_follows_its_definition(seed, grid):
    a, b = np.random.default_rng(seed).random((2, *grid))
    assert structural_similarity(a, b) == pytest.approx(slow_ssim(a, b), abs=1e-9)
    assert structural_similarity(a, b) == pytest.approx(structural_similarity(b, a))
    assert structural_similarity(a, b) <= structural_similarity(a, a) == pytest.approx(1.0)


def test_signed_maps_are_compared_by_their_absolute_values_too():
    noise = np.random.default_rng(0).integers(0, 256, (16, 16, 3)).astype(np.uint8)
    maps = [explain_label(job_for("ig", noise, sign="signed", steps=5), label) for label in (0, 1)]
    rows = [row | {"name": "x", "method": "ig", "by": by} for row, by in zip(maps, ("trained", "seed"), strict=True)]
    (_, row) = compare_with_trained(rows)
    assert row["rank"] == pytest.approx(-1.0, abs=1e-3)  # what speaks for one of two labels speaks against the other
    assert row["rank_absolute"] == pytest.approx(1.0, abs=1e-3)


# ------------------------------------------------------------------ runs


def test_every_method_is_run_by_default_and_the_controls_with_them():
    methods = default_methods().split(",")
    assert [split_method(text)[0] for text in methods] == [
        name for name, method in METHODS.items() if name != "centre" and method.needs != "boxes"
    ]
    for text in methods:
        make_explainer(*split_method(text))
    arms = make_arms(BenchSettings(bench="sanity", methods=("rise", "ig:steps=5")))
    assert {arm.method for arm in arms if arm.tags["by"] == ALONE} == {"ig:steps=5"}
    assert [arm.request.method for arm in arms if arm.method == "edges"] == [EdgeMap()] * 6


def convolutions() -> nn.Module:
    """A network of three layers with weights of its own, for images of 16 px."""
    torch.manual_seed(0)
    layers = (nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 8, 3, 1, 1), nn.ReLU(), nn.Flatten(), nn.Linear(512, 4))
    return nn.Sequential(*layers).eval()


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos")
    for number in range(3):
        Image.fromarray(make_scene(61_000_001 + number).image).resize((16, 16)).save(folder / f"{number}.png")
    return folder


def check(photos: Path, out: Path, **changes):
    classifier = as_classifier(convolutions(), preprocess="tf", resize=16, returns="logits")
    return run("sanity", classifier, data=photos, methods="gbp,lrp,random", out=out, **changes)


@pytest.fixture(scope="module")
def finished(photos, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("becausal.lab.page.figure_files", lambda plot: STUB)
        yield check(photos, tmp_path_factory.mktemp("sanity") / "run")


def values(done, method: str, by: str, step: int, key: str) -> list[float]:
    rows = [row for row in done.rows if (row["method"], row["by"], row["step"]) == (method, by, step)]
    assert len(rows) == 3
    return [row[key] for row in rows if row.get(key) is not None]


def test_maps_of_methods_change_and_maps_of_controls_do_not(finished):
    for step in (0, 33, 67, 100):
        assert values(finished, "edges", CASCADE, step, "rank") == [1.0] * 3
        assert values(finished, "edges", CASCADE, step, "ssim") == [1.0] * 3
        assert np.abs(values(finished, "random", CASCADE, step, "rank")).max() < 0.2
    for method in ("gbp", "lrp"):
        assert values(finished, method, "seed", 0, "rank") == [1.0] * 3
        assert set(values(finished, method, "seed", 0, "set_iou")) == {1.0}
        assert np.mean(values(finished, method, CASCADE, 100, "rank")) < 0.6
        assert np.mean(values(finished, method, CASCADE, 100, "rank_absolute")) < 0.9
    assert values(finished, "gbp", CASCADE, 100, "layers") == [3] * 3


def test_the_label_is_that_of_the_trained_network(finished):
    labels = [[row["label"] for row in finished.rows if row["method"] == "gbp" and row["name"] == s.name]
              for s in finished.selection.samples]  # fmt: skip
    assert all(len(set(each)) == 1 for each in labels)
    missing = [row for row in finished.rows if row.get("no_set")]
    assert all(row["score"] <= row["masked_score"] and row.get("set_iou") is None for row in missing)


def test_the_tables_are_computed_from_the_stored_rows(finished):
    tables = {table.name: table for table in finished.findings.tables}
    assert list(tables) == ["drop", "maps", "sets", "absolute", "ssim", "alone"]
    drops = {line[0]: line for line in tables["drop"].rows}
    assert drops["edges"][2] == drops["edges"][3] == 1.0
    assert drops["edges"][4].mean == 0.0
    assert drops["gbp"][4].mean == pytest.approx(1 - drops["gbp"][3])
    assert {line[0] for line in tables["alone"].rows} == {line[0] for line in tables["absolute"].rows} == {"gbp", "lrp"}
    again = BENCH.summarise(read_table(finished.folder / "results.csv"))
    assert again.record() == finished.findings.record()
    assert (finished.folder / "report.html").read_text(encoding="utf-8").count("last layer") > 3


def test_a_cut_run_is_resumed_with_the_same_weights(finished, photos, tmp_path):
    lines = (finished.folder / "rows.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "settings.json").write_bytes((finished.folder / "settings.json").read_bytes())
    (tmp_path / "rows.jsonl").write_bytes(b"".join(lines[:-12]))
    check(photos, tmp_path, resume=True)
    assert (tmp_path / "results.csv").read_bytes() == (finished.folder / "results.csv").read_bytes()


def scores(batch):
    return np.tile(np.float32([0.3, 0.7]), (len(batch), 1))


@pytest.mark.parametrize(
    ("model", "changes", "message"),
    [
        (scores, {}, "has no torch module: load it as torch:FILE.py:BUILD"),
        (lambda batch: np.ones(len(batch), np.int64), {}, "has no torch module"),
        ("bundled", {"request": Request(confidence=0.5)}, "has no use for confidence"),
        ("bundled", {"request": Request(target=1)}, "has no use for target"),
    ],
)
def test_what_cannot_be_checked_is_refused_in_one_line(model, changes, message, tmp_path):
    with pytest.raises(OptionError, match=message) as caught:
        run("sanity", model, methods="random", out=tmp_path / "run", **changes)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_permuted_labels_change_maps_and_not_the_controls(tmp_path, monkeypatch, capsys):
    spec = importlib.util.spec_from_file_location("sanity_labels", SCRIPT)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    monkeypatch.setattr(script, "SCENES", 14)
    monkeypatch.setattr(script, "HELD_OUT", 4)
    monkeypatch.setattr("sys.argv", ["x", "--images", "2", "--methods", "ig:steps=5", "--out", str(tmp_path / "rows.csv")])
    script.main()
    rows = read_table(tmp_path / "rows.csv")
    assert len(rows) == 2 * 2 * 4
    kept = {(row["method"], row["by"]): row["rank"] for row in rows}
    assert kept["edges", "labels"] == kept["ig:steps=5", "seed"] == 1.0
    assert kept["ig:steps=5", "labels"] < 0.95
    assert "permuted labels" in capsys.readouterr().out

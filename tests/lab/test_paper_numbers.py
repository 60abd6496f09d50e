"""Figures of docs/paper.md are what the stored rows give: each is computed again, and looked for in its claim."""

import csv
import json
import re
import tomllib
from functools import cache
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from becausal.lab.rows import finite_values, read_table, successful

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "benchmarks" / "results"
NETWORKS = ("mobilenet", "squeezenet", "efficientnet")
GREYS = ("black", "#202020", "#404040", "#606060", "grey", "#a0a0a0", "#c0c0c0", "white")
FEW, LITERAL = "dc-causal:partitions=5:literal=true", "dc-causal:literal=true"


@cache
def rows_of(run):
    return successful(read_table(KEPT / f"bench-{run}.csv"))


def mean(run, method, key, **others):
    rows = [row for row in rows_of(run) if row["method"] == method and all(row[k] == v for k, v in others.items())]
    return float(np.mean(finite_values(rows, key)))


def percent(value):
    """As the pages write shares: two digits below 1 %, else one."""
    return f"{100 * value:.2f}" if value < 0.00995 else f"{100 * value:.1f}"


def whole(value):
    return f"{100 * value:.0f}"


def bombs(network, method, key):
    return mean(f"photobombing-{network}-published", method, key)


def pandas(network, key, method="dc-causal"):
    return mean(f"roaming-panda-{network}-published", method, key)


def claim(number):
    text = (ROOT / "docs" / "paper.md").read_text(encoding="utf-8")
    return re.search(rf"^\| {number} \|.*$", text, re.MULTILINE)[0]


def variants(key, variant="as in the paper"):
    with (KEPT / "optimal.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["variant"] == variant]
    return {
        "greedy minimal": np.mean([float(row["greedy_minimal"]) for row in rows]),
        "minimal": np.mean([float(row["minimal"]) for row in rows]),
        "greedy smallest": np.mean([row["greedy"] == row["smallest"] for row in rows]),
        "smallest": np.mean([row["minimised"] == row["smallest"] for row in rows]),
    }[key]


def growth(part):
    found = json.loads((KEPT / "growth.json").read_text())[part]
    return [f"{int(row['calls'] + 0.5):,}" for row in found if row.get("method", "dc-causal") == "dc-causal"]


def converge(key, digits, step):
    """For all networks, at N = step of 100."""
    runs = [*(f"convergence-{network}" for network in NETWORKS), "convergence-bundled-dc-causal"]
    return [digits(mean(run, "dc-causal", key, step=step)) for run in runs]


def greys(run, method, key, digits=percent):
    means = [mean(run, method, key, fill=fill) for fill in GREYS if key != "like_grey" or fill != "grey"]
    return [digits(min(means)), digits(max(means))]


def all_bombs(key, digits, *methods):
    return [digits(bombs(network, method, key)) for network in NETWORKS for method in methods]


def reading(variant, key):
    """The mean of a setting on the 100 photographs."""
    with (KEPT / "readings.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if (row["model"], row["variant"]) == ("mobilenet_v2", variant)]
    return float(np.mean([float(row[key]) if key != "clear" else float(row["overlap"]) == 0 for row in rows]))


RISE = "rise:masks=8000"
PANDAS = ("rap", "sbfl", "dc-causal", "extremal", RISE, "lrp", "gbp", "ig")
FIGURES = {
    11: lambda: [whole(variants("greedy minimal")), percent(variants("minimal"))],
    12: lambda: [whole(variants("greedy smallest")), whole(variants("smallest"))],
    22: lambda: [whole(variants("smallest", "redraw 10 times")), whole(variants("smallest"))],
    35: lambda: [
        whole(mean("exact-bundled", LITERAL, "optimal")), whole(mean("exact-bundled", "causal", "optimal")),
        whole(variants("smallest")), percent(variants("minimal")),
    ],
    28: lambda: [whole(reading(variant, "clear")) for variant in ("distributed", "distributed, cut through one point")],
    38: lambda: [
        *converge("map_agreement", "{:.2f}".format, 10), *converge("map_agreement", "{:.2f}".format, 50),
        *converge("set_agreement", whole, 50),
    ],
    41: lambda: growth("sides"),
    42: lambda: growth("partitions"),
    44: lambda: [
        f"{bombs('mobilenet', 'lime', 'calls'):,.0f}", f"{reading('distributed', 'calls'):,.0f}",
        *(digits(bombs("mobilenet", method, key)) for method in ("lime", "dc-causal")
          for key, digits in (("size", percent), ("clear", whole))),
    ],
    54: lambda: all_bombs("clear", whole, "dc-causal", "causal"),
    55: lambda: all_bombs("clear", whole, RISE),
    56: lambda: all_bombs("size", percent, "dc-causal", RISE, "sbfl"),
    57: lambda: [f"{100 * (bombs(n, 'dc-causal', 'size') - bombs(n, RISE, 'size')):.1f}" for n in NETWORKS],
    58: lambda: all_bombs("overlap", percent, "dc-causal", RISE),
    59: lambda: all_bombs("clear", whole, "sbfl"),
    62: lambda: [
        *greys("fills-mobilenet", "causal", "covered"), *greys("fills-mobilenet", "causal", "overlap"),
        *greys("fills-bundled", "causal", "covered"), *greys("fills-bundled", "causal", "overlap"),
        *(figure for run in ("bundled", "mobilenet") for key in ("covered", "overlap")
          for figure in greys(f"fills-{run}-dc-causal", "dc-causal", key)),
    ],
    60: lambda: [
        *(whole(bombs("mobilenet", method, "clear")) for method in ("ig", "grad-cam", "sbfl", "lime")),
    ],
    63: lambda: [
        *greys("fills-mobilenet", "causal", "like_grey", whole), *greys("fills-mobilenet", "causal", "backgrounds", whole),
        *greys("fills-bundled-dc-causal", "dc-causal", "like_grey", whole),
        *greys("fills-bundled-dc-causal", "dc-causal", "backgrounds", whole),
        *greys("fills-mobilenet-dc-causal", "dc-causal", "like_grey", whole),
        *greys("fills-mobilenet-dc-causal", "dc-causal", "backgrounds", whole),
    ],
    64: lambda: [
        *(whole(pandas(n, "found")) for n in NETWORKS), *(f"{pandas(n, 'iou'):.2f}" for n in NETWORKS),
        percent(pandas("squeezenet", "size")),
        *(whole(pandas(n, "found", method)) for n, method in (
            ("mobilenet", "rap"), ("mobilenet", "lrp"), ("squeezenet", "ig"), ("squeezenet", "gbp"),
            ("efficientnet", "rap"), ("efficientnet", "lrp"))),
    ],
    65: lambda: [whole(pandas("mobilenet", "found", method)) for method in PANDAS],
    67: lambda: [
        whole(mean("occlusion-squeezenet", "dc-causal", "size")), *span("occlusion", FEW, "size"),
    ],
    68: lambda: span("occlusion", "sbfl:mutants=500", "size"),
    69: lambda: [
        whole(mean("occlusion-squeezenet", "dc-causal", "right_20")), *span("occlusion", FEW, "right_20"),
    ],
    70: lambda: [
        *span("occlusion", "sbfl:mutants=500", "right_20"),
        *(whole(mean("occlusion-squeezenet", method, "right_20")) for method in ("dc-causal", "sbfl:mutants=500")),
    ],
    71: lambda: [
        *(whole(mean(f"misclassified-{n}", "dc-causal", key, kind=kind))
          for n in NETWORKS for key in ("size", "overlap") for kind in ("wrong", "right")),
        *(whole(mean("misclassified-mobilenet", "causal", "overlap", kind=kind)) for kind in ("wrong", "right")),
    ],
    73: lambda: [whole(pandas(n, "found", m)) for m in ("sbfl", "rap", "lrp") for n in NETWORKS],
}  # fmt: skip


def span(bench, method, key, digits=whole):
    """The least and the largest mean with the three networks."""
    found = [mean(f"{bench}-{network}", method, key) for network in NETWORKS]
    return [digits(min(found)), digits(max(found))]


ANSWERS = {
    "photobombing": lambda: [
        *span("photobombing", "causal", "clear"), *all_bombs("clear", whole, "dc-causal", LITERAL, RISE),
        *all_bombs("size", percent, "dc-causal", RISE), *FIGURES[58](),
    ],
    "roaming-panda": lambda: [
        *span("roaming-panda", "causal", "size", lambda value: f"{100 * value:.1f}"),
        *(whole(pandas(n, "found")) for n in NETWORKS),
        *(whole(pandas(n, "map_found", method)) for n in NETWORKS for method in ("dc-causal", "causal", RISE)),
    ],
    "misclassified": lambda: [
        *(whole(mean(f"misclassified-{n}", "dc-causal", "size", kind=kind))
          for n in NETWORKS for kind in ("wrong", "right")),
        *(digits(f([mean(f"misclassified-{n}", "dc-causal", "overlap", kind=kind) for n in NETWORKS]))
          for kind, digits in (("wrong", whole), ("right", percent)) for f in (min, max)),
    ],
    "convergence": lambda: [
        *("{:.2f}".format(f([mean(f"convergence-{n}", "dc-causal", "map_agreement", step=step) for n in NETWORKS]))
          for step in (10, 50) for f in (min, max)),
        *(whole(f([mean(f"convergence-{n}", "dc-causal", "set_agreement", step=50) for n in NETWORKS])) for f in (min, max)),
    ],
    "occlusion": lambda: [
        *span("occlusion", "causal", "size", percent),
        *(figure for number in (67, 68, 69, 70) for figure in FIGURES[number]()),
    ],
    "scenes": lambda: [whole(mean("scenes-bundled", m, "precision")) for m in ("causal", "dc-causal")],
    "exact": lambda: [whole(mean("exact-bundled", m, "optimal")) for m in ("causal", LITERAL)],
    "fills": lambda: FIGURES[62](),
}  # fmt: skip


@pytest.mark.parametrize(
    ("network", "title"),
    [("mobilenet", "MobileNetV2"), ("squeezenet", "SqueezeNet"), ("efficientnet", "EfficientNet-Lite0")],
)
def test_the_two_readings_differ_as_the_page_says(network, title):
    text = (ROOT / "docs" / "paper.md").read_text(encoding="utf-8")
    line = re.search(rf"^\| {title} \|.*$", text, re.MULTILINE)[0]
    for key in ("clear", "size"):
        both = [bombs(network, method, key) for method in ("dc-causal", LITERAL)]
        look_for([*map(percent, both), f"{100 * (both[0] - both[1]):.1f}".lstrip("-")], line)


@pytest.mark.parametrize("bench", ANSWERS)
def test_the_figures_of_an_answer_are_those_of_the_rows(bench):
    text = tomllib.loads((ROOT / "benchmarks" / "results_words.toml").read_text(encoding="utf-8"))["overview"][bench][
        "answer"
    ]
    look_for(ANSWERS[bench](), text)


@pytest.mark.parametrize("number", FIGURES)
def test_the_figures_of_a_claim_are_those_of_the_rows(number):
    look_for(FIGURES[number](), claim(number))


def look_for(figures, text):
    missing = [figure for figure in figures if not re.search(rf"(?<![\d.,]){re.escape(figure)}(?![\d]|[.,]\d)", text)]
    assert not missing, f"{missing} are not in: {text}"


@pytest.mark.parametrize(("script", "page"), [("stability", "results-quantus"), ("readings", "paper")])
def test_a_table_is_what_its_script_prints(script, page, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    with (KEPT / f"{script}.csv").open(newline="") as file:
        lines = import_module(script).write_lines(list(csv.DictReader(file)))
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8").splitlines()
    assert lines
    assert not [line for line in lines if line not in text]


def test_nothing_in_the_claims_waits_for_a_figure():
    assert set(re.findall(r"[A-Z]{6,}", (ROOT / "docs" / "paper.md").read_text(encoding="utf-8"))) <= {"README"}

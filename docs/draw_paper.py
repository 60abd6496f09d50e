"""Draw the figures of docs/paper.md, after those of the paper.

    python docs/draw_paper.py [FOLDER [NAME ...]]

Writes paper-NAME.png for each row of FIGURES into the folder, docs/images by default. `refinement`, `partitions` and
`misclassified` explain generated scenes with the bundled classifier; the others are drawn from rows in benchmarks/results.
"""

import csv
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from draw_search import KEPT, LOST, write
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import PercentFormatter
from numpy.typing import NDArray

import becausal
from becausal.core.contracts import Classifier, Grid
from becausal.core.problem import Problem
from becausal.core.regions import Region
from becausal.core.targets import Target
from becausal.engine.engine import Engine
from becausal.images.fills import make_background
from becausal.images.loading import load_image, make_view
from becausal.lab.page import STYLES
from becausal.lab.rows import Row, by_method, finite_values, group_rows, read_table, successful
from becausal.lab.tables import cumulative_plot, estimate
from becausal.methods.causal.refinement import DcCausal, degrees, masked_table
from becausal.render.colours import INK, SOFT
from becausal.render.figures import new_figure
from becausal.render.painting import Painted, paint_explanation, paint_image, paint_map
from becausal.render.sheets import lay_out
from becausal.scenes import Scene, make_scene
from becausal.scenes.scene import LABELS

ROWS = Path(__file__).parent.parent / "benchmarks" / "results"
SEED = 125  # a mug behind two stones, the scene of the README
STEPS = (1, 2, 5, 10, 20, 50, 100)
IN_PAPER = ("dc-causal", "rise", "sbfl", "rap", "gbp", "lrp", "extremal", "ig")
NETWORKS = {
    "photobombing-mobilenet": "MobileNetV2",
    "photobombing-squeezenet": "SqueezeNet",
    "photobombing-efficientnet": "EfficientNet-Lite0",
}
LABELLED = ("share of the occluder in the explanation, at most", "size: share of the image, at most")
GREYS = {"black": 0, "#202020": 32, "#404040": 64, "#606060": 96, "grey": 128, "#a0a0a0": 160, "#c0c0c0": 192, "white": 255}

PARTITION = 11  # of the 50, the first that is refined three times
SMALLEST_LABEL = 11  # px, the side of a part that has its degree written into it
DEPTHS = ("four superpixels", "refined", "refined again")
#: The first four scenes of the bench `misclassified` whose wrong prediction can be explained, and their labels.
MISTAKES = {60000044: "key", 60000062: "house", 60000179: "traffic light", 60000182: "house"}
SWEPT = {"parts": 4, "smallest": 0.1, "redraw": 0}  # the options that were varied, and their defaults


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "images"
    for name, draw in FIGURES.items():
        if name in (sys.argv[2:] or FIGURES):
            write(folder / f"paper-{name}.png", draw())


@dataclass(frozen=True)
class Refined:
    """A region that was divided: its parts, their degrees, and which of the mutants keep the label, (2^parts,)."""

    parts: tuple[Region, ...]
    degrees: list[float]
    holds: NDArray[np.bool_]


def refine(scene: Scene, model: Classifier, number: int) -> Iterator[list[Refined]]:
    """Algorithm 2, depth by depth, for one of the partitions that `dc-causal` draws with seed 0."""
    view = make_view(load_image(scene.image), model.info.geometry).pixels
    background = make_background("grey", view, rng=np.random.default_rng(0))
    problem, engine = Problem(view, (background,), Target(scene.label_index)), Engine(model)
    own = np.random.default_rng(0).spawn(2)[0].spawn(number + 1)[number]
    plan = DcCausal(partitions=1)._refine(problem.grid, own)
    partitions = next(plan)
    while True:
        waves = [np.stack([mask(problem.grid, parts, row) for row in masked_table(len(parts))]) for parts in partitions]
        holds = [engine.ask_uncached(problem, wave).holds for wave in waves]
        pairs = zip(partitions, holds, strict=True)
        yield [Refined(parts, degrees(held, len(parts)).tolist(), held) for parts, held in pairs]
        try:
            partitions = plan.send(holds) or []
        except StopIteration:
            return


def mask(grid: Grid, parts: tuple[Region, ...], masked: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """What is visible of the grid where these parts are masked."""
    visible = np.ones(grid, bool)
    for part, is_masked in zip(parts, masked, strict=True):
        visible[part.slices] &= not is_masked
    return visible


def draw_refinement() -> Figure:
    """Top: the parts of one partition with their degrees, depth by depth. Bottom: the mutants of the first depth."""
    scene, model = make_scene(SEED), becausal.load_model("bundled", threads=1)
    depths = list(refine(scene, model, PARTITION))
    view = make_view(load_image(scene.image), model.info.geometry).pixels
    figure = new_figure(8.6, 5.2)
    grid = figure.add_gridspec(4, 24)
    for depth, title in enumerate(DEPTHS):
        axes = figure.add_subplot(grid[:2, 8 * depth : 8 * depth + 8])
        axes.imshow(view, interpolation="antialiased")
        for one in depths[depth]:
            for part, degree in zip(one.parts, one.degrees, strict=True):
                label_part(axes, part, degree)
        axes.set_title(f"{title}: {sum(len(one.holds) for one in depths[depth])} mutants", fontsize=9, color=INK)
        axes.set_axis_off()
    first = depths[0][0]
    for i, (row, held) in enumerate(zip(masked_table(4), first.holds, strict=True)):
        axes = figure.add_subplot(grid[2 + i // 8, 3 * (i % 8) : 3 * (i % 8) + 3])
        axes.imshow(np.where(mask(view.shape[:2], first.parts, row)[..., None], view, 128), interpolation="antialiased")
        frame(axes, KEPT if held else LOST)
    return figure


def label_part(axes: Axes, part: Region, degree: float) -> None:
    """Outline a part and write its degree into it; parts with the degree 0 are paler."""
    (top, left), (height, width) = part.start, part.shape
    colour = INK if degree else "#8d8a86"
    axes.add_patch(Rectangle((left - 0.5, top - 0.5), width, height, fill=False, ec=colour, lw=1.3 if degree else 0.7))
    text = {1.0: "1", 0.0: "0"}.get(degree, f"1/{round(1 / degree)}" if degree else "")
    where = left + width / 2, top + height / 2
    if min(height, width) >= SMALLEST_LABEL:
        back = {"boxstyle": "round,pad=0.15", "fc": "#ffffffb0", "ec": "none"}
        axes.text(*where, text, ha="center", va="center", fontsize=min(10, 4 + width / 5), color=INK, bbox=back)


def frame(axes: Axes, colour: str) -> None:
    axes.set(xticks=(), yticks=())
    for side in axes.spines.values():
        side.set(visible=True, color=colour, linewidth=2.2)


def draw_partitions() -> Figure:
    """The scene, and its maps by `dc-causal` for growing numbers of partitions."""
    scene, model = make_scene(SEED), becausal.load_model("bundled", threads=1)
    found = [
        becausal.explain(scene.image, model, method="dc-causal", smallest=True, options={"partitions": n}) for n in STEPS
    ]
    sheets = [lay_out(each) for each in found]
    panels = [(paint_image(sheets[-1]), "image")]
    panels += [
        (paint_map(sheet), f"N = {n}: {each.calls:,} calls, {100 * each.size:.1f} %")
        for n, each, sheet in zip(STEPS, found, sheets, strict=True)
    ]
    figure = new_figure(8.6, 4.7)
    for axes, (painted, title) in zip(figure.subplots(2, 4).ravel(), panels, strict=True):
        axes.imshow(painted, interpolation="antialiased")
        axes.set_title(title, fontsize=9, color=INK)
        axes.set_axis_off()
    return figure


def read_rows(name: str) -> list[Row]:
    """The rows of a stored run that are without an error."""
    return successful(read_table(ROWS / f"bench-{name}.csv"))


def draw_photobombing() -> Figure:
    """For each network and method the share of images with at most this overlap, and with at most this size."""
    figure = new_figure(8.6, 9.0)
    plots = figure.subplots(len(NETWORKS), 2, sharex="col", sharey=True)
    for (run, title), (overlap, size) in zip(NETWORKS.items(), plots, strict=True):
        rows = read_rows(f"{run}-published")
        known = {method.split(":")[0] for method, _ in by_method(rows)}
        rows += [row for row in read_rows(run) if row["method"].split(":")[0] not in known]
        draw_curves(overlap, rows, "covered")
        draw_curves(size, rows, "size")
        overlap.set_ylabel(f"{title}: share of images", fontsize=8.5, color=SOFT)
    for axes, label in zip(plots[-1], LABELLED, strict=True):
        axes.set_xlabel(label, fontsize=8.5, color=SOFT)
    found = plots[0, 1].get_legend_handles_labels()
    figure.legend(*found, loc="outside right upper", frameon=False, fontsize=8, labelcolor=INK, handlelength=2.4)
    return figure


def draw_curves(axes: Axes, rows: list[Row], key: str) -> None:
    """One line for each method; those that the paper compares are thick."""
    for line in cumulative_plot(key, "", "", rows, key).lines:
        name, *options = line.label.split(":")
        colour, dash = STYLES[name]
        is_thick = name in IN_PAPER or name == "causal"
        if "literal=true" in options:
            colour, dash = STYLES["dc-causal"][0], ":"
        text = ", ".join([name, *options]).replace("literal=true", "literal")
        axes.step(line.x, line.y, where="post", color=colour, ls=dash, lw=2.0 if is_thick else 0.9, label=text)
    axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0, symbol=" %"))
    style(axes)


def draw_colours() -> Figure:
    """The mean intersection with the occluder for each grey from 0 to 255, as a share of the occluder and of the set."""
    figure = new_figure(8.6, 3.2)
    plots = figure.subplots(1, 2)
    runs = (
        ("fills-mobilenet", "causal, MobileNetV2, 100 photographs", "#7a3e9d", "-"),
        ("fills-bundled", "causal, bundled classifier, 100 scenes", "#7a3e9d", "--"),
        ("fills-mobilenet-dc-causal", "dc-causal, N = 50, MobileNetV2, 10 photographs", "#0072b2", "-"),
        ("fills-bundled-dc-causal", "dc-causal, N = 50, bundled classifier, 10 scenes", "#0072b2", "--"),
    )
    for axes, key, label in zip(plots, ("covered", "overlap"), ("of the occluder", "of the explanation"), strict=True):
        for run, name, colour, dash in runs:
            groups = {fill: part for (fill,), part in group_rows(read_rows(run), "fill").items() if fill in GREYS}
            found = [estimate(finite_values(groups[fill], key)) for fill in GREYS]
            x, y = list(GREYS.values()), np.array([each.mean for each in found])
            axes.plot(x, y, color=colour, ls=dash, marker="o", ms=3.5, lw=1.6, label=name)
        axes.set_xlabel("masking colour, 0 to 255", fontsize=8.5, color=SOFT)
        axes.set_ylabel(f"intersection, share {label}", fontsize=8.5, color=SOFT)
        axes.set_ylim(bottom=0)
        style(axes)
    plots[1].legend(loc="center", bbox_to_anchor=(0.5, 0.55), frameon=False, fontsize=8, labelcolor=INK)
    return figure


def draw_misclassified() -> Figure:
    """Scenes with a wrong label, and why they have it: by `causal`, and by `dc-causal` with 50 partitions."""
    model = becausal.load_model("bundled", threads=1)
    figure = new_figure(8.6, 7.0)
    columns = figure.subplots(3, len(MISTAKES)).T
    for (number, label), column in zip(MISTAKES.items(), columns, strict=True):
        scene = make_scene(number, label=label, cover=(0.4, 0.7))
        found = {
            method: becausal.explain(scene.image, model, method=method, smallest=True) for method in ("causal", "dc-causal")
        }
        name = LABELS[found["causal"].label_id]
        put(column[0], paint_image(lay_out(found["causal"])), f"{label}, taken for {name}")
        for axes, (method, one) in zip(column[1:], found.items(), strict=True):
            covered = np.count_nonzero(one.visible & to_view(scene.occluder, one.visible.shape)) / one.pixels
            text = f"{method}: {100 * one.size:.1f} %,\n{100 * covered:.0f} % of it on the occluder"
            put(axes, paint_explanation(lay_out(one)), text)
    return figure


def to_view(where: NDArray[np.bool_], grid: Grid) -> NDArray[np.bool_]:
    """A mask of the image on the grid of the view, by nearest neighbour."""
    rows, columns = (np.arange(side) * old // side for side, old in zip(grid, where.shape, strict=True))
    return where[np.ix_(rows, columns)]


def put(axes: Axes, painted: Painted, title: str) -> None:
    axes.imshow(painted, interpolation="antialiased")
    axes.set_title(title, fontsize=9, color=INK)
    axes.set_axis_off()


def draw_settings() -> Figure:
    """The mean size of explanations, and the calls, for values of three options."""
    with (ROWS / "readings.csv").open(newline="") as file:
        groups = group_rows([row for row in csv.DictReader(file) if row["model"] == "bundled"], "variant")
    swept = {}
    for option, default in SWEPT.items():
        points = {float(name.split("=")[1]): part for (name,), part in groups.items() if name.startswith(f"{option}=")}
        swept[option] = dict(sorted({**points, float(default): groups[("distributed",)]}.items()))
    figure = new_figure(8.6, 2.9)
    widths = {"width_ratios": [len(points) for points in swept.values()]}  # as many labels side by side
    plots = figure.subplots(1, len(swept), sharey=True, gridspec_kw=widths)
    for axes, (option, points) in zip(plots, swept.items(), strict=True):
        found = [estimate([float(row["size"]) for row in part]) for part in points.values()]
        means = [each.mean for each in found]
        spread = [[each.mean - each.low for each in found], [each.high - each.mean for each in found]]
        axes.errorbar(range(len(points)), means, spread, color="#0072b2", marker="o", ms=5, lw=1.4, elinewidth=1.0)
        calls = [np.mean([float(row["calls"]) for row in part]) for part in points.values()]
        texts = [f"{value:g}\n{mean:,.0f} calls" for value, mean in zip(points, calls, strict=True)]
        axes.set_title(option, fontsize=9, color=INK)
        axes.set_xlim(-0.5, len(points) - 0.5)
        axes.set_ylim(bottom=0)
        style(axes)
        axes.set_xticks(range(len(points)), texts)
        for tick, value in zip(axes.get_xticklabels(), points, strict=True):
            tick.set(fontsize=8, fontweight="bold" if value == SWEPT[option] else "normal")
    plots[0].set_ylabel("mean size of the explanation", fontsize=8.5, color=SOFT)
    return figure


def style(axes: Axes) -> None:
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0, symbol=" %"))
    axes.tick_params(length=0, labelsize=8.5, labelcolor=SOFT)
    axes.grid(True, color="#e9e6e1", lw=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


FIGURES: dict[str, Callable[[], Figure]] = {
    "refinement": draw_refinement,
    "partitions": draw_partitions,
    "photobombing": draw_photobombing,
    "colours": draw_colours,
    "misclassified": draw_misclassified,
    "settings": draw_settings,
}


if __name__ == "__main__":
    main()

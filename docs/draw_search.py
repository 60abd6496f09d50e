"""Draw the images of README.md and docs/how-it-works.md: one scene, its explanation, and the steps of the search.

    python docs/draw_search.py [FOLDER]

Writes hero.png, search-survey.png and search-steps.png into the folder, docs/images by default. The search is a
generator, so the script can run it wave by wave, like the engine, and record every step.
"""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch
from PIL import Image

import becausal
from becausal.api.explanation import Explanation
from becausal.core.contracts import Answers, Classifier, Finding, Question, Search, Visible
from becausal.core.problem import Problem
from becausal.core.request import SHARES
from becausal.core.targets import Target, quantise_margin, with_floor
from becausal.engine.engine import Engine
from becausal.images.fills import make_background
from becausal.images.loading import load_image, make_view
from becausal.methods.causal import levels, search
from becausal.methods.causal.search import Causal
from becausal.render.figures import INK, SOFT, new_figure, png_bytes
from becausal.render.painting import Painted, dilate, paint_explanation, paint_image, paint_map, paint_mutant
from becausal.render.sheets import Sheet, Tile, as_heat
from becausal.render.wording import format_confidence, format_count, format_share
from becausal.scenes import Scene, make_scene
from becausal.search.descent.survey import Survey

SEED, SIZE = 125, 512  # a mug behind two stones
KEPT, LOST = "#2c8a5b", "#c0483a"
T = TypeVar("T")


def write(path: Path, figure: Figure) -> None:
    """Save the figure with 256 colours: a third of the bytes, without a visible difference."""
    drawn = Image.open(BytesIO(png_bytes(figure))).convert("RGB")
    palette = drawn.quantize(256, method=Image.Quantize.FASTOCTREE)
    drawn.quantize(palette=palette, dither=Image.Dither.FLOYDSTEINBERG).save(path, optimize=True)


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "images"
    folder.mkdir(parents=True, exist_ok=True)
    scene, model = make_scene(SEED, size=SIZE), becausal.load_model("bundled")
    explanation = becausal.explain(scene.image, model)
    write(folder / "hero.png", draw_hero(scene, explanation))
    recorded = record_search(scene, model)
    found = np.stack([*recorded.finding.inner, recorded.finding.sets[0]])
    assert np.array_equal(found, [level.visible for level in explanation.levels]), "the recorded search is another one"
    write(folder / "search-survey.png", draw_survey(scene, explanation, recorded))
    write(folder / "search-steps.png", draw_steps(scene, explanation, recorded))
    halves = recorded.of("survey")
    held = sum(int(step.answers.holds.sum()) for step in halves)
    print(f"{len(recorded.survey.contribution)} patches; {held} of {sum(len(step.wave) for step in halves)} halves hold")
    for title, step in choose(recorded).items():
        print(f"{title}: {step.calls} model calls, {step.best.mean():.2%} visible")
    print(explanation)
    for level in explanation.levels:
        covered = np.count_nonzero(on(explanation, level.visible) & scene.occluder)
        print(level.name, level.checks, f"{covered} px of the original on the occluder")


@dataclass(frozen=True)
class SearchStep:
    """One wave of a stage with its answers, the best set of the stage so far, and the number of model calls so far."""

    stage: str
    wave: Visible
    answers: Answers
    best: Visible
    calls: int


@dataclass(frozen=True)
class RecordedSearch:
    """All steps of a search, the result of its survey, and what was found."""

    steps: list[SearchStep]
    survey: Survey
    finding: Finding

    def of(self, stage: str) -> list[SearchStep]:
        """The steps of one stage."""
        return [step for step in self.steps if step.stage == stage]


class Stages:
    """Follows which stage of the search asks; its `named` functions replace those of the search while it is recorded."""

    def __init__(self, names: list[str]) -> None:
        self.names = iter(names)
        self.stage = ""
        self.survey: Survey | None = None

    def named(self, function: Callable[..., Search[T]]) -> Callable[..., Search[T]]:
        """The same function, a search, under the next name."""

        def run(*given: Any, **options: Any) -> Search[T]:
            self.stage = next(self.names)
            result = yield from function(*given, **options)
            self.stage = ""
            self.survey = result if isinstance(result, Survey) else self.survey
            return result

        return run


ORDER = ["survey", "best", "patches", "larger", "parts", "label", "label", "label", "most", "half", "map"]


def record_search(scene: Scene, model: Classifier) -> RecordedSearch:
    """Run the default search wave by wave."""
    view = make_view(load_image(scene.image), model.info.geometry).pixels
    background = make_background("grey", view, rng=np.random.default_rng(0))
    confidence = float(model.classify(view[None])[0, scene.label_index])
    floors = dict(zip(("label", "half", "most"), (share * confidence for share in SHARES), strict=True))
    problem = Problem(view, (background,), Target(scene.label_index), floors=tuple(floors.values()))
    stages = Stages(ORDER)
    with (
        patch.object(search, "run_survey", stages.named(search.run_survey)),
        patch.object(search, "measure_effects", stages.named(search.measure_effects)),
        patch.object(levels, "restrict", stages.named(levels.restrict)),
        patch.object(levels, "settle", stages.named(levels.settle)),
        patch.object(levels, "settle_within", stages.named(levels.settle_within)),
        patch.object(levels.Chain, "shrink", stages.named(levels.Chain.shrink)),
    ):
        running = Causal().search(problem, np.random.default_rng(0).spawn(2)[0])
        steps, finding = record_steps(running, Engine(model), problem, stages, floors)
    assert stages.survey is not None
    return RecordedSearch(steps, stages.survey, finding)


def record_steps(
    running: Search[T], engine: Engine, problem: Problem, stages: Stages, floors: dict[str, float]
) -> tuple[list[SearchStep], T]:
    """Run a search wave by wave; returns every step, judged as its stage judges it, and the result."""
    steps: list[SearchStep] = []
    evaluated: set[bytes] = set()
    best: dict[float, Visible] = {}
    wave = Question.of(next(running)).visible
    while True:
        evaluated.update(visible.tobytes() for visible in wave)
        found = engine.ask_uncached(problem, wave)
        margin = quantise_margin(found.margin, found.holds)  # as the engine does
        answers = replace(found, margin=margin, spent=len(evaluated))
        floor = floors.get(stages.stage, floors["most"])
        judged = answers if stages.stage == "survey" else with_floor(answers, floor)
        held = [best.get(floor, np.ones(problem.grid, bool)), *wave[judged.holds]]
        best[floor] = min(held, key=np.sum)
        steps.append(SearchStep(stages.stage, wave, judged, best[floor], len(evaluated)))
        try:
            wave = Question.of(running.send(answers)).visible
        except StopIteration as end:
            return steps, end.value


def draw_hero(scene: Scene, explanation: Explanation) -> Figure:
    """The image, the map, the explanation."""
    sheet = as_sheet(scene, explanation, *(level.visible for level in explanation.levels))
    figure = new_figure(10.8, 4.0)
    axes = figure.subplots(1, 3)
    put(
        axes[0],
        paint_image(sheet),
        f"The classifier says {scene.label}.",
        f"confidence {format_confidence(explanation.confidence)}",
    )
    put(axes[1], paint_map(sheet), "Why?", "the order in which pixels are needed")
    alone = [f"{format_share(one.size)}: {format_confidence(one.checks.confidence)}" for one in explanation.levels]
    caption = f"confidence with {', '.join(dict.fromkeys(alone))}"
    put(axes[2], paint_explanation(sheet), "Because of these pixels.", caption)
    return figure


def draw_survey(scene: Scene, explanation: Explanation, recorded: RecordedSearch) -> Figure:
    """Top: patches, some sets of half of them, and their contributions. Bottom: the bisection to the best patches."""
    first, survey, bisection = recorded.of("survey")[0], recorded.survey, recorded.of("best")
    figure = new_figure(12.4, 5.3)
    columns = max(len(bisection), 5)
    axes = figure.subplots(2, columns)
    for one in axes.flat:
        one.set_axis_off()
    borders = paint_borders(scene, on(explanation, survey.patch))
    put(axes[0, 0], borders, f"{len(survey.contribution)} patches", "along the image's edges", size=8)
    half = len(first.wave) // 2
    for i, row in enumerate(pairs(half, columns - 2)):
        put_mutant(axes[0, i + 1], scene, explanation, first, row)
    total = sum(len(step.wave) for step in recorded.of("survey"))
    title = f"{columns - 2} of {total} halves, each with its complement"
    axes[0, 1].set_title(title, loc="left", fontsize=9.5, color=INK, pad=6)
    contribution = on(explanation, np.clip(survey.contribution, 0, None)[survey.patch])  # negative values shown as 0
    sheet = replace(as_sheet(scene, explanation, np.zeros(survey.patch.shape, bool)), heat=as_heat(contribution))
    put(axes[0, -1], paint_map(sheet), "contributions", "by a linear model", size=8)
    counts = [len(np.unique(survey.patch[step.wave[0]])) for step in bisection]
    for one, step, count in zip(axes[1], bisection, counts, strict=False):
        put_mutant(one, scene, explanation, step, 0)
        one.set_title(f"best {count}", loc="left", fontsize=9.5, color=INK, pad=6)
    return figure


def pairs(half: int, count: int) -> Iterator[int]:
    """Rows of the survey's design, each followed by its complement."""
    return iter([row + side * half for row in range(1, count) for side in (0, 1)][:count])


def draw_steps(scene: Scene, explanation: Explanation, recorded: RecordedSearch) -> Figure:
    """Top: the mutants of the first round. Bottom: the smallest sufficient set at several moments, and the map."""
    first, shown = next(step for step in recorded.of("parts") if len(step.wave) > 1), choose(recorded)
    columns, panels = len(first.wave), len(shown) + 1
    figure = new_figure(12.4, 4.2)
    grid = figure.add_gridspec(2, columns * panels, height_ratios=(1.0, 1.3))
    for i in range(columns):
        put_mutant(figure.add_subplot(grid[0, i * panels : (i + 1) * panels]), scene, explanation, first, i)
    lower = [figure.add_subplot(grid[1, i * columns : (i + 1) * columns]) for i in range(panels)]
    for axes, (title, step) in zip(lower, shown.items(), strict=False):
        caption = f"{format_count(step.calls, 'call')}, {format_share(float(step.best.mean()))} visible"
        put(axes, paint_explanation(as_sheet(scene, explanation, step.best)), title, caption, size=8)
    sheet = as_sheet(scene, explanation, *recorded.finding.inner, recorded.finding.sets[0])
    put(lower[-1], paint_map(sheet), "levels and map", format_count(recorded.steps[-1].calls, "call"), size=8)
    return figure


def choose(recorded: RecordedSearch) -> dict[str, SearchStep]:
    """The set at the end of each stage, by title."""
    last = {stage: recorded.of(stage)[-1] for stage in ("best", "patches", "larger", "parts", "label", "most")}
    patches = len(np.unique(recorded.survey.patch[last["best"].best]))
    return {
        f"best {patches} patches": last["best"],
        "patches removed": last["patches"],
        "cells of 10 px": last["larger"],
        "parts removed": last["parts"],
        "inside: label": last["label"],
        "around it: most": replace(last["most"], best=recorded.finding.sets[0]),
    }


def paint_borders(scene: Scene, patch: np.ndarray) -> Painted:
    """The image with the borders of the patches."""
    border = np.zeros(patch.shape, bool)
    border[1:] |= patch[1:] != patch[:-1]
    border[:, 1:] |= patch[:, 1:] != patch[:, :-1]
    return np.where(dilate(border, 1)[..., None], np.uint8(255), scene.image)


def as_sheet(scene: Scene, explanation: Explanation, *nested: Visible) -> Sheet:
    """The scene at its own resolution, with nested sets, the smallest first, and the map, resized from the view."""
    grey = np.full_like(scene.image, 128)
    *inner, visible = (on(explanation, one) for one in nested)
    heat = on(explanation, as_heat(explanation.responsibility))
    whole = np.ones(heat.shape, bool)
    return Sheet(scene.image, grey, visible, heat, whole, (Tile(0, 0, ""),), 1, inner=tuple(inner))


def on(explanation: Explanation, values: np.ndarray) -> np.ndarray:
    return np.asarray(explanation.on_original(values))


def put(axes: Axes, painted: Painted, title: str, caption: str, *, size: float = 10) -> None:
    """Draw a panel without ticks, with a title above and a caption below."""
    axes.imshow(painted, interpolation="antialiased")
    axes.set_axis_off()
    if title:
        axes.set_title(title, loc="left", fontsize=size + 1.5, color=INK, pad=6)
    axes.text(0, -0.03, caption, transform=axes.transAxes, va="top", fontsize=size - 0.5, color=SOFT)


def put_mutant(axes: Axes, scene: Scene, explanation: Explanation, step: SearchStep, i: int) -> None:
    """Draw one mutant of a wave, with a green frame if it keeps the target, else a red one."""
    visible, kept = step.wave[i], bool(step.answers.holds[i])
    painted = paint_mutant(as_sheet(scene, explanation, visible), on(explanation, visible))
    caption = f"{'kept' if kept else 'lost'}, confidence {format_confidence(float(step.answers.confidence[i]))}"
    put(axes, painted, "", caption, size=7.5)
    frame(axes, KEPT if kept else LOST)


def frame(axes: Axes, colour: str) -> None:
    box = FancyBboxPatch(
        (0, 0), 1, 1, "square,pad=0", transform=axes.transAxes, fill=False, linewidth=3, edgecolor=colour, clip_on=False
    )
    axes.add_patch(box)


if __name__ == "__main__":
    main()

"""Draw the images of README.md and docs/how-it-works.md: one scene, its explanation, and the steps of the search.

    python docs/draw_search.py [FOLDER]

Writes hero.png, search-survey.png and search-steps.png into the folder, docs/images by default. The search is a
generator, so the script can run it wave by wave, like the engine, and record every step.
"""

import sys
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import TypeVar

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch
from PIL import Image

import becausal
from becausal.api.explanation import Explanation
from becausal.core.contracts import Answers, Classifier, Finding, Search, Visible
from becausal.core.problem import Problem
from becausal.core.targets import Target
from becausal.engine.engine import Engine
from becausal.images.fills import make_background
from becausal.images.loading import load_image, make_view
from becausal.methods.causal.search import Causal
from becausal.methods.causal.survey import Survey, run_survey
from becausal.methods.causal.tuning import Tuning
from becausal.render.figures import INK, SOFT, new_figure, png_bytes
from becausal.render.painting import Painted, dilate, paint_explanation, paint_image, paint_map, paint_mutant
from becausal.render.sheets import Sheet, Tile, as_level
from becausal.render.wording import format_confidence, format_count, format_share
from becausal.scenes import Scene, make_scene

SEED, SIZE = 107, 512  # a sailboat behind strips
SHARE = 0.9  # of the original confidence
GRAIN, FINER = 8, 4  # side of a cell in pixels of the view: for the explanation; for the map and the recorded search
SEARCHES = 24  # seeds 0 to 23: the mean of their maps, and the explanation that agrees best with it
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
    explanation = average_searches(scene, model)
    write(folder / "hero.png", draw_hero(scene, explanation))
    recorded = record_search(scene, model)
    write(folder / "search-survey.png", draw_survey(scene, explanation, recorded))
    write(folder / "search-steps.png", draw_steps(scene, explanation, recorded))
    held = sum(int(step.answers.holds.sum()) for step in recorded.survey_steps)
    print(f"{len(recorded.survey.contribution)} patches; {held} of {recorded.survey_steps[-1].calls} random halves hold")
    for title, step in choose(recorded).items():
        print(f"{title}: {step.calls} model calls, {step.best.mean():.2%} visible")
    covered = np.count_nonzero(on(explanation, explanation.visible) & scene.occluder)
    print(explanation, explanation.checks, f"{covered} px of the original on the strips")


def average_searches(scene: Scene, model: Classifier) -> Explanation:
    """The mean map of several searches, above its upper quartile, with one of their explanations.

    It is the explanation whose pixels have the highest mean responsibility in that map.
    """

    def search(grain: int, seed: int) -> Explanation:
        return becausal.explain(scene.image, model, confidence=SHARE, grain=grain, seed=seed)

    mean = np.mean([search(FINER, seed).responsibility for seed in range(SEARCHES)], axis=0)
    found = [search(GRAIN, seed) for seed in range(SEARCHES)]
    best = max(found, key=lambda one: float(mean[one.visible].mean()))
    return replace(best, responsibility=np.clip(mean - np.quantile(mean, 0.75), 0, None))


@dataclass(frozen=True)
class SearchStep:
    """One wave with its answers, the smallest sufficient set so far, and the number of model calls so far."""

    wave: Visible
    answers: Answers
    best: Visible
    calls: int


@dataclass(frozen=True)
class RecordedSearch:
    """All steps of a search: the survey and its result, the bisection, the descent; and what was found."""

    survey_steps: list[SearchStep]
    survey: Survey
    bisection: list[SearchStep]
    descent: list[SearchStep]
    finding: Finding


def record_search(scene: Scene, model: Classifier) -> RecordedSearch:
    """Run the search wave by wave, and the survey a second time, to get its result."""
    view = make_view(load_image(scene.image), model.info.geometry).pixels
    background = make_background("grey", view, rng=np.random.default_rng(0))
    confidence = float(model.classify(view[None])[0, scene.label_index])
    problem = Problem(view, (background,), Target(scene.label_index, floor=SHARE * confidence))
    explainer, rng = Causal(grain=FINER), np.random.default_rng(0).spawn(2)[0]
    steps, finding = record_steps(explainer.search(problem, rng), Engine(model), problem)
    tuning, rng = explainer.tuning, np.random.default_rng(0).spawn(2)[0].spawn(1)[0]
    again = run_survey(view, samples=tuning.survey, patches=tuning.patches, rng=rng)
    survey_steps, survey = record_steps(again, Engine(model), problem)
    start = len(survey_steps)  # the search begins with the survey
    rounds = next(i for i in range(start, len(steps)) if len(steps[i].wave) > 1)  # waves of the bisection have one set
    bisection = steps[start : rounds - 1]  # the next wave is the start of the chain
    return RecordedSearch(steps[:start], survey, bisection, steps[rounds - 1 :], finding)


def record_steps(search: Search[T], engine: Engine, problem: Problem) -> tuple[list[SearchStep], T]:
    """Run a search wave by wave; returns every step and the result."""
    steps: list[SearchStep] = []
    evaluated: set[bytes] = set()
    best = np.ones(problem.grid, bool)
    wave = next(search)
    while True:
        evaluated.update(visible.tobytes() for visible in wave)
        answers = replace(engine.ask_uncached(problem, wave), spent=len(evaluated))
        best = min([best, *wave[answers.holds]], key=np.sum)
        steps.append(SearchStep(wave, answers, best, len(evaluated)))
        try:
            wave = search.send(answers)
        except StopIteration as end:
            return steps, end.value


def draw_hero(scene: Scene, explanation: Explanation) -> Figure:
    """The image, the map, the explanation."""
    sheet = as_sheet(scene, explanation, explanation.visible)
    figure = new_figure(10.8, 4.0)
    axes = figure.subplots(1, 3)
    put(
        axes[0],
        paint_image(sheet),
        f"The classifier says {scene.label}.",
        f"confidence {format_confidence(explanation.confidence)}",
    )
    put(axes[1], paint_map(sheet), "Why?", f"responsibility, mean of {SEARCHES} searches")
    size = f"{format_share(explanation.size)} of the pixels, {format_count(explanation.pieces, 'piece')}"
    caption = f"{size}, confidence {format_confidence(explanation.checks.confidence)}"
    put(axes[2], paint_explanation(sheet), "Because of these pixels.", caption)
    return figure


def draw_survey(scene: Scene, explanation: Explanation, recorded: RecordedSearch) -> Figure:
    """Top: patches, some random halves of them, and their contributions. Bottom: the bisection to the best patches."""
    first, survey = recorded.survey_steps[0], recorded.survey
    figure = new_figure(12.4, 6.0)
    columns = max(len(recorded.bisection), 5)
    axes = figure.subplots(2, columns)
    for one in axes.flat:
        one.set_axis_off()
    borders = paint_borders(scene, on(explanation, survey.patch))
    put(axes[0, 0], borders, f"{len(survey.contribution)} patches", "along the image's edges", size=8)
    for i in range(columns - 2):
        put_mutant(axes[0, i + 1], scene, explanation, first, i)
    title = f"{columns - 2} of {recorded.survey_steps[-1].calls} random halves"
    axes[0, 1].set_title(title, loc="left", fontsize=9.5, color=INK, pad=6)
    contribution = on(explanation, np.clip(survey.contribution, 0, None)[survey.patch])  # negative values shown as 0
    sheet = replace(as_sheet(scene, explanation, np.zeros(survey.patch.shape, bool)), level=as_level(contribution))
    put(axes[0, -1], paint_map(sheet), "contributions", "by a linear model", size=8)
    counts = [len(np.unique(survey.patch[step.wave[0]])) for step in recorded.bisection]
    for one, step, count in zip(axes[1], recorded.bisection, counts, strict=False):
        put_mutant(one, scene, explanation, step, 0)
        one.set_title(f"best {count}", loc="left", fontsize=9.5, color=INK, pad=6)
    return figure


def draw_steps(scene: Scene, explanation: Explanation, recorded: RecordedSearch) -> Figure:
    """Top: the mutants of the first round. Bottom: the smallest sufficient set at several moments, and the map."""
    first, shown = recorded.descent[1], choose(recorded)
    columns, panels = len(first.wave), len(shown) + 1
    figure = new_figure(12.4, 4.9)
    grid = figure.add_gridspec(2, columns * panels, height_ratios=(1.0, 1.45))
    for i in range(columns):
        put_mutant(figure.add_subplot(grid[0, i * panels : (i + 1) * panels]), scene, explanation, first, i)
    lower = [figure.add_subplot(grid[1, i * columns : (i + 1) * columns]) for i in range(panels)]
    for axes, (title, step) in zip(lower, shown.items(), strict=False):
        caption = f"{format_count(step.calls, 'call')}, {format_share(float(step.best.mean()))} visible"
        put(axes, paint_explanation(as_sheet(scene, explanation, step.best)), title, caption, size=8)
    level = on(explanation, as_level(recorded.finding.saliency))
    sheet = replace(as_sheet(scene, explanation, recorded.finding.sets[0]), level=level)
    put(lower[-1], paint_map(sheet), "responsibility map", "of this search", size=8)
    return figure


def choose(recorded: RecordedSearch) -> dict[str, SearchStep]:
    """A few moments of the descent, by title."""
    steps = recorded.descent
    rounds = [i for i, step in enumerate(steps) if len(step.wave) == Tuning().parts]
    begin, after, end = steps[0], steps[rounds[1] - 1], steps[-1]
    between = float(np.sqrt(after.best.mean() * end.best.mean()))
    patches = len(np.unique(recorded.survey.patch[begin.wave[0]]))
    return {
        f"best {patches} patches": begin,
        "after one round": after,
        "smaller parts": min(steps[rounds[1] :], key=lambda step: abs(np.log(step.best.mean() / between))),
        "explanation": replace(end, best=recorded.finding.sets[0]),
    }


def paint_borders(scene: Scene, patch: np.ndarray) -> Painted:
    """The image with the borders of the patches."""
    border = np.zeros(patch.shape, bool)
    border[1:] |= patch[1:] != patch[:-1]
    border[:, 1:] |= patch[:, 1:] != patch[:, :-1]
    return np.where(dilate(border, 1)[..., None], np.uint8(255), scene.image)


def as_sheet(scene: Scene, explanation: Explanation, visible: Visible) -> Sheet:
    """The scene at its own resolution, with the set and the map resized from the view."""
    grey = np.full_like(scene.image, 128)
    level = on(explanation, as_level(explanation.responsibility))
    return Sheet(scene.image, grey, on(explanation, visible), level, np.ones(level.shape, bool), (Tile(0, 0, ""),), 1)


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

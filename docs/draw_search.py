"""Draw the images of README.md and docs/how-it-works.md: one scene, its explanation, and how the search got there.

    python docs/draw_search.py [FOLDER]

Writes hero.png, search-survey.png and search-steps.png into the folder, docs/images by default. The search is driven by
hand, question by question, as the engine drives it: it is a generator, so its every step can be watched.
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
from becausal.methods.causal.survey import Survey, survey
from becausal.render.figures import INK, SOFT, new_figure, png_bytes
from becausal.render.painting import Painted, grow, paint_explanation, paint_map, paint_mutant, paint_picture
from becausal.render.sheets import Sheet, Tile, as_level
from becausal.render.wording import say_confidence, say_count, say_share
from becausal.scenes import Scene, make_scene

SEED, SIZE = 107, 512  # a sailboat behind strips
SHARE = 0.9  # of the original confidence
GRAIN, FINER = 8, 4  # the side of the cells, in pixels of the view: of the explanation; of the map, and the search watched
SEARCHES = 24  # seeds 0 to 23: the mean of their maps, and the explanation of the one that agrees best with it
KEPT, LOST = "#2c8a5b", "#c0483a"
T = TypeVar("T")


def write(path: Path, figure: Figure) -> None:
    """The figure in 256 colours: a third of the bytes, and no difference to be seen."""
    drawn = Image.open(BytesIO(png_bytes(figure))).convert("RGB")
    palette = drawn.quantize(256, method=Image.Quantize.FASTOCTREE)
    drawn.quantize(palette=palette, dither=Image.Dither.FLOYDSTEINBERG).save(path, optimize=True)


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "images"
    folder.mkdir(parents=True, exist_ok=True)
    scene, model = make_scene(SEED, size=SIZE), becausal.load_model("bundled")
    explanation = search_often(scene, model)
    write(folder / "hero.png", draw_hero(scene, explanation))
    watched = watch(scene, model)
    write(folder / "search-survey.png", draw_survey(scene, explanation, watched))
    write(folder / "search-steps.png", draw_steps(scene, explanation, watched))
    held = sum(int(step.answers.holds.sum()) for step in watched.survey)
    print(f"{len(watched.looked.worth)} patches; {held} of {watched.survey[-1].calls} random halves hold")
    for word, step in choose(watched).items():
        print(f"{word}: {step.calls} questions, {step.best.mean():.2%} left")
    covered = np.count_nonzero(on(explanation, explanation.visible) & scene.occluder)
    print(explanation, explanation.checks, f"{covered} px of the original on the strips")


def search_often(scene: Scene, model: Classifier) -> Explanation:
    """Several searches: the mean of their maps, as far as it is above its upper quartile, and one of the explanations.

    It is the one whose pixels have the highest mean responsibility in that map, by rule and not by eye.
    """

    def search(grain: int, seed: int) -> Explanation:
        return becausal.explain(scene.picture, model, confidence=SHARE, grain=grain, seed=seed)

    mean = np.mean([search(FINER, seed).responsibility for seed in range(SEARCHES)], axis=0)
    found = [search(GRAIN, seed) for seed in range(SEARCHES)]
    best = max(found, key=lambda one: float(mean[one.visible].mean()))
    return replace(best, responsibility=np.clip(mean - np.quantile(mean, 0.75), 0, None))


@dataclass(frozen=True)
class Step:
    """One wave of questions with its answers; the smallest sufficient set so far; different questions asked until then."""

    wave: Visible
    answers: Answers
    best: Visible
    calls: int


@dataclass(frozen=True)
class Watched:
    """A search as it went: the survey's waves and what they came to, the bisection, the descent, what was found."""

    survey: list[Step]
    looked: Survey
    bisection: list[Step]
    descent: list[Step]
    finding: Finding


def watch(scene: Scene, model: Classifier) -> Watched:
    """Drive the search by hand, and the survey once more beside it, to see what the search learnt from it."""
    view = make_view(load_image(scene.picture), model.info.geometry).pixels
    background = make_background("grey", view, rng=np.random.default_rng(0))
    confidence = float(model.classify(view[None])[0, scene.label_index])
    problem = Problem(view, (background,), Target(scene.label_index, floor=SHARE * confidence))
    options, seed = Causal(grain=FINER), np.random.default_rng(0).spawn(2)[0]
    steps, finding = drive(options.search(problem, seed), Engine(model), problem)
    again = survey(
        view, samples=options.survey, patches=options.patches, rng=np.random.default_rng(0).spawn(2)[0].spawn(1)[0]
    )
    surveyed, looked = drive(again, Engine(model), problem)
    begun = len(surveyed)  # the survey is the search's beginning
    rounds = next(i for i in range(begun, len(steps)) if len(steps[i].wave) > 1)  # the bisection asks one at a time
    asked = steps[begun : rounds - 1]  # then the chain asks what it begins with
    return Watched(steps[:begun], looked, asked, steps[rounds - 1 :], finding)


def drive(search: Search[T], engine: Engine, problem: Problem) -> tuple[list[Step], T]:
    """Ask a search's questions one wave after the other; every step, and what it returned."""
    steps: list[Step] = []
    asked: set[bytes] = set()
    best = np.ones(problem.grid, bool)
    wave = next(search)
    while True:
        asked.update(visible.tobytes() for visible in wave)
        answers = replace(engine.ask_afresh(problem, wave), spent=len(asked))
        best = min([best, *wave[answers.holds]], key=np.sum)
        steps.append(Step(wave, answers, best, len(asked)))
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
        paint_picture(sheet),
        f"The classifier says {scene.label}.",
        f"confidence {say_confidence(explanation.confidence)}",
    )
    put(axes[1], paint_map(sheet), "Why?", f"responsibility, mean of {SEARCHES} searches")
    found = f"{say_share(explanation.size)} of the pixels, {say_count(explanation.pieces, 'piece')}"
    alone = f"{found}, confidence {say_confidence(explanation.checks.confidence)}"
    put(axes[2], paint_explanation(sheet), "Because of these.", alone)
    return figure


def draw_survey(scene: Scene, explanation: Explanation, watched: Watched) -> Figure:
    """Above patches, some random halves of them and what each is worth; below the bisection to the best that hold."""
    first, looked = watched.survey[0], watched.looked
    figure = new_figure(12.4, 6.0)
    columns = max(len(watched.bisection), 5)
    axes = figure.subplots(2, columns)
    for one in axes.flat:
        one.set_axis_off()
    put(axes[0, 0], paint_borders(scene, on(explanation, looked.patch)), "patches", f"{len(looked.worth)} of them", size=8)
    for i in range(columns - 2):
        put_mutant(axes[0, i + 1], scene, explanation, first, i)
    said = f"{columns - 2} of {watched.survey[-1].calls} random halves of them"
    axes[0, 1].set_title(said, loc="left", fontsize=9.5, color=INK, pad=6)
    worth = on(explanation, np.clip(looked.worth, 0, None)[looked.patch])  # what speaks against the label is 0
    sheet = replace(as_sheet(scene, explanation, np.zeros(looked.patch.shape, bool)), level=as_level(worth))
    put(axes[0, -1], paint_map(sheet), "what each is worth", "by a linear model of all answers", size=8)
    counts = [len(np.unique(looked.patch[step.wave[0]])) for step in watched.bisection]
    for one, step, count in zip(axes[1], watched.bisection, counts, strict=False):
        put_mutant(one, scene, explanation, step, 0)
        one.set_title(f"the best {count}", loc="left", fontsize=9.5, color=INK, pad=6)
    return figure


def draw_steps(scene: Scene, explanation: Explanation, watched: Watched) -> Figure:
    """Above the questions of the first round, below the smallest sufficient set as the search went on, and the map."""
    first, shown = watched.descent[1], choose(watched)
    columns, panels = len(first.wave), len(shown) + 1
    figure = new_figure(12.4, 4.9)
    grid = figure.add_gridspec(2, columns * panels, height_ratios=(1.0, 1.45))
    for i in range(columns):
        put_mutant(figure.add_subplot(grid[0, i * panels : (i + 1) * panels]), scene, explanation, first, i)
    lower = [figure.add_subplot(grid[1, i * columns : (i + 1) * columns]) for i in range(panels)]
    for axes, (word, step) in zip(lower, shown.items(), strict=False):
        said = f"{say_count(step.calls, 'question')}, {say_share(float(step.best.mean()))} left"
        put(axes, paint_explanation(as_sheet(scene, explanation, step.best)), word, said, size=8)
    level = on(explanation, as_level(watched.finding.saliency))
    sheet = replace(as_sheet(scene, explanation, watched.finding.sets[0]), level=level)
    put(lower[-1], paint_map(sheet), "the map", "of this one search", size=8)
    return figure


def choose(watched: Watched) -> dict[str, Step]:
    """A few telling moments of the descent, by name."""
    steps = watched.descent
    rounds = [i for i, step in enumerate(steps) if len(step.wave) == Causal().parts]
    begin, after, end = steps[0], steps[rounds[1] - 1], steps[-1]
    between = float(np.sqrt(after.best.mean() * end.best.mean()))
    patches = len(np.unique(watched.looked.patch[begin.wave[0]]))
    return {
        f"the best {patches} patches": begin,
        "after a round": after,
        "smaller parts": min(steps[rounds[1] :], key=lambda step: abs(np.log(step.best.mean() / between))),
        "settled": replace(end, best=watched.finding.sets[0]),
    }


def paint_borders(scene: Scene, patch: np.ndarray) -> Painted:
    """The image with a line where patches meet."""
    border = np.zeros(patch.shape, bool)
    border[1:] |= patch[1:] != patch[:-1]
    border[:, 1:] |= patch[:, 1:] != patch[:, :-1]
    return np.where(grow(border, 1)[..., None], np.uint8(255), scene.picture)


def as_sheet(scene: Scene, explanation: Explanation, visible: Visible) -> Sheet:
    """The scene at its own size, with sets and map brought there from the view."""
    grey = np.full_like(scene.picture, 128)
    level = on(explanation, as_level(explanation.responsibility))
    return Sheet(scene.picture, grey, on(explanation, visible), level, np.ones(level.shape, bool), (Tile(0, 0, ""),), 1)


def on(explanation: Explanation, values: np.ndarray) -> np.ndarray:
    return np.asarray(explanation.on_original(values))


def put(axes: Axes, painted: Painted, title: str, said: str, *, size: float = 10) -> None:
    """A panel without ticks, a title above it and a line below."""
    axes.imshow(painted, interpolation="antialiased")
    axes.set_axis_off()
    if title:
        axes.set_title(title, loc="left", fontsize=size + 1.5, color=INK, pad=6)
    axes.text(0, -0.03, said, transform=axes.transAxes, va="top", fontsize=size - 0.5, color=SOFT)


def put_mutant(axes: Axes, scene: Scene, explanation: Explanation, step: Step, i: int) -> None:
    """One question of a wave: what was shown, whether the target was kept, framed accordingly."""
    visible, kept = step.wave[i], bool(step.answers.holds[i])
    painted = paint_mutant(as_sheet(scene, explanation, visible), on(explanation, visible))
    said = f"{'kept' if kept else 'lost'}, confidence {say_confidence(float(step.answers.confidence[i]))}"
    put(axes, painted, "", said, size=7.5)
    frame(axes, KEPT if kept else LOST)


def frame(axes: Axes, colour: str) -> None:
    box = FancyBboxPatch(
        (0, 0), 1, 1, "square,pad=0", transform=axes.transAxes, fill=False, linewidth=3, edgecolor=colour, clip_on=False
    )
    axes.add_patch(box)


if __name__ == "__main__":
    main()

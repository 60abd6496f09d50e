"""Draw the pictures of README.md and docs/how-it-works.md: one scene, its explanation, and how the search got there.

    python docs/draw_search.py [FOLDER]

Writes hero.png and search-steps.png into the folder, docs/images by default. The search is driven by hand, question by
question, as the engine drives it: it is a generator, so its every step can be watched.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

import becausal
from becausal.causal.search import Causal
from becausal.contracts import Answers, Classifier, Finding, Problem, Visible
from becausal.engine import Case, Engine
from becausal.explanation import Explanation
from becausal.fills import make_background
from becausal.images import load_image, make_view
from becausal.render.figures import INK, SOFT, new_figure, png_bytes
from becausal.render.painting import Painted, paint_explanation, paint_map, paint_mutant, paint_picture
from becausal.render.sheets import Sheet, Tile, as_level
from becausal.render.wording import say_confidence, say_count, say_share
from becausal.scenes import Scene, make_scene
from becausal.targets import Target

SEED, SIZE = 107, 512  # a sailboat behind strips
SHARE = 0.9  # of the original confidence
GRAIN, FINER = 8, 4  # the side of the cells, in pixels of the view: of the explanation; of the map, and the search watched
SEARCHES = 24  # seeds 0 to 23: the mean of their maps, and the explanation of the one that agrees best with it
KEPT, LOST = "#2c8a5b", "#c0483a"


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "images"
    folder.mkdir(parents=True, exist_ok=True)
    scene, model = make_scene(SEED, size=SIZE), becausal.load_model("bundled")
    explanation = search_often(scene, model)
    (folder / "hero.png").write_bytes(png_bytes(draw_hero(scene, explanation)))
    steps = list(drive(scene, model))
    (folder / "search-steps.png").write_bytes(png_bytes(draw_steps(scene, explanation, steps)))
    for word, step in choose(steps).items():
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
    """One wave of questions with its answers; the smallest sufficient set so far; questions asked until then."""

    wave: Visible
    answers: Answers
    best: Visible
    calls: int
    finding: Finding | None = None


def drive(scene: Scene, model: Classifier) -> Iterator[Step]:
    """Ask the search's questions one wave after the other, by hand."""
    view = make_view(load_image(scene.picture), model.info.geometry).pixels
    background = make_background("grey", view, rng=np.random.default_rng(0))
    confidence = float(model.classify(view[None])[0, scene.label_index])
    case = Case(view, (background,), Target(scene.label_index, floor=SHARE * confidence))
    problem = Problem(case.grid, scene.label_index, True, view, background)
    search = Causal(grain=FINER).search(problem, np.random.default_rng(0).spawn(2)[0])
    engine, best, calls = Engine(model), np.ones(case.grid, bool), 0
    wave = next(search)
    while True:
        calls += len(wave)
        answers = replace(engine.ask_afresh(case, wave), spent=calls)
        for visible in wave[answers.holds]:
            best = visible if visible.sum() < best.sum() else best
        yield Step(wave, answers, best, calls)
        try:
            wave = search.send(answers)
        except StopIteration as end:
            yield Step(wave, answers, end.value.sets[0], calls, end.value)
            return


def draw_hero(scene: Scene, explanation: Explanation) -> Figure:
    """The picture, the map, the explanation."""
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


def draw_steps(scene: Scene, explanation: Explanation, steps: list[Step]) -> Figure:
    """Above the questions of the first round, below the smallest sufficient set as the search went on."""
    first, shown = steps[1], choose(steps)
    columns = len(first.wave)
    figure = new_figure(12.4, 4.5)
    grid = figure.add_gridspec(2, columns * len(shown), height_ratios=(1.0, 1.2))
    for i, visible in enumerate(first.wave):
        axes = figure.add_subplot(grid[0, i * len(shown) : (i + 1) * len(shown)])
        kept, confidence = bool(first.answers.holds[i]), float(first.answers.confidence[i])
        painted = paint_mutant(as_sheet(scene, explanation, visible), on(explanation, visible))
        said = f"{'kept' if kept else 'lost'}, confidence {say_confidence(confidence)}"
        put(axes, painted, "", said, size=7.5)
        frame(axes, KEPT if kept else LOST)
    for i, (word, step) in enumerate(shown.items()):
        axes = figure.add_subplot(grid[1, i * columns : (i + 1) * columns])
        said = f"{say_count(step.calls, 'question')}, {say_share(float(step.best.mean()))} left"
        put(axes, paint_explanation(as_sheet(scene, explanation, step.best)), word, said, size=8)
    return figure


def choose(steps: list[Step]) -> dict[str, Step]:
    """A few telling moments, by name."""
    parts = Causal().parts
    rounds = [i for i, step in enumerate(steps) if len(step.wave) == parts]
    second = [i for i, step in enumerate(steps) if len(step.wave) == 1 and step.wave.all()][1]
    ended, own = second, steps[0].best
    while own.mean() > Causal().coarse or len(steps[ended + 1].wave) < parts:  # a round's unions belong to it
        ended += 1
        own = min([own, *steps[ended].wave[steps[ended].answers.holds]], key=np.sum)
    between = float(np.sqrt(steps[ended].best.mean() * steps[-1].best.mean()))
    return {
        "everything": steps[0],
        "after a round": steps[rounds[1] - 1],
        "the first chain": steps[second - 1],
        "the second": replace(steps[ended], best=own),
        "the better goes on": min(steps[ended + 1 :], key=lambda step: abs(np.log(step.best.mean() / between))),
        "settled": steps[-1],
    }


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


def frame(axes: Axes, colour: str) -> None:
    box = FancyBboxPatch(
        (0, 0), 1, 1, "square,pad=0", transform=axes.transAxes, fill=False, linewidth=3, edgecolor=colour, clip_on=False
    )
    axes.add_patch(box)


if __name__ == "__main__":
    main()

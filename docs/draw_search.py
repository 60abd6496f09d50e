"""Draw the images of README.md and docs/how-it-works.md: one scene, its explanation, and the steps of the search.

    python docs/draw_search.py [FOLDER]

Writes hero.png, search-survey.png, search-enough.png and search-core.png into the folder, docs/images by default. The search
is a generator, so the script can run it wave by wave, like the engine, and record every step.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch
from numpy.typing import NDArray
from PIL import Image

import becausal
from becausal.api.explanation import Explanation
from becausal.core.contracts import Answers, Classifier, Done, Finding, Pixels, Question, Search, Visible, step
from becausal.core.problem import Problem
from becausal.core.request import SHARE
from becausal.core.targets import Target, quantise_margin
from becausal.images.backgrounds import make_backgrounds
from becausal.images.loading import load_image, make_view
from becausal.methods.causal import search
from becausal.methods.causal.search import Causal
from becausal.render.colours import INK, SOFT
from becausal.render.figures import new_figure, png_bytes
from becausal.render.numbers import format_confidence, format_count, format_share
from becausal.render.painting import Painted, dilate, paint_explanation, paint_image, paint_map, paint_mutant
from becausal.render.sheets import Sheet, Tile, as_heat
from becausal.scenes import Scene, make_scene
from becausal.search import enough
from becausal.search.drive import drive
from becausal.search.enough import DescentWay, Panel
from becausal.search.minimise import Settled
from becausal.search.survey import Survey

SEED, SIZE = 125, 512  # a mug behind two stones
KEPT, LOST = "#2c8a5b", "#c0483a"


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
    recorded = record_search(scene, model)
    found = [recorded.finding.sets[0], recorded.held]
    assert np.array_equal(found, [level.visible for level in explanation.levels]), "the recorded search is another one"
    drawer = Drawer(scene, explanation, recorded)
    write(folder / "hero.png", drawer.draw_hero())
    write(folder / "search-survey.png", drawer.draw_survey())
    write(folder / "search-enough.png", drawer.draw_enough())
    write(folder / "search-core.png", drawer.draw_core())
    for stage in recorded.stages:
        print(f"{stage.name}: {stage.calls} model calls, {stage.visible.mean():.2%} visible")
    print(explanation)


@dataclass(frozen=True)
class Wave:
    """One question of a part of the search, and its answers."""

    stage: str
    question: Question
    answers: Answers


@dataclass(frozen=True)
class Stage:
    """What is left at the end of a part of the search, (*grid,), and the number of model calls so far."""

    name: str
    visible: Visible
    calls: int


@dataclass
class RecordedSearch:
    """Everything that a search asked, what was left after each part of it, and what it found."""

    problem: Problem
    waves: list[Wave]
    stages: list[Stage]
    way: DescentWay
    finding: Finding

    @property
    def held(self) -> Visible:
        assert self.finding.enough is not None
        return self.finding.enough.visible

    @property
    def survey(self) -> Survey:
        assert self.way.survey is not None
        return self.way.survey

    def of(self, stage: str) -> list[Wave]:
        """The questions of one part."""
        return [wave for wave in self.waves if wave.stage == stage]

    def left(self, stage: str, time: int = -1) -> Stage:
        """What is left after a part, the last time it ended."""
        return [one for one in self.stages if one.name == stage][time]

    @property
    def certificate(self) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
        """The numbers of the backgrounds of the last certificate, and on which of them the label was kept."""
        waves = [wave for wave in self.of("certificate") if np.array_equal(wave.question.visible[0], self.held)]
        numbers = [wave.question.draws for wave in waves if wave.question.draws is not None]
        return np.concatenate(numbers), np.concatenate([wave.answers.holds for wave in waves])


class Recorder:
    """Follows which part of the search asks; its `named` functions replace those of the search while it is recorded."""

    def __init__(self, problem: Problem, model: Classifier) -> None:
        self.problem, self.model = problem, model
        self.stage = "start"
        self.known: dict[tuple[bytes, int | None], int] = {}
        self.waves: list[Wave] = []
        self.stages: list[Stage] = []
        self.ways: list[DescentWay] = []

    def named(self, name: str, function: Callable[..., Search[Any]]) -> Callable[..., Search[Any]]:
        """The same function, a search, under a name."""

        def run(*given: Any, **options: Any) -> Search[Any]:
            before, self.stage = self.stage, name
            if name == "parts":  # where it starts
                self.note("start", self.ways[-1].seen[-1])
            result = yield from function(*given, **options)
            self.note(name, self._left(result))
            self.stage = before
            return result

        return run

    def note(self, name: str, visible: Visible) -> None:
        self.stages.append(Stage(name, visible.copy(), len(self.known)))

    def _left(self, result: Any) -> Visible:
        match result:
            case np.ndarray():
                return result
            case (Settled(), _):
                return np.asarray(result[0].visible)
            case search.Chain():
                return result.lattice.show(result.visible)
        return self.ways[-1].seen[-1]

    def make_way(self, *given: Any) -> DescentWay:
        self.ways.append(DescentWay(*given))
        return self.ways[-1]

    def run(self, running: Search[Finding]) -> Finding:
        """Run a search wave by wave, and record every one."""
        state = step(running, None)
        while not isinstance(state, Done):
            question = Question.of(state)
            answers = self._ask(question)
            stage = "survey" if not self.waves else self.stage
            self.waves.append(Wave(stage, question, answers))
            state = step(running, answers)
        return state.result

    def _ask(self, question: Question) -> Answers:
        numbers = [None] * len(question) if question.draws is None else question.draws.tolist()
        for visible, number in zip(question.visible, numbers, strict=True):
            self.known.setdefault((visible.tobytes(), number), len(self.known))
        found = [self.problem.target.judge(self.model.classify(self.mutant(*pair)[None]))
                 for pair in zip(question.visible, numbers, strict=True)]  # fmt: skip
        holds, margin, confidence = (
            np.concatenate([getattr(one, name) for one in found]) for name in ("holds", "margin", "confidence")
        )
        return Answers(holds, quantise_margin(margin, holds), confidence, spent=len(self.known))

    def mutant(self, visible: Visible, number: int | None) -> Pixels:
        return np.where(visible[..., None], self.problem.view, background_of(self.problem, number))


def background_of(problem: Problem, number: int | None) -> Pixels:
    """The random background with a number, or the plain fill."""
    if number is None or problem.sampler is None:
        return problem.background
    return problem.sampler.draw(number)


def record_search(scene: Scene, model: Classifier) -> RecordedSearch:
    """Run the default search wave by wave."""
    view = make_view(load_image(scene.image), model.info.geometry).pixels
    floor = SHARE * float(model.classify(view[None])[0, scene.label_index])
    problem = Problem(
        view, (np.full_like(view, 128),), Target(scene.label_index), floor=floor, holds=SHARE,
        sampler=make_backgrounds(None, view, 0, lambda path: view),
    )  # fmt: skip
    recorder = Recorder(problem, model)
    named = recorder.named
    with (
        patch.object(search, "DescentWay", recorder.make_way),
        patch.object(DescentWay, "_remove_parts", named("parts", DescentWay._remove_parts)),
        patch.object(Panel, "screen", named("panel", Panel.screen)),
        patch.object(DescentWay, "_prove", named("cells", DescentWay._prove)),
        patch.object(enough, "certify", named("certificate", enough.certify)),
        patch.object(search, "restrict", named("core: patches", search.restrict)),
        patch.object(search.CausalSearch, "_descend_twice", named("core: parts", search.CausalSearch._descend_twice)),
        patch.object(search, "settle_within", named("core: cells", search.settle_within)),
        patch.object(search, "order_patches", named("zones", search.order_patches)),
    ):
        running = drive(Causal().search(problem, np.random.default_rng(0).spawn(2)[0]), floor=floor)
        finding = recorder.run(running)
    return RecordedSearch(problem, recorder.waves, recorder.stages, recorder.ways[-1], finding)


@dataclass(frozen=True)
class Drawer:
    """Draws a scene, its explanation, and the search for it."""

    scene: Scene
    explanation: Explanation
    recorded: RecordedSearch

    def draw_hero(self) -> Figure:
        """The image, the map, the explanation."""
        core, enough = self.explanation.levels
        sheet = self.as_sheet(core.visible, enough.visible)
        figure = new_figure(10.8, 4.0)
        axes = figure.subplots(1, 3)
        confidence = format_confidence(self.explanation.confidence)
        put(axes[0], paint_image(sheet), f"The classifier says {self.scene.label}.", f"confidence {confidence}")
        put(axes[1], paint_map(sheet), "What does each pixel do?", "the map in zones")
        caption = f"enough: {format_share(enough.size)} of the pixels; core: {format_share(core.size)}"
        put(axes[2], paint_explanation(sheet), "These pixels are enough.", caption)
        return figure

    def draw_survey(self) -> Figure:
        """Top: patches, some halves of them on random backgrounds, contributions. Bottom: the start on its panel."""
        survey, halves = self.recorded.survey, self.recorded.of("survey")[0]
        start = self.recorded.left("start", 0).visible
        figure = new_figure(12.4, 5.3)
        axes = figure.subplots(2, 6)
        put(axes[0, 0], self.paint_borders(survey), f"{len(survey.contribution)} patches", "along the image's edges", size=8)
        half = len(halves.question) // 2
        for one, row in zip(axes[0, 1:5], (1, 1 + half, 2, 2 + half), strict=True):
            self.put_mutant(one, halves, row)
        title = f"4 of {len(halves.question)} halves, each on a random background"
        axes[0, 1].set_title(title, loc="left", fontsize=9.5, color=INK, pad=6)
        contribution = np.clip(survey.contribution, 0, None)[survey.patch]  # negative values shown as 0
        sheet = replace(self.as_sheet(start), heat=as_heat(self.on(contribution)), zones=None)
        put(axes[0, 5], paint_map(sheet), "contributions", "by a linear model, and the start", size=8)
        tried = [(wave, row) for wave in self.recorded.of("start") for row in range(len(wave.question))
                 if np.array_equal(wave.question.visible[row], start)]  # fmt: skip
        shown = sorted(tried, key=lambda one: float(one[0].answers.margin[one[1]]))
        axes[1, 0].set_title(f"the start, {format_share(float(start.mean()))}, on its panel", loc="left", fontsize=9.5,
                             color=INK, pad=6)  # fmt: skip
        for one, (wave, row) in zip(axes[1], shown, strict=False):
            self.put_mutant(one, wave, row)
        return figure

    def draw_enough(self) -> Figure:
        """Top: candidates of the first round, on the hardest background. Bottom: what is left, and fresh backgrounds."""
        first = next(wave for wave in self.recorded.of("parts") if len(wave.question) > 1)
        numbers = first.question.draws
        assert numbers is not None
        figure = new_figure(12.4, 4.3)
        above, below = figure.subfigures(2, 1, height_ratios=(1.0, 1.3))
        upper, lower = above.subplots(1, 8), below.subplots(1, 6)
        for row, one in enumerate(upper[: len(first.question)]):
            self.put_mutant(one, first, row)
        above.suptitle(
            "candidates of the first round, on the hardest background", x=0.005, ha="left", fontsize=9.5, color=INK
        )
        left = self.recorded.left
        shown = {
            "start": left("start", 0),
            "half-way": left("panel"),
            "parts removed": left("parts"),
            "cells removed": left("cells"),
        }
        for axes, (title, stage) in zip(lower, shown.items(), strict=False):
            caption = f"{format_count(stage.calls, 'call')}, {format_share(float(stage.visible.mean()))}"
            put(axes, self.paint_on(stage.visible, int(numbers[0])), title, caption, size=8)
        asked, kept = self.recorded.certificate
        put(lower[4], self.paint_fresh(asked, kept), "fresh backgrounds", f"kept on {kept.sum()} of {len(kept)}", size=8)
        calls = format_count(left("certificate").calls, "call")
        put(lower[5], paint_explanation(self.as_sheet(self.recorded.held)), "enough", calls, size=8)
        return figure

    def draw_core(self) -> Figure:
        """What is left inside of `enough`, on the plain fill; the map, and the answer."""
        figure = new_figure(12.4, 2.6)
        axes = figure.subplots(1, 6)
        names = {
            "certificate": "enough",
            "core: patches": "best patches",
            "core: parts": "parts removed",
            "core: cells": "core",
        }
        for one, (name, title) in zip(axes, names.items(), strict=False):
            stage = self.recorded.left(name)
            caption = f"{format_count(stage.calls, 'call')}, {format_share(float(stage.visible.mean()))}"
            put(one, self.paint_on(stage.visible, None), title, caption, size=8)
        core, enough = self.explanation.levels
        sheet = self.as_sheet(core.visible, enough.visible)
        calls = format_count(self.recorded.left("zones").calls, "call")
        put(axes[4], paint_map(sheet), "the map in zones", calls, size=8)
        put(axes[5], paint_explanation(sheet), "the answer", "enough, and core inside it", size=8)
        return figure

    def paint_borders(self, survey: Survey) -> Painted:
        """The image with the borders of the patches."""
        patches = self.on(survey.patch)
        border = np.zeros(patches.shape, bool)
        border[1:] |= patches[1:] != patches[:-1]
        border[:, 1:] |= patches[:, 1:] != patches[:, :-1]
        return np.where(dilate(border, 1)[..., None], np.uint8(255), self.scene.image)

    def paint_on(self, visible: Visible, number: int | None) -> Painted:
        """The model's input with a set shown on a background."""
        sheet = replace(self.as_sheet(visible), background=self.on(background_of(self.recorded.problem, number)))
        return paint_mutant(sheet, self.on(visible))

    def paint_fresh(self, numbers: NDArray[np.intp], kept: NDArray[np.bool_], side: int = 4) -> Painted:
        """`enough` on the first backgrounds of its certificate, as one image, each with a coloured frame."""
        tiles = []
        for number, holds in zip(numbers[: side * side].tolist(), kept, strict=False):
            tile = self.paint_on(self.recorded.held, number)[::4, ::4].copy()
            for edge in (tile[:4], tile[-4:], tile[:, :4], tile[:, -4:]):
                edge[:] = list(bytes.fromhex((KEPT if holds else LOST)[1:]))
            tiles.append(np.pad(tile, ((2, 2), (2, 2), (0, 0)), constant_values=255))
        return np.concatenate([np.concatenate(tiles[i : i + side], axis=1) for i in range(0, side * side, side)])

    def put_mutant(self, axes: Axes, wave: Wave, row: int) -> None:
        """Draw one mutant of a wave, with a green frame if it keeps the target, else a red one."""
        draws, kept = wave.question.draws, bool(wave.answers.holds[row])
        painted = self.paint_on(wave.question.visible[row], None if draws is None else int(draws[row]))
        confidence = format_confidence(float(wave.answers.confidence[row]))
        put(axes, painted, "", f"{'kept' if kept else 'lost'}, confidence {confidence}", size=7.5)
        frame(axes, KEPT if kept else LOST)

    def as_sheet(self, *nested: Visible) -> Sheet:
        """The scene at its own resolution, with nested sets, the smallest first, and the map, resized from the view."""
        *inner, visible = (self.on(one) for one in nested)
        heat = self.on(as_heat(self.explanation.responsibility))
        assert self.explanation.zones is not None
        return Sheet(
            self.scene.image, self.on(self.recorded.problem.background), visible, heat, np.ones(heat.shape, bool),
            (Tile(0, 0, ""),), 1, inner=tuple(inner), zones=self.on(self.explanation.zones),
        )  # fmt: skip

    def on(self, values: np.ndarray) -> np.ndarray:
        """An array over the view, or one with channels, at the resolution of the scene."""
        times = SIZE // values.shape[0]
        return np.repeat(np.repeat(values, times, axis=0), times, axis=1)


def put(axes: Axes, painted: Painted, title: str, caption: str, *, size: float = 10) -> None:
    """Draw a panel without ticks, with a title above and a caption below."""
    axes.imshow(painted, interpolation="antialiased")
    axes.set_axis_off()
    if title:
        axes.set_title(title, loc="left", fontsize=size + 1.5, color=INK, pad=6)
    axes.text(0, -0.03, caption, transform=axes.transAxes, va="top", fontsize=size - 0.5, color=SOFT)


def frame(axes: Axes, colour: str) -> None:
    box = FancyBboxPatch(
        (0, 0), 1, 1, "square,pad=0", transform=axes.transAxes, fill=False, linewidth=3, edgecolor=colour, clip_on=False
    )
    axes.add_patch(box)


if __name__ == "__main__":
    main()

"""The set `enough` through the front door: what is claimed of it is true, it is found again, and what stops the search."""

import json
import shutil
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import becausal
from becausal import Request
from becausal.api import Failure
from becausal.api.explanation import Explanation
from becausal.core.checks import Certificate
from becausal.core.contracts import ModelInfo
from becausal.core.errors import OutputError
from becausal.core.metrics import HELD_OUT
from becausal.core.problem import Problem
from becausal.core.targets import Target
from becausal.engine.engine import Engine
from becausal.images.backgrounds import RandomBackgrounds
from becausal.interfaces.cli.app import main
from becausal.models import as_detector
from becausal.scenes import make_scene
from becausal.search.checking import transfer
from test_explain import bundled, needs_bundled, scene

RED = (200, 30, 31)
SIDE = 16
HOLDS = 0.8


def picture(seed=0, side=SIDE):
    """A red square on dark noise."""
    made = np.random.default_rng(seed).integers(0, 90, (side, side, 3)).astype(np.uint8)
    made[3:9, 4:10] = RED
    return made


def scores_of(batch):
    """The more light there is elsewhere, the more red is needed: 3 pixels on black, 18 on white, of 36."""
    batch = np.asarray(batch)
    red = (batch == RED).all(axis=-1)
    count = red.sum(axis=(1, 2))
    light = np.where(red, 0.0, batch.mean(axis=-1)).sum(axis=(1, 2)) / np.maximum(1, (~red).sum(axis=(1, 2))) / 255
    return 1 / (1 + np.exp(-np.clip(count - 3 - 15 * light, -30, 30)))


def red_square(batch):
    yes = scores_of(batch)
    return np.stack([1 - yes, yes], axis=1)


def labels_only(batch):
    return (scores_of(batch) > 0.5).astype(np.int64)


def needs_all(batch):
    """Yes as long as every pixel is dark or red: any other background is seen, wherever it is."""
    dark = (np.asarray(batch).max(axis=-1) < 90) | (np.asarray(batch) == RED).all(axis=-1)
    yes = np.where(dark.all(axis=(1, 2)), 0.99, 0.01)
    return np.stack([1 - yes, yes], axis=1)


BLACK = {"holds": HOLDS, "fills": "black"}


@cache
def explained(model=red_square, **options):
    return becausal.explain(picture(), model, **BLACK | options)


def true_share(explanation, visible, model=red_square, count=400):
    """The share of backgrounds on which a set keeps the label, evaluated beside the search."""
    sampler = RandomBackgrounds(explanation.view, 77)
    grounds = np.stack([sampler.draw(number) for number in range(count)])
    found = model(np.where(visible[..., None], explanation.view, grounds))
    return float(np.mean((found.argmax(axis=1) if found.ndim == 2 else found) == explanation.label_id))


def same(one, other):
    return (
        all(
            (a.name, a.checks, a.certificate, a.panel) == (b.name, b.checks, b.certificate, b.panel)
            and (a.visible == b.visible).all()
            for a, b in zip(one.levels, other.levels, strict=True)
        )
        and np.array_equal(one.responsibility, other.responsibility)
        and one.calls == other.calls
    )


def names(explanation):
    return [level.name for level in explanation.levels]


def failing(explanation, model, **options):
    return [claim for claim in becausal.verify(explanation, model, **options) if not claim.holds]


# What is claimed


def test_enough_contains_core_and_holds_on_other_backgrounds():
    explanation = explained()
    core, level = explanation.levels
    assert (core.name, level.name) == ("core", "enough")
    assert not (core.visible & ~level.visible).any()
    assert level.certificate.holds
    assert level.certificate.share == HOLDS
    assert level.certificate.bound >= HOLDS
    assert level.certificate.first >= 1_000_000
    assert level.certificate.backgrounds == {"kind": "becausal", "version": 1, "seed": 0}
    assert true_share(explanation, level.visible) >= level.certificate.bound
    assert true_share(explanation, core.visible) < HOLDS  # so there was something to do
    assert core.checks.transfer.share < HOLDS
    assert not level.visible.all()
    assert explanation.target.floor == 0.9 * explanation.confidence
    assert core.checks.sufficient
    assert level.checks.sufficient
    assert explanation.checks == level.checks
    assert explanation.visible is level.visible


def test_the_counts_are_those_of_the_backgrounds_that_are_said():
    explanation = explained()
    sampler = RandomBackgrounds(explanation.view, 0)
    for level in explanation.levels:
        found = level.checks.transfer
        first = HELD_OUT if level.certificate is None else level.certificate.first
        grounds = np.stack([sampler.draw(number) for number in range(first, first + found.asked)])
        kept = red_square(np.where(level.visible[..., None], explanation.view, grounds)).argmax(axis=1) == 1
        assert found.kept == kept.sum()
        panel = np.stack([sampler.draw(number) for number in level.panel or range(0)] or [explanation.view])
        assert (red_square(np.where(level.visible[..., None], explanation.view, panel)).argmax(axis=1) == 1).all()


def test_in_one_fill_there_is_no_such_set_and_fewer_calls():
    plain = explained(holds=None)
    assert names(plain) == ["core"]
    assert plain.level.certificate is None
    assert plain.calls < explained().calls
    assert plain.checks.transfer.asked == 40


def test_by_default_there_are_two_sets_as_well():
    explanation = becausal.explain(picture(), red_square)
    assert names(explanation) == ["core", "enough"]
    assert explanation.level.certificate.share == 0.9
    assert not failing(explanation, red_square)


@needs_bundled
def test_with_the_bundled_classifier():
    explanation = becausal.explain(scene(0).image, bundled())
    level = explanation.level
    assert names(explanation) == ["core", "enough"]
    problem = Problem(
        explanation.view,
        explanation.backgrounds,
        Target(explanation.label_id),
        sampler=RandomBackgrounds(explanation.view, 5),
    )
    found = Engine(bundled()).run(problem, transfer(level.visible, first=0, count=100)).result
    assert found.high >= level.certificate.bound  # no contradiction
    assert found.share > 0.85
    assert not failing(explanation, bundled())


def test_a_model_that_returns_labels_only():
    model, explanation = labels_only, explained(labels_only)
    assert names(explanation) == ["label", "enough"]
    assert [level.share for level in explanation.levels] == [0.0, 0.0]
    assert explanation.level.certificate.holds
    assert explanation.zones is None
    assert true_share(explanation, explanation.visible, model) >= explanation.level.certificate.bound
    assert not failing(explanation, model)


def test_a_signal():
    time = np.arange(80)
    signal = np.where((time > 20) & (time < 45), 1.0, 0.1 + 0.2 * np.sin(time)).astype(np.float32)

    def bump(batch):
        shown = (np.asarray(batch).reshape(len(batch), -1) == 1.0).sum(axis=1)
        rest = np.abs(np.asarray(batch)).reshape(len(batch), -1).mean(axis=1)
        yes = 1 / (1 + np.exp(-np.clip(shown - 4 - 8 * rest, -30, 30)))
        return np.stack([1 - yes, yes], axis=1)

    explanation = becausal.explain(signal, bump, holds=HOLDS, fills="0")
    assert names(explanation) == ["core", "enough"]
    assert explanation.visible.shape == (80,)
    assert explanation.visible[21:45].any()
    assert not failing(explanation, bump)


def test_a_volume():
    volume = np.zeros((8, 8, 4), np.float32) + 0.1
    volume[2:6, 2:6, 1:3] = 1.0

    def bright(batch):
        seen = (np.asarray(batch).reshape(len(batch), -1) == 1.0).sum(axis=1)
        yes = 1 / (1 + np.exp(-(seen - 10.0) / 2))
        return np.stack([1 - yes, yes], axis=1)

    explanation = becausal.explain(volume, bright, fills="0", holds=HOLDS)
    assert names(explanation) == ["core", "enough"]
    assert not failing(explanation, bright)


def test_a_detector():
    """One box where red is seen: the more of the square, and the darker the rest, the higher its score."""

    def boxes(batch):
        return [([[4, 3, 10, 9]], [score], [1]) for score in scores_of(batch)]

    detector = as_detector(boxes, threshold=0.5)
    explanation = becausal.explain(picture(), detector, fills="black", holds=HOLDS)
    assert names(explanation) == ["core", "enough"]
    assert explanation.zones is None
    assert true_share(explanation, explanation.visible, red_square) >= explanation.level.certificate.bound
    assert not failing(explanation, detector)


def test_several_fills_are_kept_as_well():
    explanation = explained(fills=("black", "grey", "white"))
    assert explanation.level.name == "enough"
    for background in explanation.backgrounds:
        mutant = np.where(explanation.visible[..., None], explanation.view, background)
        assert red_square(mutant[None])[0].argmax() == 1
    assert true_share(explanation, explanation.visible) >= explanation.level.certificate.bound


@pytest.mark.parametrize("options", [{"confidence": 0.7}, {"method": "rise", "options": {"masks": 100}}, {"seeds": 2}])
def test_with_other_options(options):
    explanation = becausal.explain(picture(), red_square, **BLACK, **options)
    assert explanation.level.name == "enough"
    assert explanation.target.floor == options.get("confidence", 0.9) * explanation.confidence
    assert not failing(explanation, red_square)


# Same question, same answer


@dataclass
class Double:
    """The function as a classifier beside us, which search processes may ask."""

    batch_size: int = 16
    fixed_sizes: tuple = ()
    depth: int = 2
    seen: list = field(default_factory=list)

    @property
    def info(self):
        return ModelInfo("double", "test", None, 3, None, "probabilities", "as they are")

    def stage(self, view, background):
        return view, background

    def ask(self, staged, which, visible):
        self.seen.append(len(visible))
        return self.classify(np.stack([np.where(v[..., None], *staged[w]) for w, v in zip(which, visible, strict=True)]))

    def submit(self, staged, which, packed, grid):
        visible = np.unpackbits(packed, axis=1, count=int(np.prod(grid))).astype(bool).reshape(-1, *grid)
        return _Ready(self.ask(staged, which, visible))

    def classify(self, pixels):
        return red_square(pixels).astype(np.float32)


@dataclass
class _Ready:
    scores: np.ndarray
    seconds: float = 0.0

    def is_ready(self):
        return True

    def collect(self):
        return self.scores


def test_the_batch_size_changes_nothing():
    assert same(explained(), explained(batch_size=5))
    assert same(explained(), explained(batch_size=64))


def test_another_seed_has_other_backgrounds():
    other = explained(seed=4).level.certificate
    assert other.backgrounds["seed"] == 4


def test_several_at_a_time_or_in_processes_give_the_same():
    images = [picture(i) for i in range(3)]
    request = Request(holds=HOLDS, fills=("black",))
    alone = [becausal.explain(image, Double(), holds=HOLDS, fills="black") for image in images]
    assert all(one.level.name == "enough" for one in alone)
    for options in ({"width": 3, "workers": 0}, {"width": 2, "workers": 2}):
        found = dict(becausal.api.explain_numbered(images, Double(), request=request, **options))
        assert sorted(found) == [0, 1, 2]
        assert all(same(found[i], alone[i]) for i in range(3))


def test_a_function_of_ones_own_stays_in_this_process():
    """Functions cannot be sent to other processes."""
    request = Request(holds=HOLDS, fills=("black",), backgrounds=lambda view, rng: np.full_like(view, rng.integers(256)))
    images = [picture(i) for i in range(2)]
    found = list(becausal.explain_many(images, Double(), request=request, width=2, workers=2))
    assert [one.level.name for one in found] == ["enough", "enough"]


# Saved and verified


def white_rooms(view, rng):
    return np.full_like(view, rng.integers(200, 256))


@pytest.fixture
def rooms(tmp_path):
    """A folder of ten plain images."""
    folder = tmp_path / "rooms"
    folder.mkdir()
    for i in range(10):
        Image.fromarray(np.full((20, 30, 3), 20 * i, np.uint8)).save(folder / f"r{i}.png")
    return folder


@pytest.mark.usefixtures("without_figures")
def test_it_is_saved_and_loaded(tmp_path):
    explanation = explained()
    loaded = Explanation.load(explanation.save(tmp_path / "it"))
    assert same(explanation, loaded)
    assert isinstance(loaded.level.certificate, Certificate)
    assert loaded.origin.request == explanation.origin.request
    record = json.loads((tmp_path / "it" / "explanation.json").read_text())
    assert record["levels"][-1]["certificate"] == explanation.level.certificate.record()
    assert record["levels"][-1]["panel"] == list(explanation.level.panel)
    assert all("certificate" not in level for level in record["levels"][:-1])
    assert not failing(loaded, red_square)


def background_claim(explanation, model=red_square, **options):
    (claim,) = [claim for claim in becausal.verify(explanation, model, **options) if claim.name == "random backgrounds"]
    return claim


def test_verifying_counts_the_same_backgrounds_again():
    claim = background_claim(explained())
    certificate = explained().level.certificate
    assert claim.holds
    assert claim.stated == claim.found == f"{certificate.kept} of {certificate.asked}"


def test_verifying_sees_a_model_that_has_changed():
    def in_the_dark(batch):
        yes = np.where(np.asarray(batch).mean(axis=(1, 2, 3)) < 110, scores_of(batch), 0.1)
        return np.stack([1 - yes, yes], axis=1)

    claim = background_claim(explained(), in_the_dark)
    assert not claim.holds
    assert claim.found != claim.stated
    assert claim.found.endswith(f" of {explained().level.certificate.asked}")


def test_verifying_needs_the_folder_and_sees_that_it_has_changed(rooms):
    explanation = becausal.explain(picture(), red_square, holds=HOLDS, fills="black", backgrounds=rooms)
    assert explanation.level.certificate.backgrounds["images"] == 10
    claim = background_claim(explanation)
    assert (claim.holds, claim.found) == (False, "not repeated: give the folder that the backgrounds came from")
    assert background_claim(explanation, backgrounds=rooms).holds
    shutil.copytree(rooms, rooms.parent / "moved")
    assert background_claim(explanation, backgrounds=rooms.parent / "moved").holds
    Image.new("RGB", (20, 30), (1, 2, 3)).save(rooms / "r3.png")
    claim = background_claim(explanation, backgrounds=rooms)
    assert not claim.holds
    assert claim.found.startswith("not repeated: these are other backgrounds (10 images of ")
    assert background_claim(explanation, backgrounds=rooms / "none").found.startswith("there is no folder")


@needs_bundled
@pytest.mark.usefixtures("without_figures")
def test_on_the_command_line_the_folder_is_given_again(tmp_path, rooms, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Image.fromarray(scene(0).image).save("scene.png")
    assert main(["explain", "scene.png", "--model", "bundled", "--holds", "0.8", "--backgrounds", "rooms"]) == 0
    assert "enough" in capsys.readouterr().out
    assert main(["verify", "becausal-out/scene"]) == 1
    assert "not repeated: give the folder" in capsys.readouterr().out
    assert main(["verify", "becausal-out/scene", "--backgrounds", "rooms"]) == 0
    assert "claims hold" in capsys.readouterr().out


def test_verifying_needs_the_function():
    explanation = explained(backgrounds=white_rooms)
    assert explanation.level.certificate.backgrounds["name"] == "white_rooms"
    assert background_claim(explanation).found == "not repeated: give the function that the backgrounds came from"
    assert background_claim(explanation, backgrounds=white_rooms).holds
    assert "other backgrounds" in background_claim(explanation, backgrounds=lambda view, rng: view).found
    count = np.count_nonzero(explanation.visible & (picture() == RED).all(axis=-1))
    assert count > 12  # in front of white


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"bound": 0.9999}, "levels[1].certificate: bound must be 0 to"),
        ({"failures": 101}, "levels[1].certificate: failures must be"),
        ({"share": "most"}, "levels[1].certificate.share"),
        ({"backgrounds": 3}, "levels[1].certificate.backgrounds"),
        ({"hidden": 1}, "levels[1].certificate"),
    ],
)
@pytest.mark.usefixtures("without_figures")
def test_a_saved_certificate_that_cannot_be_is_refused_in_one_line(tmp_path, change, said):
    folder = explained().save(tmp_path / "it")
    file = folder / "explanation.json"
    record = json.loads(file.read_text())
    record["levels"][-1]["certificate"] |= change
    file.write_text(json.dumps(record))
    with pytest.raises(OutputError) as error:
        Explanation.load(folder)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


# What stops it


def test_too_few_calls_leave_the_other_levels_and_a_note(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Image.fromarray(picture()).save("red.png")
    folders = [str(Path(__file__).parents[1] / folder) for folder in ("search", "api", ".")]
    Path("net.py").write_text(f"import sys\nsys.path[:0] = {folders!r}\nfrom test_enough import *\n")
    words = ["explain", "red.png", "--model", "python:net.py:red_square", "--fill", "black", "--holds", "0.9"]
    assert main([*words, "--max-calls", "60", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert [level["name"] for level in found["levels"]] == ["core"]
    assert found["calls"] <= 60
    assert any("the limit on calls was too low" in note for note in found["notes"])
    assert found["stopped_by"] == "budget"


@pytest.mark.parametrize("limit", [100, 200, 300, 400, 600, 900])
def test_the_limit_on_calls_is_kept_and_nothing_false_is_said(limit):
    explanation = explained(max_calls=limit)
    assert explanation.calls <= limit
    if explanation.level.name == "enough":
        assert explanation.level.certificate.holds
        assert true_share(explanation, explanation.visible) >= explanation.level.certificate.bound
    else:
        assert sum("random backgrounds" in note for note in explanation.notes) == 1
        assert explanation.target.floor > 0


@pytest.mark.parametrize("kind", ["scores", "labels"])
def test_with_150_calls_most_scenes_have_a_set_that_is_certified(kind):
    """Models whose calls cost money or seconds have so many by default."""
    model = becausal.load_model("bundled")
    asked = model if kind == "scores" else lambda images: model.classify(np.asarray(images)).argmax(axis=1)
    found = [becausal.explain(make_scene(seed).image, asked, max_calls=150) for seed in (50_000_100, 50_000_101, 50_000_103)]
    assert max(explanation.calls for explanation in found) <= 150
    assert {explanation.stopped_by for explanation in found} == {"budget"}
    notes = [note for explanation in found for note in explanation.notes]
    held = [explanation.level for explanation in found if explanation.level.certificate is not None]
    assert sum("in large steps" in note for note in notes) == len(held)
    assert len(held) >= 2
    for level in held:
        assert level.certificate.holds
        assert level.certificate.asked >= 44
        assert level.size < 0.8


class Stage:
    """A model that fails after so many answers; Ctrl-C is pressed once."""

    def __init__(self, error, after=0):
        self.left, self.error = after, error

    def __call__(self, batch):
        self.left -= len(batch)
        if self.left < 0:
            self.left += 10**9 * isinstance(self.error, KeyboardInterrupt)
            raise self.error
        return red_square(batch)


@pytest.mark.parametrize("after", [130, 200, 250, 300, 400, 500])
@pytest.mark.parametrize(
    ("error", "stopped_by"), [(KeyboardInterrupt(), "interrupt"), (RuntimeError("no memory"), "failure")]
)
def test_what_stops_the_search_leaves_sets_that_hold(error, stopped_by, after):
    explanation = becausal.explain(picture(), Stage(error, after), **BLACK)
    assert explanation.stopped_by == stopped_by
    assert names(explanation) in (["core"], ["core", "enough"])
    for level in explanation.levels:
        mutant = np.where(level.visible[..., None], explanation.view, explanation.backgrounds[0])
        assert red_square(mutant[None])[0, 1] >= 0.9 * explanation.confidence
    if explanation.level.name == "core":
        notes = [note for note in explanation.notes if "random backgrounds" in note]
        assert len(notes) == 1
        assert "0 of 0" not in notes[0]
    assert stopped_by == "interrupt" or "no memory" in explanation.notes[-1]


def test_a_file_that_is_no_image_ends_the_search_for_one_image_in_one_line(rooms):
    (rooms / "r4.png").write_bytes(b"not an image")
    request = Request(holds=HOLDS, fills=("black",), backgrounds=str(rooms))
    found = list(becausal.explain_many([picture(0), picture(1)], red_square, request=request))
    assert len(found) == 2
    for answer in found:  # nothing was found before that
        assert f"the background {rooms / 'r4.png'} cannot be used" in str(answer.error)
        assert "\n" not in str(answer.error)


def test_the_folder_of_backgrounds_counts_for_one_set_too(rooms):
    """Of one set in one fill, too, it is counted how far it holds: on these backgrounds."""
    dark = explained(holds=None).checks.transfer
    bright = becausal.explain(picture(), red_square, fills="black", backgrounds=white_rooms)
    assert names(bright) == ["core"]
    assert bright.checks.transfer.kept == 0 < dark.kept
    stated = [claim for claim in becausal.verify(bright, red_square) if claim.name == "random backgrounds"]
    again = [claim for claim in becausal.verify(bright, red_square, backgrounds=white_rooms) if "backgrounds" in claim.name]
    assert not any(claim.holds for claim in stated)  # the function is not at hand: on others it is another count
    assert [claim.found for claim in again] == ["0 of 40"]
    room = becausal.explain(picture(), red_square, fills="black", backgrounds=rooms)
    assert not failing(room, red_square, backgrounds=rooms)
    without = becausal.verify(room, red_square)
    assert without.holds
    assert any("transfer" in field for field in without.unchecked)


def test_a_folder_that_is_not_there_is_said_for_each_image(tmp_path):
    request = Request(holds=HOLDS, backgrounds=str(tmp_path / "none"))
    found = list(becausal.explain_many([picture(), picture()], red_square, request=request))
    assert all(isinstance(one, Failure) and "there is no folder" in str(one.error) for one in found)


def test_where_only_the_whole_view_will_do_a_note_says_so():
    explanation = becausal.explain(picture(), needs_all, holds=HOLDS, fills="white")
    assert names(explanation) == ["core"]
    goal = f"at least {100 * HOLDS:g} % of random backgrounds"
    assert f"no set smaller than the whole view was found that holds on {goal}" in explanation.notes


def red_or_bright(batch):
    """Three classes: red, as above; bright and dark, of which one or the other is second."""
    yes, light = scores_of(batch), np.asarray(batch).mean(axis=(1, 2, 3)) / 255
    return np.stack([yes, (1 - yes) * light, (1 - yes) * (1 - light)], axis=1)


def test_how_often_the_target_holds_with_nothing_visible_is_said():
    """A certificate for 80 % says little of a target that holds on half of the backgrounds without any pixel."""
    ahead = explained(red_or_bright, target=2, against=1, fills="white")
    said = "even with no pixel of the image visible, the target holds on "
    (note,) = (note for note in ahead.notes if note.startswith(said))
    sampler = RandomBackgrounds(ahead.view, 0)
    scores = red_or_bright(np.stack([sampler.draw(HELD_OUT + number) for number in range(20)]))
    kept = int((scores[:, 2] > scores[:, 1]).sum())
    assert 2 < kept < 20
    assert note == f"{said}{kept} of 20 random backgrounds"
    assert not any(note.startswith(said) for note in explained().notes)  # red is never the top label there
    assert not any(
        note.startswith(said) for note in explained(red_or_bright, target=2, against=1, fills="white", max_calls=300).notes
    )


def test_backgrounds_that_never_keep_the_label():
    """A colour that the model cannot stand: one visible pixel of it is enough to lose the label."""

    def poisoned(batch):
        yes = np.where((np.asarray(batch) == 255).all(axis=-1).any(axis=(1, 2)), 0.0, scores_of(batch))
        return np.stack([1 - yes, yes], axis=1)

    explanation = becausal.explain(
        picture(), poisoned, holds=HOLDS, fills="black", backgrounds=lambda view, rng: np.full_like(view, 255)
    )
    assert names(explanation) == ["core"]
    assert any("no set smaller than the whole view" in note for note in explanation.notes)
    assert explanation.stopped_by == "finished"
    assert explanation.checks.transfer.kept == 0

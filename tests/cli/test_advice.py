"""What the answer and the errors say to ask next: each is typed here as it is printed."""

import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import becausal
from becausal.core.errors import FillError, TargetError
from becausal.core.options import list_options
from becausal.core.request import Request
from becausal.interfaces.cli.app import main
from becausal.render.hints import list_hints
from becausal.render.report import render_report

MODEL = """
import numpy as np

def close(batch):
    '''Shop where the left half is bright, mailbox where the right one is.'''
    means = [batch[:, 4:12, side : side + 8].mean(axis=(1, 2, 3)) for side in (2, 22)]
    left, right = (np.maximum(mean - 160, 0) / 95 for mean in means)
    scores = 0.05 + np.stack([1.1 * left, right, 0.1 + 0 * left], axis=1)
    return scores / scores.sum(axis=1, keepdims=True)
close.labels, close.returns = ["tobacco shop", "mailbox", "other"], "probabilities"

def health(batch):
    '''Healthy unless a spot is bright; an image without content is healthy too.'''
    spot = 0.4 * (np.maximum(batch[:, 4:12, 2:10].mean(axis=(1, 2, 3)) - 160, 0) / 95)
    return np.stack([0.97 - spot, 0.02 + spot, 0 * spot + 0.01], axis=1)
health.labels, health.returns = ["healthy", "ill", "blurred"], "probabilities"

def twofold(batch):
    return health(batch)[:, :2] / health(batch)[:, :2].sum(axis=1, keepdims=True)
twofold.labels, twofold.returns = ["healthy", "ill"], "probabilities"

def pair(batch):
    return np.stack([0.2 + 0.35 * close(batch)[:, 0] / 0.49, 0.8 - 0.35 * close(batch)[:, 0] / 0.49], axis=1)
pair.labels, pair.returns = ["shop", "mailbox"], "probabilities"

def names(batch):
    return [close.labels[i] for i in close(batch).argmax(axis=1)]
names.output = "labels"
"""
QUICK = ["--method", "dc-causal", "--option", "partitions=3"]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, without_figures: None) -> Path:
    """A folder with models and an image whose two halves are bright."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(MODEL)
    pixels = np.random.default_rng(0).integers(0, 40, (32, 32, 3)).astype(np.uint8)
    pixels[4:12, 2:10] = pixels[4:12, 22:30] = 255
    Image.fromarray(pixels).save(tmp_path / "photo.png")
    return tmp_path


def explain(capsys: pytest.CaptureFixture[str], model: str, *words: str, status: int = 0) -> str:
    """What `becausal explain` prints about the image, on stdout and stderr."""
    capsys.readouterr()
    assert main(["explain", "photo.png", "--model", f"python:net.py:{model}", *words]) == status
    return "".join(capsys.readouterr())


def test_the_command_about_a_close_rival_runs(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = explain(capsys, "close", *QUICK)
    assert "mailbox (0.45) is close" in said
    command = re.search(r"rival .*to ask about mailbox: becausal (.*)", said)
    assert command is not None
    assert main(shlex.split(command[1])) == 0
    assert "mailbox" in capsys.readouterr().out.splitlines()[0]
    said = explain(capsys, "pair", *QUICK)  # two labels are always among the top two
    assert "mailbox (0.4" in said
    assert "to ask about" not in said


def test_a_label_behind_the_top_one_is_refused_with_the_option_that_helps(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = explain(capsys, "close", "--target", "mailbox", status=2)
    refused = "the model does not say mailbox here: its top label is tobacco shop (0.49), mailbox has rank 2 (0.45)"
    assert said.strip().endswith(f"{refused}: ask with --top 2 (top=2)")
    said = explain(capsys, "health", "--target", "blurred", status=2)
    command = re.search(r"blurred comes last \(0\.01\): .* with (--top 3 --confidence 0\.9) ", said)
    assert command is not None
    with pytest.raises(TargetError, match=r"mailbox \(0\.45\) is behind tobacco shop \(0\.49\)"):
        becausal.explain("photo.png", "python:net.py:close", target="mailbox", against="tobacco shop")


@pytest.mark.parametrize("model", ["health", "twofold"])
def test_a_label_that_an_image_without_content_has_too_is_refused_with_a_question_that_works(
    model: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = explain(capsys, model, status=2)
    assert "an image without content has this label: ask " in said
    assert "hardly depends" not in said
    assert "grey" not in said
    question = re.search(r"about ill \(0\.\d+\) with (--target ill --top 2[\w .-]*?),", said)
    assert question is not None
    assert "ill (0.4" in explain(capsys, model, *shlex.split(question[1]))


def test_a_share_of_the_confidence_is_kept_in_a_fill_in_which_it_is_lost() -> None:
    def model(batch: np.ndarray) -> np.ndarray:
        """Kite everywhere; with full confidence only where the image is dark or grey."""
        mean = batch.reshape(len(batch), -1).mean(axis=1) / 255
        score = 0.9 - 0.3 * np.maximum(mean - 0.6, 0)
        return np.stack([score, 1 - score], axis=1)

    pixels = np.random.default_rng(0).integers(0, 40, (16, 16, 3)).astype(np.uint8)
    explanation = becausal.explain(pixels, model, confidence=0.99)
    assert explanation.origin.request.fills == ("white",)
    assert explanation.checks.sufficient


def test_only_a_confidence_that_masking_does_not_change_is_said_to_depend_on_nothing(place: Path) -> None:
    for change, said in ((0.01, True), (0.08, False)):

        def model(batch: np.ndarray, change: float = change) -> np.ndarray:
            score = 0.8 + change * (batch.reshape(len(batch), -1).mean(axis=1) < 20)
            return np.stack([score, 1 - score], axis=1)

        with pytest.raises(FillError) as caught:
            becausal.explain(np.full((16, 16, 3), 60, np.uint8), model)
        assert ("the confidence hardly depends on the pixels of this image" in str(caught.value)) == said
        assert "an image without content has this label" in str(caught.value)


def test_a_model_that_returns_labels_only_has_no_core_and_a_note_says_why(place: Path) -> None:
    note = "the model returns labels only, so no set `core` keeps a confidence"
    found = becausal.explain("photo.png", "python:net.py:names")
    assert [level.name for level in found.levels] == ["label", "enough"]
    assert len([text for text in found.notes if text.startswith("the model returns labels only")]) == 1
    assert any(text.startswith(note) for text in found.notes)
    for other in (becausal.explain("photo.png", "python:net.py:names", smallest=True, method="dc-causal"),
                  becausal.explain("photo.png", "python:net.py:close", method="dc-causal")):  # fmt: skip
        assert not any(text.startswith(note) for text in other.notes)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--smallest"], "--smallest"),
        (["--confidence", "0.7"], "--confidence"),
        (["--fill", "black"], "--fill"),
        (["--contrast"], "--contrast"),
        (["--several", "2", "--method", "causal"], "--several"),
    ],
)
def test_where_one_kind_of_set_is_asked_for_the_answer_says_what_to_leave_out(
    words: list[str], named: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    quick = [] if "--several" in words else QUICK
    said = explain(capsys, "close", *quick, *words)
    assert said.count(f"one kind of set was asked for, in one fill: leave out {named} to get `enough`") == 1
    assert {option.flag for option in list_options(Request)} >= {named}


def test_several_fills_and_two_options_are_named_together() -> None:
    explanation = becausal.explain(
        np.eye(16)[..., None].repeat(3, 2).astype(np.uint8) * 255, lambda batch: np.stack(
            [batch.mean((1, 2, 3)) / 255 + 0.1, 0.9 - batch.mean((1, 2, 3)) / 255], axis=1)[:, ::-1],
        fills=("white", "#eeeeee"), smallest=True, method="dc-causal",
    )  # fmt: skip
    (scope, text), _ = list_hints(explanation)
    assert scope == "scope"
    assert "in these fills: leave out --smallest and --fill to get" in text


def test_two_options_with_the_usual_fill(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = explain(capsys, "close", *QUICK, "--confidence", "0.5", "--contrast")
    assert "in one fill: leave out --confidence and --contrast to get" in said


def test_the_only_image_has_a_word_on_seeds_and_many_images_have_none(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hint = "another seed may find another set: --seeds 4 shows how much they differ"
    said = explain(capsys, "close", *QUICK)
    assert said.count(hint) == 1
    assert "one kind of set" not in said
    assert hint not in explain(capsys, "close", *QUICK, "--seeds", "2")
    assert hint not in explain(capsys, "close", *QUICK, "--json")
    Image.open("photo.png").save("other.png")
    assert hint not in explain(capsys, "close", *QUICK, "other.png")
    found = becausal.explain("photo.png", "python:net.py:close", method="dc-causal", options={"partitions": 3})
    assert hint[1:] in render_report(found)

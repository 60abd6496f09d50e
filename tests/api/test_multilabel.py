"""Models of independent labels: the threshold from which on a label is present, and labels that score less."""

import json

import numpy as np
import pytest

import becausal
from becausal.core.errors import FillError, OptionError, TargetError
from becausal.interfaces.cli.app import main
from becausal.models import as_classifier, load_model

CODE = '''
import numpy as np

SIZE, RETURNS, LABELS = (8, 24), "multilabel", ["left", "middle", "right"]

def predict(batch):
    """The brightness of each third."""
    parts = [batch[:, :, i : i + 8].reshape(len(batch), -1).mean(axis=1) / 255 for i in (0, 8, 16)]
    return np.stack(parts, axis=1)
'''


def picture():
    """Left 0.78, middle 0.4, right 0.1."""
    pixels = np.zeros((8, 24, 3), np.uint8)
    pixels[:, :8], pixels[:, 8:16], pixels[:, 16:] = 200, 102, 25
    return pixels


@pytest.fixture
def spec(tmp_path):
    (tmp_path / "net.py").write_text(CODE)
    return f"python:{tmp_path / 'net.py'}:predict"


def model(**options):
    scope: dict[str, object] = {}
    exec(CODE, scope)
    predict = scope["predict"]
    predict.labels, predict.returns = scope["LABELS"], "multilabel"
    return as_classifier(predict, **options)


def test_a_label_below_the_threshold_keeps_a_share_of_its_own_score():
    explanation = becausal.explain(picture(), model(), target="middle", fills="black")
    assert explanation.target.threshold == pytest.approx(0.2)
    assert explanation.target.share == 0.5
    assert explanation.checks.sufficient
    assert not explanation.visible[:, :8].any()
    smallest = explanation.levels[0]
    assert smallest.checks.sufficient
    assert smallest.checks.confidence >= 0.2
    (note,) = [note for note in explanation.notes if "threshold" in note]
    assert note == (
        "the confidence in middle is 0.4, below the threshold of 0.5, so it counts as kept if at least 50 % of this is left "
        "(0.2): set "
        "another share with --confidence, or the threshold with --threshold"
    )
    said = str(explanation)
    assert said.startswith("The model gives middle a confidence of 0.40. ")  # it does not "say" middle
    assert "keep middle at a confidence of at least 0.2 " in said
    assert all(claim.holds for claim in explanation.verify(model()))


def test_confidence_sets_the_share():
    explanation = becausal.explain(picture(), model(), target="middle", fills="black", confidence=0.8)
    assert (explanation.target.threshold, explanation.target.share) == (pytest.approx(0.32), 0.8)
    assert explanation.checks.confidence >= 0.32
    assert all(claim.holds for claim in explanation.verify(model()))


def test_the_threshold_is_a_loading_option():
    low = model(threshold=0.3)
    assert low.info.threshold == 0.3
    explanation = becausal.explain(picture(), low, target="middle", fills="black", smallest=True)
    assert (explanation.target.threshold, explanation.target.share) == (0.3, None)
    assert 0.3 <= explanation.checks.confidence < 0.34
    assert explanation.origin.loading == {"threshold": 0.3}
    assert not [note for note in explanation.notes if "threshold" in note]
    high = becausal.explain(picture(), model(threshold=0.8), fills="black")  # the top label itself is below
    assert (high.label, high.target.share) == ("left", 0.5)


def test_labels_that_are_compared_need_no_threshold():
    pixels = picture()
    pixels[:, 8:] = pixels[:, :7:-1]  # middle 0.1, right 0.4
    explanation = becausal.explain(pixels, model(), target="right", top=2, fills="black")
    assert (explanation.target.top, explanation.target.threshold) == (2, None)
    assert explanation.checks.sufficient
    assert "among the top 2 labels" in str(explanation)
    explanation = becausal.explain(pixels, model(), target="right", against="middle", fills="black")
    assert explanation.target.threshold is None
    assert explanation.checks.sufficient
    with pytest.raises(TargetError, match="the model does not say middle here: its top label is left"):
        becausal.explain(pixels, model(), target="middle", top=2, fills="black")


def test_a_label_without_any_score_is_not_explained():
    dark = picture()
    dark[:, 16:] = 0
    with pytest.raises(TargetError, match="does not hold on the whole view"):
        becausal.explain(dark, model(), target="right", fills="black")


def test_a_label_that_is_there_with_everything_masked_is_refused_with_its_own_scores():
    faint = picture()
    faint[:, 16:] = 2  # right has 0.008 here, and 0.78 in one plain colour, where left has more in either
    with pytest.raises(FillError) as caught:
        becausal.explain(faint, model(), target="right", fills="#c8c8c8")
    said = (
        "the model gives right 0.008 here, and 0.78 to an image under the fill #c8c8c8, so there is nothing to explain; use"
    )
    assert str(caught.value).startswith(said)
    with pytest.raises(FillError) as caught:  # the same in every fill
        becausal.explain(faint, steady(), target="tree")
    assert str(caught.value) == (
        "the model gives tree 0.01 here, and 0.02 to an image in one plain colour, so there is nothing to explain; in every "
        "other built-in fill too, an image without content has at least 50 % of this confidence: ask for another label with "
        "--target, or see `becausal inspect`"
    )
    (note,) = [note for note in becausal.explain(faint, model(), target="right").notes if "masked pixels" in note]
    assert note.startswith("one plain colour has at least 50 % of this confidence already, so masked pixels become black")


def steady():
    """Two labels, bus and tree; tree has 0.01 in images with contrast, and else 0.02."""

    def predict(batch):
        spread = batch.reshape(len(batch), -1).std(axis=1)
        return np.stack([np.full(len(batch), 0.37), np.where(spread > 80, 0.01, 0.02)], axis=1).astype(np.float32)

    predict.labels, predict.returns = ["bus", "tree"], "multilabel"
    return as_classifier(predict)


def test_a_threshold_is_refused_where_labels_exclude_each_other(spec):
    for options in ({"threshold": 0.3}, {"threshold": 0.3, "returns": "probabilities"}):
        with pytest.raises(OptionError, match="threshold is for object detectors and multi-label models"):
            as_classifier(lambda batch: np.tile(np.float32([0.9, 0.1]), (len(batch), 1)), **options)
    assert load_model(spec, threshold=0.3).info.threshold == 0.3
    with pytest.raises(OptionError, match="the threshold is a score above 0 and up to 1"):
        load_model(spec, threshold=1.5)


@pytest.mark.usefixtures("without_figures")
def test_the_command_line_says_it_in_one_sentence(tmp_path, spec, capsys):
    np.save(tmp_path / "p.npy", picture())
    command = ["explain", str(tmp_path / "p.npy"), "--model", spec, "--target", "middle", "--fill", "black"]
    assert main([*command, "--out", str(tmp_path / "a")]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "the confidence in middle is 0.4, below the threshold of 0.5, so it counts as kept if" in said
    assert main([*command, "--threshold", "0.3", "--out", str(tmp_path / "b")]) == 0
    assert "below the threshold" not in capsys.readouterr().out
    record = json.loads((tmp_path / "b" / "p" / "explanation.json").read_text())
    assert (record["target"]["threshold"], record["origin"]["loading"]) == (0.3, {"threshold": 0.3})
    assert main(["verify", str(tmp_path / "a" / "p"), "--model", spec]) == 0
    capsys.readouterr()
    assert main(["inspect", spec, "--threshold", "0.3"]) == 0
    assert "a label counts as present if its confidence is at least 0.3" in " ".join(capsys.readouterr().out.split())

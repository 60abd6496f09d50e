"""Records of the version before, made by it: they are read, say of their sets what is still known, and verify."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import becausal
from becausal.api.explanation import Explanation
from becausal.core.errors import OutputError
from becausal.core.explanation import SCHEMA

HOME = Path(__file__).parent / "schema_2"  # saved by version 2 of the schema: a red square in the middle, black elsewhere
RED = (200, 30, 31)


def red_square(batch):
    """The model they were made with: the more light there is elsewhere, the more red is needed."""
    batch = np.asarray(batch)
    red = (batch == RED).all(axis=-1)
    count = red.sum(axis=(1, 2))
    light = np.where(red, 0.0, batch.mean(axis=-1)).sum(axis=(1, 2)) / np.maximum(1, (~red).sum(axis=(1, 2))) / 255
    yes = 1 / (1 + np.exp(-np.clip(count - 3 - 15 * light, -30, 30)))
    return np.stack([1 - yes, yes], axis=1)


def failing(explanation, **options):
    return {claim.name for claim in explanation.verify(red_square, **options) if not claim.holds}


def test_a_record_of_levels_is_read():
    loaded = Explanation.load(HOME / "plain")
    assert [(level.name, level.share) for level in loaded.levels] == [("label", 0.0), ("50%", 0.5), ("core", 0.9)]
    label, half, core = loaded.levels
    assert label.checks.minimal_grain == 1
    assert (
        half.checks.minimal_grain is core.checks.minimal_grain is None
    )  # it was claimed of what they add, not of all cells
    assert all(level.checks.transfer is None and level.panel == () for level in loaded.levels)
    assert loaded.zones is None
    assert loaded.against is None
    assert core.visible is loaded.visible
    assert loaded.record()["schema"] == SCHEMA
    assert str(loaded)


def test_a_record_of_a_set_for_random_backgrounds_is_read():
    loaded = Explanation.load(HOME / "holds")
    assert [level.name for level in loaded.levels] == ["label", "50%", "core", "enough"]
    assert loaded.level.certificate.holds
    assert loaded.level.panel == ()
    assert loaded.level.checks.minimal_grain is None
    assert loaded.checks == loaded.level.checks


@pytest.mark.parametrize("kind", ["plain", "holds"])
def test_what_is_still_claimed_of_it_holds(kind):
    loaded = Explanation.load(HOME / kind)
    assert failing(loaded) == set()
    names = [claim.name for claim in loaded.verify(red_square)]
    assert "core: sufficient" in names or kind == "plain"
    assert ("random backgrounds" in names) == (kind == "holds")


@pytest.mark.parametrize("kind", ["plain", "holds"])
def test_it_can_be_saved_again(kind, tmp_path, without_figures):
    loaded = Explanation.load(HOME / kind)
    again = Explanation.load(loaded.save(tmp_path / "it"))
    assert json.loads((tmp_path / "it" / "explanation.json").read_text())["schema"] == SCHEMA
    for one, other in zip(loaded.levels, again.levels, strict=True):
        assert (one.name, one.share, one.checks, one.certificate) == (
            other.name,
            other.share,
            other.checks,
            other.certificate,
        )
        assert np.array_equal(one.visible, other.visible)
    assert failing(again) == set()


def change(folder, tmp_path, function):
    copy = shutil.copytree(folder, tmp_path / "changed")
    record = json.loads((copy / "explanation.json").read_text())
    function(record)
    (copy / "explanation.json").write_text(json.dumps(record))
    return copy


def boast(record):
    record["levels"][2]["confidence"] = record["checks"]["confidence"] = record["explanation"]["confidence"] = 0.999


def raise_share(record):
    record["levels"][2]["share"] = 0.99


@pytest.mark.parametrize(("function", "name"), [(boast, "confidence"), (raise_share, "sufficient")])
def test_a_changed_record_is_found_out(function, name, tmp_path):
    assert name in failing(Explanation.load(change(HOME / "plain", tmp_path, function)))


@pytest.mark.parametrize(
    "function",
    [
        lambda record: record.update(schema="becausal/explanation/1"),
        lambda record: record.update(levels=3),
        lambda record: record.update(levels=[1, 2, 3]),
        lambda record: record.update(origin=None),
        lambda record: record["origin"].update(request=[]),
        lambda record: record.update(checks=None),
        lambda record: record["levels"][1].update(share="half"),
        lambda record: record["levels"][1].update(share=None),
    ],
)
def test_a_record_that_makes_no_sense_is_refused_in_one_line(function, tmp_path):
    folder = change(HOME / "plain", tmp_path, function)
    with pytest.raises(OutputError) as error:
        Explanation.load(folder)
    assert "\n" not in str(error.value)


def test_the_model_of_these_records_still_has_two_sets():
    view = Explanation.load(HOME / "plain").view
    assert [level.name for level in becausal.explain(view, red_square).levels] == ["core", "enough"]

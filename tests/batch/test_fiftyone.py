"""The export for FiftyOne, read back as documented and, where FiftyOne is installed, by its own importer.

FiftyOne needs MongoDB for a data set, not for its importer, so that is what is used.
"""

import json
from pathlib import Path

import numpy as np
import pytest
from batch_toys import MODEL, QUICK, write_doubtful
from PIL import Image

from becausal.api.explanation import Explanation
from becausal.interfaces.cli.app import main


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Three images, one of them twice as wide as the view; nothing speaks against the label of the last."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "net.py").write_text("SIZE = 24\n" + MODEL)
    shots = write_doubtful(folder / "shots", 3)
    Image.fromarray(np.asarray(Image.open(shots / "p01.png")).repeat(2, axis=1)).save(shots / "p01.png")
    words = ["batch", str(shots), "--model", f"python:{folder}/net.py:doubts", "--out", str(folder / "run"), *QUICK]
    assert main(words) == 0
    return folder / "run"


@pytest.fixture
def dataset(run, tmp_path, capsys):
    assert main(["export", str(run), "--format", "fiftyone", "--out", str(tmp_path / "dataset")]) == 0
    assert "3 explanations in" in capsys.readouterr().out
    return tmp_path / "dataset"


def saved(run, number):
    return Explanation.load(run / "explanations" / "000" / f"{number:06d}")


def sets_of(found):
    sets = {"explanation": found.visible, "core": found.levels[0].visible}
    return sets if found.against is None else sets | {"against": found.against.visible}


def test_the_folder_is_as_fiftyone_documents_it(run, dataset):
    metadata = json.loads((dataset / "metadata.json").read_text())
    assert metadata["media_type"] == "image"
    assert "version" not in metadata  # else it is read as documents of a database
    samples = json.loads((dataset / "samples.json").read_text())["samples"]
    for number, sample in enumerate(samples):
        found = saved(run, number)
        assert Path(sample["filepath"]).is_absolute()
        assert sample["prediction"] == {
            "_cls": "Classification",
            "label": "bright",
            "confidence": pytest.approx(found.confidence),
        }
        assert sample["share"] == pytest.approx(found.size)
        assert sample["core_size"] == found.levels[0].size
        for name, level in zip(("core_backgrounds", "backgrounds"), found.levels, strict=True):
            held = level.checks.transfer
            assert [sample[name + end] for end in ("", "_low", "_high")] == [held.share, held.low, held.high]
        for name, visible in sets_of(found).items():
            mask = np.asarray(Image.open(dataset / sample[name]["mask_path"]))
            assert np.array_equal(mask, found.on_original(visible) * 255)
        assert ("against" in sample) == (found.against is not None) == (number < 2)
        if found.against is not None:
            assert sample["against_gain"] == found.against.gain
        mask = np.asarray(Image.open(dataset / sample["explanation"]["mask_path"]))
        heat = np.asarray(Image.open(dataset / sample["heat_map"]["map_path"]))
        with Image.open(sample["filepath"]) as original:
            assert mask.shape == heat.shape == original.size[::-1]
        assert np.array_equal(mask > 0, found.on_original(found.visible))
        assert set(np.unique(mask)) == {0, 255}
        assert heat.max() == 255


def test_fiftyone_itself_reads_it(run, dataset, monkeypatch):
    monkeypatch.setenv("FIFTYONE_DISABLE_SERVICES", "1")
    monkeypatch.setenv("FIFTYONE_DO_NOT_TRACK", "1")
    data = pytest.importorskip("fiftyone.utils.data")
    importer = data.FiftyOneDatasetImporter(dataset_dir=str(dataset))
    assert importer._is_legacy_format_data()
    importer = importer._to_legacy_importer()
    importer.setup()
    assert len(importer) == 3
    for number, sample in enumerate(importer):
        found = saved(run, number)
        assert (sample.prediction.label, sample.prediction.confidence) == ("bright", pytest.approx(found.confidence))
        for name, visible in sets_of(found).items():
            assert np.array_equal(sample[name].get_mask() > 0, found.on_original(visible))
        assert sample.core_backgrounds == found.levels[0].checks.transfer.share
        assert sample.heat_map.get_map().max() == 255
        assert sample.share == pytest.approx(found.size)


def test_it_is_written_again_but_not_over_other_files(run, dataset, tmp_path, capsys):
    assert main(["export", str(run), "--format", "fiftyone", "--out", str(dataset)]) == 0
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep")
    capsys.readouterr()
    assert main(["export", str(run), "--format", "fiftyone", "--out", str(tmp_path / "mine")]) == 2
    assert "has other files: give a new folder" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["notes.txt"]
    assert main(["export", str(run), "--format", "fiftyone", "--out", str(tmp_path / "mine" / "notes.txt")]) == 2
    assert main(["export", str(run), "--format", "fiftyone"]) == 0
    assert (run / "fiftyone" / "samples.json").is_file()

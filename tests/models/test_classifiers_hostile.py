"""Model files and user code on a bad day: odd files, deep nesting, prints, questions on stdin."""

import io
import json
import os
import subprocess
import sys
import threading

import numpy as np
import pytest
from PIL import Image

from becausal.core.errors import BecausalError, ModelError
from becausal.interfaces.cli.app import main
from becausal.models import load_model
from becausal.models.labels import read_labels
from becausal.models.loading import read_toml
from becausal.models.user_code import stdout_to_stderr

NOISY = """
import sys
print("while loading")
SIZE, LABELS, RETURNS = 8, ["dark", "bright"], "probabilities"

def predict(batch):
    import numpy as np
    print("while predicting")
    sys.stdout.write("more")
    bright = batch.mean(axis=(1, 2, 3)) / 255
    return np.stack([1 - bright, bright], axis=1)
"""


def test_what_a_model_prints_goes_to_stderr(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(NOISY)
    Image.fromarray(np.full((8, 8, 3), 240, np.uint8)).save("a.png")
    command = ["explain", "a.png", "--model", "python:net.py:predict", "--fill", "black", "--max-calls", "40", "--json"]
    assert main([*command, "--out", "out"]) == 0
    out, err = capsys.readouterr()
    json.loads(out)
    assert "while loading" in err
    assert "while predicting" in err


def test_what_a_torch_module_prints_goes_to_stderr(tmp_path, capsys):
    pytest.importorskip("torch")
    (tmp_path / "net.py").write_text(
        "import torch\nSIZE, RETURNS = 8, 'logits'\nprint('loading')\n"
        "class Net(torch.nn.Module):\n"
        "    def forward(self, x):\n        print('running')\n        return x.mean((2, 3))\n"
        "def build():\n    print('building')\n    return Net()\n"
    )
    model = load_model(f"torch:{tmp_path / 'net.py'}:build")
    model.classify(np.zeros((1, 8, 8, 3), np.uint8))
    out, err = capsys.readouterr()
    assert out == ""
    assert all(word in err for word in ("loading", "building", "running"))


def test_threads_that_overlap_leave_stdout_as_it_was():
    before = sys.stdout
    first_in, second_in = threading.Event(), threading.Event()

    def first():
        with stdout_to_stderr():
            first_in.set()
            second_in.wait(5)

    thread = threading.Thread(target=first)
    thread.start()
    first_in.wait(5)
    with stdout_to_stderr():
        second_in.set()
        thread.join(5)
        assert sys.stdout is sys.stderr
    assert sys.stdout is before


def make_fifo(path):
    os.mkfifo(path)
    return path


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
@pytest.mark.parametrize("options", [["--labels", "pipe.txt"], ["--preprocess", "pipe.toml"], ["--model", "pipe.onnx"],
                                     ["--model", "pipe.keras"], ["--model", "python:pipe.py:f"], ["--labels", "/dev/zero"],
                                     ["--labels", "."]])  # fmt: skip
def test_only_regular_files_are_opened(tmp_path, options):
    for suffix in ("txt", "toml", "onnx", "keras", "py"):
        make_fifo(tmp_path / f"pipe.{suffix}")
    model = [] if "--model" in options else ["bundled"]
    words = [word for word in options if word != "--model"]
    command = [sys.executable, "-m", "becausal", "inspect", *model, *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "unexpected" not in done.stderr
    assert "not a regular file" in done.stderr


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"a": 1}',
        '{"0": {"x": 1}}',
        "[null]",
        "[1e999]",
        "5",
        '["a", NaN]',
        "[" + "9" * 5000 + "]",
        '{"99999999999999999999": "a"}',
        '{"1e5": "a"}',
    ],
)
def test_label_files_that_make_no_sense(tmp_path, text):
    path = tmp_path / "labels.json"
    path.write_text(text)
    with pytest.raises(ModelError) as caught:
        read_labels(path)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    "text",
    [
        "mean = " + "[" * 100_000,
        "labels = 5",
        "labels = [1, 2]",
        "labels = {a = 1}",
        "labels = 'nowhere.txt'",
        f"scale = {'9' * 400}",
        "scale = inf",
        "std = [0.0]",
        "mean = [nan]",
        "mean = 'a'",
        "crop = 99999",
        "crop = {a = 1}",
        "crop = [1, 2, 3]",
        "resize = [1]",
        "returns = 3",
        "layout = []",
        "input = 3",
        "order = {}",
        "interpolation = {}",
        "a.b.c = 1",
        "x" * 100,
    ],
)
def test_toml_files_that_make_no_sense(tmp_path, text):
    path = tmp_path / "net.toml"
    path.write_text(text)
    with pytest.raises(BecausalError) as caught:
        read_toml(path).plan_preprocessing(3, None)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_files_that_are_too_large_or_no_text(tmp_path, monkeypatch):
    path = tmp_path / "labels.txt"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ModelError, match="cannot be read"):
        read_labels(path)
    monkeypatch.setattr("becausal.models.labels._MAX_FILE", 2**20)
    path.write_text("a\n" * 2**20)
    with pytest.raises(ModelError, match="larger than 1 MiB"):
        read_labels(path)
    with pytest.raises(ModelError, match="not the name of a file"):
        read_labels("a\0b")


@pytest.mark.libraries
def test_a_hugging_face_folder_with_code_is_refused_without_a_question(tmp_path, monkeypatch, capfd):
    pytest.importorskip("transformers")
    config = {
        "model_type": "mine",
        "architectures": ["Mine"],
        "auto_map": {"AutoConfig": "mine.Mine", "AutoModelForImageClassification": "mine.Mine"},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "mine.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\n")
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    assert main(["inspect", f"hf:{tmp_path}"]) == 2
    out, err = capfd.readouterr()
    assert not (tmp_path / "ran").exists()
    assert "[y/N]" not in out + err
    assert err.count("\n") == 1
    assert sys.stdin.read() == "y\n"  # nobody has read it

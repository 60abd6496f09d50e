"""The command line, through its entry point, with models that are a few lines of Python."""

import ast
import inspect
import json
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from collections import Counter
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pytest
import typer
from PIL import Image
from rich.console import Console

import becausal
from becausal.api.explanation import FILES, Explanation
from becausal.core.errors import OptionError, OutputError
from becausal.core.request import parse_grain, parse_options
from becausal.interfaces.cli import progress
from becausal.interfaces.cli.app import app, main
from becausal.interfaces.cli.console import check_writable
from becausal.interfaces.cli.explain import IMAGE, print_demo
from becausal.interfaces.cli.folders import choose_folders
from becausal.interfaces.cli.options import OptionGroup, expand_options
from becausal.interfaces.cli.progress import InterruptHandler, ProgressBar
from becausal.methods import read_meanings
from becausal.models.loading import Loading
from becausal.render.wording import describe_level

MODEL = """
import numpy as np
LABELS = ["dark", "bright"]
OUTPUT = "probabilities"

def predict(batch):
    '''Bright where the square at rows and columns 8 to 16 is.'''
    share = (batch[:, 8:16, 8:16].mean(axis=(1, 2, 3)) / 255) ** 2
    return np.stack([1 - share, share], axis=1)

def labels_only(batch):
    return ["bright" if s > 140 else "dark" for s in batch[:, 8:16, 8:16].mean(axis=(1, 2, 3))]
labels_only.output = "labels"
"""
TWO_REASONS = """
def either(batch):
    '''Bright where one of two patches is.'''
    patches = [batch[:, 4:8, 4:8], batch[:, 20:28, 20:24]]
    share = np.max([patch.min(axis=(1, 2, 3)) for patch in patches], axis=0) / 255
    return np.stack([1 - share, share], axis=1)
"""
QUICK = ["--method", "dc-causal", "--option", "partitions=3"]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, with an image, a model and nothing else."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(MODEL)
    draw(tmp_path / "photo.png")
    return tmp_path


def draw(path: Path, side: int = 32) -> Path:
    """A black image with the bright square."""
    pixels = np.zeros((side, side, 3), np.uint8)
    pixels[8:16, 8:16] = 255
    path.parent.mkdir(exist_ok=True)
    Image.fromarray(pixels).save(path)
    return path


def run(*words: str) -> int:
    return main([str(word) for word in words])


def test_explain_writes_five_files_and_a_summary(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("explain", "photo.png", "--model", "python:net.py:predict", *QUICK) == 0
    said, complaints = capsys.readouterr()
    folder = place / "becausal-out" / "photo"
    assert sorted(path.name for path in folder.iterdir()) == sorted(FILES)
    assert said.startswith("photo.png: The model says bright (1.00). ")
    assert "sufficient" in said
    assert "becausal-out/photo" in said
    assert not complaints
    explanation = Explanation.load(folder)
    assert explanation.checks.sufficient
    assert explanation.origin.options["partitions"] == 3


@pytest.mark.usefixtures("without_figures")
def test_the_summary_has_a_line_for_every_explanation(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "net.py").write_text(MODEL + TWO_REASONS)
    pixels = np.zeros((32, 32, 3), np.uint8)
    pixels[4:8, 4:8] = pixels[20:28, 20:24] = 255
    Image.fromarray(pixels).save("two.png")
    words = ["explain", "two.png", "--model", "python:net.py:either", "--fill", "black", "--grain", "4"]
    assert run(*words, "--several", "3") == 0
    said = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    found = Explanation.load("becausal-out/two")
    assert sorted(each.pixels for each in found.sets) == [16, 32]
    for name, each in (("set 1", found), ("set 2", found.others[0])):
        size = f"{100 * each.visible.mean():.1f} % of the view: {each.pixels} pixels in 1 piece"
        line = next(line for line in said if line.startswith(f"{name} "))
        assert line.startswith(f"{name} {size}, confidence {each.checks.confidence:.2f}")
    assert ", sufficient, " in line
    assert line.endswith("minimal at 4 px, not necessary")
    assert "note 2 of 3 explanations were found" in said
    assert run(*words, "--smallest") == 0
    assert capsys.readouterr().out.count("of the view: ") == 1
    assert run(*words, "--holds", "0.9") == 0
    said = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    found = Explanation.load("becausal-out/two")
    names = [level.name for level in found.levels]
    assert names[0] == "core"
    for level in found.levels:
        assert f"{level.name} {describe_level(level)}" in said
    assert sum(line.startswith("random backgrounds ") for line in said) == len(names)  # how far each of them holds
    assert sum(line.startswith("minimal ") for line in said) == len(names)


@pytest.mark.usefixtures("without_figures")
def test_json_is_one_document_and_nothing_else(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["explain", "photo.png", "--model", "python:net.py:predict", *QUICK, "--out", "here", "--json"]
    assert run(*words) == 0
    said, complaints = capsys.readouterr()
    (entry,) = json.loads(said)
    assert not complaints
    assert entry["image"] == "photo.png"
    assert (entry["label"], entry["label_id"], entry["stopped_by"]) == ("bright", 1, "finished")
    assert entry["method"] == "dc-causal"
    assert entry["calls"] > 0
    assert {"confidence", "seconds"} <= set(entry)
    wanted = {"size", "pixels", "confidence", "sufficient", "necessary", "minimal_grain"}
    assert wanted <= set(entry["explanation"])
    assert (Path(entry["folder"]) / "report.html").is_file()


@pytest.mark.usefixtures("without_figures")
def test_a_bad_image_does_not_keep_the_others_from_being_done(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    draw(place / "other" / "photo.png")
    words = ["explain", "photo.png", "missing.png", "other/photo.png", "--model", "python:net.py:predict", *QUICK]
    assert run(*words, "--json") == 2
    said, complaints = capsys.readouterr()
    first, bad, second = json.loads(said)
    assert first["folder"] != second["folder"]
    assert Path(second["folder"]).name == "photo-2"
    assert set(bad) == {"image", "error"}
    assert complaints.count("\n") == 1
    assert "missing.png" in complaints
    assert sorted(path.name for path in (place / "becausal-out").iterdir()) == ["photo", "photo-2"]


LOUD = (
    MODEL
    + """
import os, sys
print("loading")

def loud(batch):
    print("evaluating")
    sys.stdout.flush()
    os.write(1, b"from C\\n")
    return predict(batch)
"""
)


@pytest.mark.process
def test_what_a_model_prints_is_not_part_of_a_document(place: Path) -> None:
    (place / "net.py").write_text(LOUD)
    model = ["--model", "python:net.py:loud"]
    commands = [
        ["explain", "photo.png", *model, *QUICK],
        ["compare", "photo.png", *model, "--methods", "random", "--max-calls", "60"],
        ["batch", "photo.png", *model, "--out", "run", *QUICK],
        ["inspect", "python:net.py:loud", "photo.png"],
    ]
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "becausal", *words, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for words in commands
    ]
    for process in processes:
        said, complaints = process.communicate(timeout=60)
        assert process.returncode == 0, complaints
        assert json.loads(said)
        assert "evaluating" in complaints
        assert "from C" in complaints


def test_a_document_is_printed_even_if_stderr_is_closed(place: Path) -> None:
    (place / "net.py").write_text(LOUD.replace("os.write(1", "print(1"))
    shell = f"{sys.executable} -m becausal inspect python:net.py:loud photo.png --json 2>&-"
    done = subprocess.run(["bash", "-c", shell], cwd=place, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0
    assert json.loads(done.stdout)["top"][0]["label"] == "bright"


@pytest.mark.usefixtures("without_figures")
def test_a_label_only_model_is_explained(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("explain", "photo.png", "--model", "python:net.py:labels_only", *QUICK, "--json") == 0
    (entry,) = json.loads(capsys.readouterr().out)
    assert entry["confidence"] is None
    assert entry["explanation"]["sufficient"] is True


@pytest.mark.usefixtures("without_figures")
def test_options_reach_the_search(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--fill", "black", "--fill", "grey", "--grain", "4", "--seed", "5", "--confidence", "0.9", "--top", "1"]
    assert run("explain", "photo.png", "--model", "python:net.py:predict", *QUICK, *words, "--json") == 0
    (entry,) = json.loads(capsys.readouterr().out)
    explanation = Explanation.load(entry["folder"])
    assert explanation.origin.request.fills == ("black", "grey")
    assert (explanation.origin.grain, explanation.origin.request.seed) == (4, 5)
    assert explanation.target.floor == pytest.approx(0.9)
    assert entry["explanation"]["minimal_grain"] == 4
    assert 61 <= entry["explanation"]["pixels"] <= 64  # all but a few pixels of the square


@pytest.mark.usefixtures("without_figures")
def test_a_spent_budget_is_marked(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--method", "dc-causal", "--max-calls", "40"]
    assert run("explain", "photo.png", "--model", "python:net.py:predict", *words) == 0
    assert "cut short" in capsys.readouterr().out
    explanation = Explanation.load("becausal-out/photo")
    assert explanation.stopped_by == "budget"
    assert explanation.calls <= 40


INTERRUPTING = (
    MODEL
    + """
import signal
batches = 0

def interrupted(batch):
    global batches
    batches += 1
    if {when}:
        signal.raise_signal(signal.SIGINT)
    return predict(batch)
"""
)


@pytest.mark.usefixtures("without_figures")
def test_the_first_interrupt_gives_the_best_so_far(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "net.py").write_text(INTERRUPTING.format(when="batches == 6"))
    assert run("explain", "photo.png", "photo.png", "--model", "python:net.py:interrupted", "--method", "dc-causal") == 130
    said, complaints = capsys.readouterr()
    assert "interrupted" in said
    assert complaints.startswith("becausal: stopping: ")
    assert [path.name for path in (place / "becausal-out").iterdir()] == ["photo"]
    assert Explanation.load("becausal-out/photo").stopped_by == "interrupt"


def test_the_second_interrupt_ends_it(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "net.py").write_text(INTERRUPTING.format(when="batches >= 6"))
    assert run("explain", "photo.png", "--model", "python:net.py:interrupted", "--method", "dc-causal") == 130
    assert not (place / "becausal-out").exists()
    assert "Traceback" not in capsys.readouterr().err


def test_an_interrupt_handler_asks_to_stop_first_and_raises_then(capsys: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with InterruptHandler("one moment", signal.SIGINT, signal.SIGTERM) as interrupts:
        assert not interrupts.is_stopping
        signal.raise_signal(signal.SIGTERM)
        assert interrupts.is_stopping
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
    assert capsys.readouterr().err == "becausal: stopping: one moment\n"


def test_without_a_terminal_progress_is_a_line_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = iter([0.0, 1.0, 31.0, 31.0, 32.0])  # a new bar, then a look at each update and one at each line
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(now))
    with ProgressBar(has_log=True) as bar:
        for done in (1, 2, 3):
            bar.update(done, 3, f"{done} of 3")
    assert capsys.readouterr().err == "becausal: 2 of 3\n"
    monkeypatch.undo()
    for silent in (ProgressBar(has_log=True, quiet=True), ProgressBar("title")):
        with silent as bar, bar.paused(is_last=False):
            bar.update(1, None, "text")
    assert capsys.readouterr().err == ""


def test_a_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(progress, "open_console", lambda stderr: Console(stderr=stderr, force_terminal=True, width=100))
    with ProgressBar("a\ntitle", has_time_left=True) as bar:
        bar.update(1, 2, "[halfway]")
        with bar.paused(is_last=False):
            print("between")
        bar.update(2, 2, "done")
    out, err = capsys.readouterr()
    assert out == "between\n"
    assert "a title" in err
    assert "[halfway]" in err


@pytest.mark.usefixtures("without_figures")
def test_verify_repeats_the_claims(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("explain", "photo.png", "--model", "python:net.py:predict", *QUICK, "--grain", "4", "--json") == 0
    capsys.readouterr()
    assert run("verify", "becausal-out/photo", "--trust") == 0
    assert "claims hold" in capsys.readouterr().out
    assert run("verify", "becausal-out/photo", "--trust", "--json") == 0
    record = json.loads(capsys.readouterr().out)
    assert record["holds"] is True
    assert {claim["name"] for claim in record["claims"]} >= {"sufficient", "core: minimal", "necessary", "confidence"}


@pytest.mark.usefixtures("without_figures")
def test_verify_finds_out_another_model(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("explain", "photo.png", "--model", "python:net.py:predict", *QUICK, "--json") == 0
    (place / "net.py").write_text(MODEL.replace("/ 255)", "/ 2550)"))
    capsys.readouterr()
    assert run("verify", "becausal-out/photo", "--trust") == 1
    said = capsys.readouterr().out
    assert "not the model that was explained" in said
    assert "does not hold" in said
    (place / "net.py").unlink()
    assert run("verify", "becausal-out/photo", "--trust") == 2
    assert "--model" in capsys.readouterr().err


def test_inspect_says_how_a_model_is_read(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("inspect", "python:net.py:predict", "photo.png") == 0
    said = capsys.readouterr().out
    assert "2 names" in said
    assert "1.0000  bright (1)" in said
    assert run("inspect", "python:net.py:predict", "photo.png", "--json") == 0
    record = json.loads(capsys.readouterr().out)
    assert record["top"][0] == {"label_id": 1, "label": "bright", "confidence": 1.0}
    assert record["labels"] == 2


def test_inspect_classifies_several_images(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Image.new("RGB", (32, 32)).save("night.png")
    assert run("inspect", "python:net.py:predict", "photo.png", "night.png") == 0
    said = capsys.readouterr().out
    assert (
        said.index("photo.png") < said.index("1.0000  bright (1)") < said.index("night.png") < said.index("1.0000  dark (0)")
    )
    assert run("inspect", "python:net.py:predict", "photo.png", "missing.png", "night.png", "--json") == 2
    said, complaints = capsys.readouterr()
    first, bad, second = json.loads(said)["images"]
    assert (first["top"][0]["label"], second["top"][0]["label"]) == ("bright", "dark")
    assert set(bad) == {"image", "error"}
    assert complaints.startswith("becausal: error: ")
    assert complaints.count("\n") == 1
    assert "missing.png" in complaints


@pytest.mark.usefixtures("without_figures")
def test_compare_keeps_a_share_of_the_confidence(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["compare", "photo.png", "--model", "python:net.py:predict", "--methods", "causal,random", "--fill", "black"]
    sizes = []
    for extra in (["--smallest"], ["--confidence", "0.9"], []):
        assert run(*words, *extra, "--json", "--out", f"out{len(extra)}") == 0
        rows = json.loads(capsys.readouterr().out)["rows"]
        sizes.append([row["pixels"] for row in rows])
        assert len(rows) == 2
        if extra != ["--smallest"]:
            assert all(row["confidence"] >= 0.9 for row in rows)
    assert [[level["name"] for level in row["levels"]] for row in rows] == [["core"]] * 2
    assert sizes[0][0] < sizes[1][0]


def test_only_public_names_are_listed() -> None:
    assert dir(becausal) == sorted(becausal.__all__)
    assert all(hasattr(becausal, name) for name in dir(becausal))


def test_the_hint_for_keras_includes_a_backend(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("models") == 0
    assert re.search(r"keras:FILE\.keras .* pip install keras torch *$", capsys.readouterr().out, re.MULTILINE)


@pytest.mark.parametrize(("words", "expected"), [(["methods"], "dc-causal"), (["models"], "python:FILE.py:PREDICT")])
def test_tables_come_as_text_and_as_json(words: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*words) == 0
    assert expected in capsys.readouterr().out
    assert run(*words, "--json") == 0
    assert expected in str(json.loads(capsys.readouterr().out))


def test_the_options_of_a_method_are_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("methods", "dc-causal") == 0
    said = capsys.readouterr().out
    assert "partitions" in said
    assert "50" in said
    assert run("methods", "dc-causal", "--json") == 0
    rows = json.loads(capsys.readouterr().out)
    assert all(row["meaning"] for row in rows)


def test_the_meaning_of_an_option_ends_where_the_next_begins() -> None:
    @dataclass
    class Method:
        """A method.

        first: what it is for,
        in two lines. None: nothing.
        None: never.
        second: other.

        Words.
        """

        first: int | None = None
        second: int = 1
        third: int = 2

    assert read_meanings(Method) == {
        "first": "what it is for, in two lines. None: nothing. None: never.",
        "second": "other.",
    }


def test_the_help_promises_no_small_set(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--help") == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "finds the pixels that are enough for the label" in text
    assert "small set" not in text


@pytest.mark.parametrize("words", [[], ["--help"], ["explain", "--help"], ["scenes"], ["verify", "-h"]])
def test_help_teaches(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*words) == 0
    said = capsys.readouterr().out
    assert "Usage: becausal" in said
    if len(words) == 2:
        assert "Examples" in said


def commands_of(group: Any, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """All commands and groups, by the words that call them."""
    found = [path]
    for name, command in getattr(group, "commands", {}).items():
        found += commands_of(command, (*path, name))
    return found


@pytest.mark.parametrize("words", commands_of(typer.main.get_command(app)), ids=" ".join)
def test_help_has_no_types_and_no_empty_defaults(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*words, "--help") == 0
    shown = capsys.readouterr().out
    assert not re.findall(r"<[a-z]|default: default|Default: default", shown)
    assert words in ((), ("scenes",), ("data",)) or "Examples" in shown


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--version") == 0
    assert capsys.readouterr().out.startswith("becausal")


@pytest.mark.usefixtures("without_figures")
def test_the_demo_says_what_it_found(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("explain", "photo.png", "--model", "python:net.py:predict", *QUICK, "--grain", "4", "--json") == 0
    capsys.readouterr()
    explanation = Explanation.load("becausal-out/photo")
    print_demo(explanation, 0.0, Path("here"))
    said = " ".join(capsys.readouterr().out.split())
    assert "The model says bright" in said
    assert "on the occluder 0 % of" in said
    assert "becausal explain photo.jpg --model" in said


@pytest.mark.skipif(not files("becausal.models.bundled").joinpath(IMAGE).is_file(), reason="no bundled image")
def test_the_demo(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("demo", "--out", "here", "--json") == 0
    (entry,) = json.loads(capsys.readouterr().out)
    assert entry["explanation"]["sufficient"] is True
    explanation = Explanation.load("here/demo")
    occluder = np.asarray(Image.open(str(files("becausal.models.bundled") / "demo_occluder.png")).convert("L")) > 127
    on_it = explanation.visible & explanation.frame.from_original(occluder)
    assert entry["overlap"] == pytest.approx(on_it.sum() / explanation.pixels)
    assert sorted(path.name for path in (place / "here" / "demo").iterdir()) == sorted(FILES)


def test_scenes_are_written_and_shown(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("scenes", "make", "--count", "2", "--seed", "3", "--size", "64", "--out", "made") == 0
    assert (place / "made").is_dir()
    assert run("scenes", "show", "--count", "2", "--size", "64", "--out", "sheets/sheet.png") == 0
    assert [path.name for path in (place / "sheets").iterdir()] == ["sheet.png"]
    assert "sheet.png" in capsys.readouterr().out


def test_folders_do_not_collide() -> None:
    images = [Path("a/x.png"), Path("b/x.jpg"), Path("X.png"), Path("y.tar.gz")]
    assert [folder.name for _, folder in choose_folders(images, Path("out"))] == ["x", "x-2", "X-3", "y.tar"]


def test_options_are_parsed_or_refused() -> None:
    assert parse_options(["min-size = 3", "a=b=c"]) == {"min_size": "3", "a": "b=c"}
    with pytest.raises(OptionError, match="key=value"):
        parse_options(["nothing"])
    assert [parse_grain(text) for text in ("default", "None", "8")] == ["default", None, 8]
    with pytest.raises(OptionError, match="whole pixels"):
        parse_grain("4.5")


def flag(name: str, default: int) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=int)


def test_a_parameter_that_is_a_group_of_options_is_replaced_by_them() -> None:
    seen: list[object] = []
    group = OptionGroup(lambda given: (given["a"], given["b"]), (flag("a", 1), flag("b", 2)))

    @expand_options
    def both(*, first: int, pair: Annotated[tuple[int, int], group], last: bool = False) -> None:
        """Words."""
        seen.append((first, pair, last))

    assert (both.__name__, both.__doc__) == ("both", "Words.")
    assert list(inspect.signature(both).parameters) == ["first", "a", "b", "last"]
    both(first=0, a=3, b=4, last=True)
    assert seen == [(0, (3, 4), True)]


def options_of(name: str) -> list[str]:
    """The long names of a command's options, in the order of its help."""
    found = typer.main.get_command(app)
    for word in name.split():
        found = found.commands[word]
    return [parameter.opts[0] for parameter in found.params if parameter.opts[0].startswith("--")]


LOADING = [
    "--labels",
    "--preprocess",
    "--resize",
    "--returns",
    "--threshold",
    "--device",
    "--batch-size",
    "--threads",
    "--half",
    "--endpoint",
    "--text",
    "--ask",
    "--like",
]
COMMANDS = [
    *("explain", "batch", "compare", "verify", "inspect", "bench", "serve"),
]


@pytest.mark.parametrize("name", COMMANDS)
def test_a_model_is_loaded_with_the_same_options_everywhere(name: str) -> None:
    assert options_of(name)[-len(LOADING) :] == LOADING


def test_batch_asks_as_explain_does() -> None:
    asked = options_of("explain")
    asked = asked[asked.index("--target") :]
    assert options_of("batch")[-len(asked) :] == asked


def test_no_two_commands_write_out_the_same_option() -> None:
    written = Counter(
        ast.unparse(node)
        for path in sorted(Path(becausal.__file__).parent.glob("interfaces/cli/*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("typer.Option", "option")
    )
    assert len(written) > 30
    assert [option for option, count in written.items() if count > 1] == []


def test_methods_and_fills_are_completed(place: Path) -> None:
    for name, option, begun, wanted in (("explain", "--method", "dc", "dc-causal"), ("batch", "--fill", "gr", "grey")):
        typed = {"COMP_WORDS": f"becausal {name} x.png {option} {begun}", "COMP_CWORD": "4"}
        done = command(cwd=place, _BECAUSAL_COMPLETE="complete_bash", **typed)
        assert done.stdout.split() == [wanted], done.stderr


def test_loading_options_given_win_over_saved_ones() -> None:
    saved = Loading.from_record({"resize": "256", "preprocess": "tf"})
    assert Loading(preprocess="unit").over(saved) == Loading(preprocess="unit", resize="256")


def test_a_place_that_cannot_be_written_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    check_writable(tmp_path / "a" / "b")
    assert not (tmp_path / "a").exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="is not a folder"):
        check_writable(tmp_path / "file" / "b")


def command(*words: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "becausal", *words],
        cwd=cwd,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_command_itself(place: Path) -> None:
    done = command("explain", "photo.png", "--model", "python:net.py:predict", *QUICK, "--json", cwd=place)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)[0]["label"] == "bright"
    assert done.stderr == ""


SLOW_IMPORT = "import pathlib, time; pathlib.Path('importing').touch(); time.sleep(60)"
SCRIPT = "import sys; from {module} import {name}; sys.exit({name}())"


def entry_point() -> list[str]:
    """What the installed command does, from pyproject.toml."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    module, _, name = project["scripts"]["becausal"].partition(":")
    return ["-c", SCRIPT.format(module=module, name=name)]


@pytest.mark.parametrize("library", ["numpy", "typer"])
@pytest.mark.parametrize("start", [["-m", "becausal"], entry_point()], ids=["module", "script"])
def test_an_interrupt_while_libraries_are_imported_is_one_line(start: list[str], library: str, place: Path) -> None:
    (place / "slow").mkdir()
    (place / "slow" / f"{library}.py").write_text(SLOW_IMPORT)
    status, stderr = interrupt([*start, "methods"], Path("importing"), PYTHONPATH=str(place / "slow"))
    assert (status, stderr) == (130, "becausal: stopped: interrupted\n")


def test_an_interrupt_while_a_model_is_loaded_is_one_line(place: Path) -> None:
    (place / "net.py").write_text(SLOW_IMPORT)
    status, stderr = interrupt(["-m", "becausal", "inspect", "python:net.py:predict"], Path("importing"))
    assert (status, stderr) == (130, "becausal: stopped: interrupted\n")


def interrupt(words: list[str], sign: Path, **environment: str) -> tuple[int, str]:
    """Run Python, press Ctrl-C as soon as there is a file, and return the exit status and what is on stderr."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # if it were ignored here, it would be there too
    try:
        process = subprocess.Popen(
            [sys.executable, *words], env=os.environ | environment, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
    finally:
        signal.signal(signal.SIGINT, before)
    try:
        for _ in range(600):
            if sign.exists() or process.poll() is not None:
                break
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        return process.wait(timeout=30), process.communicate()[1]
    finally:
        process.kill()
        process.wait()


RAISING = """
import numpy as np

class Unexpected(BaseException):
    def __str__(self):
        return "not an\\nordinary error"

def predict(batch):
    raise Unexpected

def ends(batch):
    raise EOFError("nothing left")
"""


@pytest.mark.parametrize(
    ("name", "expected"), [("predict", "Unexpected: not an ordinary error"), ("ends", "EOFError: nothing left")]
)
@pytest.mark.parametrize("words", ["explain photo.png --model SPEC", "inspect SPEC photo.png"])
def test_a_model_that_raises_anything_gives_one_line(
    words: str, name: str, expected: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "net.py").write_text(RAISING)
    assert run(*words.replace("SPEC", f"python:net.py:{name}").split()) == 2
    said, complaint = capsys.readouterr()
    assert said == ""
    assert complaint.startswith("becausal: error: ")
    assert complaint.count("\n") == 1
    assert expected in complaint


def test_an_exception_that_cannot_be_printed_gives_one_line(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "net.py").write_text(RAISING.replace('"not an\\nordinary error"', "1 / 0"))
    assert run("inspect", "python:net.py:predict", "photo.png") == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_traceback_only_when_asked_for(place: Path) -> None:
    quiet = command("explain", "missing.png", "--model", "python:net.py:nothing", cwd=place)
    loud = command("--debug", "explain", "missing.png", "--model", "python:net.py:nothing", cwd=place)
    assert quiet.returncode == loud.returncode == 2
    assert "Traceback" not in quiet.stderr
    assert "Traceback" in loud.stderr
    assert quiet.stderr.splitlines()[-1] == loud.stderr.splitlines()[-1]


@pytest.mark.process
def test_a_reader_that_goes_away_is_no_error(place: Path) -> None:
    shell = f"{sys.executable} -m becausal models | true"
    done = subprocess.run(["bash", "-c", shell], cwd=place, capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == ""


def test_an_ascii_terminal_is_enough(place: Path) -> None:
    (place / "net.py").write_text(MODEL.replace('"bright"]', '"h\\u00e9ll"]'))
    done = command("inspect", "python:net.py:predict", "photo.png", cwd=place, PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr
    assert "h?ll" in done.stdout


def test_nothing_heavy_is_loaded_until_needed() -> None:
    code = (
        "import sys, becausal.interfaces.cli.app; "
        "print([m for m in ('torch', 'matplotlib', 'onnxruntime', 'transformers', 'keras') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"

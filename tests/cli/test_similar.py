"""`becausal similar`, and embed: models in the other commands."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import becausal
from becausal.api.origins import hash_file
from becausal.batch.settings import BatchJob, hash_files
from becausal.core.errors import AnswerError
from becausal.interfaces.cli.app import main
from becausal.models import Loading
from becausal.models.similarity import EMPTY

onnx = pytest.importorskip("onnx")
QUICK = ["--method", "dc-causal", "--option", "partitions=4", "--confidence", "0.5", "--fill", "grey", "--max-calls", "400"]
MODEL = ["--model", "embed:net.onnx", "--preprocess", "tf"]


def square(*colour, at):
    image = np.full((16, 16, 3), 128, np.uint8)
    image[at[0] : at[0] + 6, at[1] : at[1] + 6] = colour
    return Image.fromarray(image)


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Two red squares, a green one, and a network whose embedding is the mean colour."""
    monkeypatch.chdir(tmp_path)
    helper, number = onnx.helper, onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        [helper.make_node("GlobalAveragePool", ["x"], ["embedding"])],
        "g",
        [helper.make_tensor_value_info("x", number, ["n", 3, 16, 16])],
        [helper.make_tensor_value_info("embedding", number, ["n", 3, 1, 1])],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), "net.onnx")
    square(250, 60, 50, at=(2, 2)).save("a.png")
    square(230, 90, 40, at=(8, 7)).save("b.png")
    square(40, 250, 60, at=(4, 4)).save("c.png")
    return tmp_path


def run(*words):
    return main([str(word) for word in words])


def similar(*words):
    return run("similar", "a.png", "b.png", *MODEL, *QUICK, "--out", "out", *words)


def cosine(one, other):
    one, other = (np.asarray(Image.open(each)).mean(axis=(0, 1)) / 127.5 - 1 for each in (one, other))
    return one @ other / np.linalg.norm(one) / np.linalg.norm(other)


def test_both_images_are_explained_drawn_and_verified(place, capsys):
    assert similar() == 0
    said = capsys.readouterr().out
    Image.new("RGB", (16, 16), (EMPTY,) * 3).save("empty.png")
    empty = {name: f"similarity of {name} to an empty image  {cosine(name, 'empty.png'):.3f}" for name in ("a.png", "b.png")}
    facts = f"  {empty['b.png']}\n  {empty['a.png']}\n"
    assert said.startswith(f"a.png and b.png: cosine similarity {cosine('a.png', 'b.png'):.3f}\n{facts}")
    assert "an empty image has -0.055, which counts as 0" in said
    for image, other in ("ab", "ba"):
        assert f"{image}.png: The similarity to {other}.png is" in said
        assert run("verify", f"out/{image}") == 0
        assert "\nall " in capsys.readouterr().out
        found = becausal.Explanation.load(f"out/{image}")
        assert found.origin.files["like"] == {"path": str(place / f"{other}.png"), "sha256": hash_file(f"{other}.png")}
        assert found.origin.model == f"embed:onnx:{place}/net.onnx"
    assert sorted(path.name for path in Path("out").iterdir()) == ["a", "b", "similar.png"]
    with Image.open("out/similar.png") as drawn:
        assert drawn.size[0] > 1000


@pytest.mark.usefixtures("without_figures")
def test_json_is_one_document(place, capsys):
    assert similar("--json", "--above", "0.9") == 0
    said = json.loads(capsys.readouterr().out)
    assert said["similarity"] == pytest.approx(cosine("a.png", "b.png"), abs=1e-6)
    assert [(Path(each["folder"]).name, each["label"]) for each in said["images"]] == [
        ("a", "like b.png"),
        ("b", "like a.png"),
    ]
    assert becausal.Explanation.load("out/a").origin.loading["threshold"] == 0.9
    assert run("verify", "out/b", "--json") == 0


@pytest.mark.usefixtures("without_figures")
def test_the_folder_of_another_image_is_kept(place, capsys):
    Path("further").mkdir()
    shutil.copy("c.png", "further/a.png")
    assert run("explain", "further/a.png", *MODEL, "--like", "further/a.png", *QUICK, "--out", "out") == 0
    assert similar() == 0
    assert "out/a holds the explanation of another image" in capsys.readouterr().err
    assert run("verify", "out/a") == run("verify", "out/a-2") == 0


@pytest.mark.usefixtures("without_figures")
def test_ctrl_c_saves_what_there_is(place, capsys, monkeypatch):
    pressed = []

    def interrupt(self, status):
        if status.calls > 50 and not pressed:
            pressed.append(status)
            raise KeyboardInterrupt

    monkeypatch.setattr("becausal.interfaces.cli.progress.SearchProgress.__call__", interrupt)
    assert run("similar", "a.png", "b.png", *MODEL, "--out", "out") == 130
    assert "The search was interrupted" in capsys.readouterr().out
    assert sorted(path.name for path in Path("out").iterdir()) == ["a", "similar.png"]
    assert run("verify", "out/a") == 0


@pytest.mark.usefixtures("without_figures")
def test_the_first_image_is_kept_where_the_search_of_the_second_fails(place, capsys, monkeypatch):
    searched = []

    def explain_one(images, *words, **options):
        searched.extend(images)
        failure = becausal.Failure("b.png", AnswerError("the server\nis gone"))
        return iter([failure]) if len(searched) == 2 else becausal.explain_many(images, *words, **options)

    monkeypatch.setattr("becausal.api.similar.explain_many", explain_one)
    assert similar() == 2
    said, complaint = capsys.readouterr()
    assert complaint == "becausal: error: b.png: the server is gone\n"
    assert "a.png: The similarity to b.png is" in said
    assert sorted(path.name for path in Path("out").iterdir()) == ["a", "similar.png"]
    assert run("verify", "out/a") == 0
    searched[:] = ["another"]
    assert similar("--out", "none") == 2  # nothing was found: nothing is written
    assert not Path("none").exists()


@pytest.mark.usefixtures("without_figures")
def test_that_two_images_are_the_same_is_said(place, capsys):
    shutil.copy("a.png", "copy.png")
    assert run("similar", "a.png", "copy.png", *MODEL, *QUICK, "--out", "out") == 0
    said = "becausal: note: a.png and copy.png are the same image: what is explained is its similarity to itself\n"
    assert capsys.readouterr().err == said


# ---- the other image of a saved explanation


@pytest.mark.usefixtures("without_figures")
def test_no_other_image_is_read_than_the_recorded_one(place, capsys, monkeypatch):
    assert run("explain", "a.png", *MODEL, "--like", "b.png", *QUICK, "--out", "out") == 0
    capsys.readouterr()
    shutil.move("b.png", "moved.png")
    complaint = (
        f"becausal: error: {place}/b.png, which the explained image was compared with, is gone or is not the recorded"
    )
    assert run("verify", "out/a") == run("verify", "out/a", "--model", "embed:net.onnx") == 2
    assert capsys.readouterr().err == f"{complaint} file: say where it is with --like\n" * 2
    shutil.copy("c.png", "b.png")
    assert run("verify", "out/a") == 2
    shutil.move("moved.png", "b.png")
    assert run("verify", "out/a") == 0
    monkeypatch.chdir("out")
    assert run("verify", "a", "--model", "embed:../net.onnx", "--like", "../b.png") == 0
    assert run("verify", "a", "--like", "../c.png") == 1


@pytest.mark.parametrize("path", ["/etc/hostname", "//host/share/b.png", "b.png"])
@pytest.mark.usefixtures("without_figures")
def test_a_record_does_not_choose_which_file_is_read(path, place, capsys, monkeypatch):
    assert run("explain", "a.png", *MODEL, "--like", "b.png", *QUICK, "--out", "out") == 0
    record = json.loads(Path("out/a/explanation.json").read_text())
    record["origin"]["loading"]["like"] = path
    Path("out/a/explanation.json").write_text(json.dumps(record))
    monkeypatch.setattr("becausal.models.similarity.load_image", lambda path: pytest.fail(f"{path} was read"))
    capsys.readouterr()
    assert run("verify", "out/a") == 2
    assert "which the explained image was compared with, is gone" in capsys.readouterr().err


@pytest.mark.usefixtures("without_figures")
def test_another_network_is_asked_about_the_same_image(place, capsys):
    assert run("explain", "a.png", *MODEL, "--like", "b.png", "--threshold", "0.8", *QUICK, "--out", "out") == 0
    capsys.readouterr()
    Path("net.py").write_text("def embed(images):\n    return images.mean(axis=(1, 2)) / 127.5 - 1\nSIZE = 16\n")
    assert run("verify", "out/a", "--model", "embed:python:net.py:embed", "--json") in (0, 1)
    claims = {claim["name"]: claim["holds"] for claim in json.loads(capsys.readouterr().out)["claims"]}
    assert claims["sufficient"]
    assert "target.threshold" not in claims or claims["target.threshold"]
    assert run("verify", "out/a", "--model", "bundled") == 2


# ---- other commands


@pytest.mark.usefixtures("without_figures")
def test_a_batch_compares_all_images_with_one(place, capsys):
    Path("images").mkdir()
    for name in "abc":
        shutil.copy(f"{name}.png", f"images/{name}.png")
    words = ["batch", "images", *MODEL, "--like", "b.png", *QUICK, "--out", "run"]
    assert run(*words) == 3  # the green square is not similar
    assert run("report", "run") == 0
    said = capsys.readouterr().out
    assert "explained  2 of 3" in said
    assert "the image is no more similar to 'b.png' than an empty image is" in said
    assert run(*words) == 3
    # Where something is left to do, the run is not continued with another file.
    before = hash_files(BatchJob(model="embed:net.onnx", loading=Loading(like="b.png")))
    assert before == {"file b.png": hash_file("b.png")}


def test_inspect_shows_similarities(place, capsys):
    assert run("inspect", "embed:net.onnx", "a.png", "--preprocess", "tf", "--like", "b.png") == 0
    said = capsys.readouterr().out
    assert f"{cosine('a.png', 'b.png'):.4f}  like b.png (0)" in said
    assert "returns        similarity to another image, or to a text" in said


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["a.png", "none.png", *MODEL], "none.png"),
        (["a.png"], "Missing argument 'B'"),
        (["a.png", "b.png"], "Missing option '--model'"),
        (["a.png", "b.png", "--model", "none.onnx"], "none.onnx"),
        (["a.png", "b.png", "--model", "bundled:detector"], "'bundled:detector' cannot follow it: give a network alone"),
        (["a.png", "c.png", *MODEL], "a.png is no more similar to c.png (-0.530) than an empty image (-0.082)"),
        (["a.png", "b.png", *MODEL, "--above", "1.5"], "the threshold is a score above 0 and up to 1, e.g. 0.5, not 1.5"),
        (["a.png", "b.png", *MODEL, "--above", "0.999"], "the cosine similarity to 'b.png' is 0.9"),
        (["a.png", "b.png", *MODEL, "--like", "c.png"], "--like"),
        (["a.png", "b.png", *MODEL, "--out", "net.onnx"], "net.onnx is not a folder"),
    ],
)
def test_bad_input_gives_one_line_and_leaves_nothing(words, expected, place, capsys):
    before = sorted(path.name for path in place.rglob("*"))
    assert run("similar", *words) == 2
    said, complaint = capsys.readouterr()
    assert (said, complaint.count("\n")) == ("", 1)
    assert complaint.startswith("becausal: error: ")
    assert expected in complaint
    assert sorted(path.name for path in place.rglob("*")) == before

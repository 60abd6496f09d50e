"""The notebooks of examples/ run from top to bottom, and are committed with their outputs."""

import copy
import importlib.util
from pathlib import Path

import pytest
from libraries import need

need("nbformat", "nbclient", "ipykernel")

NOTEBOOKS = sorted((Path(__file__).parents[2] / "examples").glob("*.ipynb"))
LARGEST = 400_000  # bytes of a notebook with its outputs
every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def test_there_are_three():
    assert len(NOTEBOOKS) == 3


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def kinds(cell):
    """The types of a cell's outputs, e.g. image/png, and the number of lines it printed, in however many chunks."""
    shown = [sorted(output["data"]) for output in cell.outputs if "data" in output]
    return shown, len("".join(output.get("text", "") for output in cell.outputs).splitlines())


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=[] if path.stem == "first_steps" else [pytest.mark.slow], id=path.stem) for path in NOTEBOOKS],
)
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # the kernel's sockets are left to the collector
def test_a_notebook_runs_and_shows_what_it_showed(path, tmp_path, monkeypatch):
    import nbclient
    import nbformat

    notebook = nbformat.read(path, as_version=4)
    if any("import torch" in cell.source for cell in notebook.cells) and importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    place = {"metadata": {"path": str(tmp_path)}}
    ran = nbclient.NotebookClient(copy.deepcopy(notebook), timeout=600, resources=place).execute()
    for before, after in zip(code_cells(notebook), code_cells(ran), strict=True):
        assert kinds(before) == kinds(after), before.source


@every_notebook
def test_a_notebook_is_committed_with_small_outputs(path):
    import nbformat

    assert path.stat().st_size < LARGEST
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    outputs = [output for cell in code_cells(notebook) for output in cell.outputs]
    assert all(cell.execution_count for cell in code_cells(notebook)), "run it, and save it with its outputs"
    assert sum("image/png" in output.get("data", {}) for output in outputs) >= 2
    assert not [output for output in outputs if output.get("name") == "stderr" or output.output_type == "error"]


@every_notebook
def test_a_notebook_names_no_machine(path):
    text = path.read_text(encoding="utf-8")
    assert not [word for word in ("/home/", "/tmp/", "/root/", "/work/") if word in text]

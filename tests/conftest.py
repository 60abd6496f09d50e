"""What makes the tests quick: kinds of tests, one thread for each process, commands that are built once, no figures.

`pytest` leaves out four kinds of tests, but for those with the mark `smoke`, one or two of each kind.
"""

import os
from functools import cache

import pytest
import typer.main

os.environ.setdefault("OMP_NUM_THREADS", "1")  # of each process that a test starts too; several run side by side
os.environ.setdefault("NUMBA_DISABLE_JIT", "1")  # shap compiles for longer than the tests run
typer.main.get_command = cache(typer.main.get_command)  # typer would build all commands again for each call of `main`

#: Kinds of tests, by file; the marks are in pyproject.toml.
KINDS = {
    "docs": ("test_docs", "test_notebooks", "test_site"),
    "libraries": ("test_classifiers_hubs", "test_similarity_hubs", "test_text_hubs"),
    "process": (
        "test_batch_ray", "test_batch_safety", "test_bench_resume", "test_chat", "test_classifiers_oip",
        "test_classifiers_privacy", "test_http_api", "test_http_process", "test_stopping", "test_web_browser",
        "test_web_http", "test_web_limits",
    ),
    "fuzz": ("test_fuzz",),
}  # fmt: skip


@pytest.hookimpl(tryfirst=True)  # before pytest selects by marks
def pytest_collection_modifyitems(items):
    kinds = {stem: kind for kind, stems in KINDS.items() for stem in stems}
    for item in items:
        kind = kinds.get(item.path.stem)
        if kind and not item.get_closest_marker("smoke"):
            item.add_marker(kind)


@pytest.fixture
def without_figures(monkeypatch):
    """Explanations are saved with figures of one pixel: drawing them takes most of the time, and test_render.py tests it."""
    from io import BytesIO

    from PIL import Image

    from becausal.render import figures

    pixel = BytesIO()
    Image.new("RGB", (1, 1)).save(pixel, "PNG")
    monkeypatch.setattr(figures, "explanation_png", lambda explanation: pixel.getvalue())
    monkeypatch.setattr(figures, "plot", lambda explanation: None)
    monkeypatch.setattr(figures, "png_bytes", lambda figure: pixel.getvalue())


@pytest.fixture(scope="session")
def served_folder(tmp_path_factory):
    """The folder of the shared server: slow.py, and `temporary`, for its temporary files."""
    return tmp_path_factory.mktemp("served")


@pytest.fixture(scope="session")
def port(served_folder):
    """The port of a server, page and API, that all tests of a process share; uploads have at most 1 MB."""
    from serving import serving_process

    with serving_process(served_folder, "--max-upload", "1") as port:
        yield port

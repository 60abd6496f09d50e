"""Nothing is reported to anybody: no telemetry files of onnxruntime, no host name looked up."""

import os
import shutil
import subprocess
import sys

import pytest
from PIL import Image

from becausal.scenes import make_scene

LOOKUPS = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
typedef int (*function)(const char *, const char *, const struct addrinfo *, struct addrinfo **);
int getaddrinfo(const char *host, const char *service, const struct addrinfo *hints, struct addrinfo **found) {
    if (host && strcmp(host, "127.0.0.1") && strcmp(host, "localhost") && strcmp(host, "::1")) {
        FILE *log = fopen(getenv("LOOKUPS"), "a");
        if (log) { fprintf(log, "%s\n", host); fclose(log); }
    }
    return ((function)dlsym(RTLD_NEXT, "getaddrinfo"))(host, service, hints, found);
}
"""
COMMAND = [sys.executable, "-m", "becausal"]


@pytest.fixture(scope="session")
def watcher(tmp_path_factory):
    """A library that logs every host name that the process, or a library in it, looks up; None without a compiler."""
    if not sys.platform.startswith("linux") or shutil.which("cc") is None:
        return None
    folder = tmp_path_factory.mktemp("watcher")
    (folder / "lookups.c").write_text(LOOKUPS)
    command = ["cc", "-shared", "-fPIC", "-o", folder / "lookups.so", folder / "lookups.c", "-ldl"]
    return folder / "lookups.so" if subprocess.run(command, check=False, capture_output=True).returncode == 0 else None


@pytest.fixture
def home(tmp_path, watcher):
    """A home where nothing was ever run: its environment, and its folder."""
    folder = tmp_path / "home"
    (folder / "tmp").mkdir(parents=True)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("ORT_", "XDG_"))}
    own = {"HOME": str(folder), "XDG_CACHE_HOME": str(folder / "cache"), "TMPDIR": str(folder / "tmp")}
    watched = {} if watcher is None else {"LD_PRELOAD": str(watcher), "LOOKUPS": str(folder / "lookups")}
    return kept | own | watched, folder


def find_traces(folder):
    """What onnxruntime left, and the names that were looked up."""
    files = [path.name for path in folder.rglob("*") if path.is_file()]
    traces = [name for name in files if "onnxruntime" in name or name in ("deviceid", ".ses")]
    return traces + ((folder / "lookups").read_text().split() if (folder / "lookups").exists() else [])


def save_images(folder, count):
    folder.mkdir()
    for seed in range(count):
        Image.fromarray(make_scene(1025 + seed, label="bus").image).save(folder / f"{seed}.png")
    return folder


def test_explain_and_batch_report_nothing(tmp_path, home):
    environment, folder = home
    images = save_images(tmp_path / "images", 2)
    few = ["--model", "bundled", "--max-calls", "60", "--out"]
    for arguments in (
        ["explain", images / "0.png", *few, tmp_path / "one"],
        ["batch", images, "--workers", "2", *few, tmp_path / "run"],
    ):
        done = subprocess.run([*COMMAND, *arguments], env=environment, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert find_traces(folder) == []


@pytest.mark.slow
def test_serve_reports_nothing(home):
    pytest.importorskip("starlette")
    environment, folder = home
    command = [*COMMAND, "serve", "--port", "0"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            assert b"http://127.0.0.1:" in process.stdout.readline()
        finally:
            process.terminate()  # SIGINT may be ignored, where the tests run as a background job
            process.communicate(timeout=60)
    assert find_traces(folder) == []


@pytest.mark.smoke
def test_a_users_own_session_reports_nothing_either(tmp_path, home):
    environment, folder = home
    (tmp_path / "net.py").write_text(
        "import numpy as np, onnxruntime\nLABELS = ['a', 'b']\nSIZE = 8\n"
        "def predict(batch):\n    return np.tile([0.25, 0.75], (len(batch), 1))\n"
    )
    code = "import becausal; becausal.load_model('python:net.py:predict')"
    subprocess.run([sys.executable, "-c", code], env=environment, cwd=tmp_path, check=True)
    assert find_traces(folder) == []


@pytest.mark.slow
def test_no_name_is_looked_up_later(home, watcher):
    """onnxruntime sends what it has collected some ten seconds after the start."""
    if watcher is None:
        pytest.skip("needs Linux and a C compiler")
    environment, folder = home
    code = "import time, becausal; model = becausal.load_model('bundled'); time.sleep(20)"
    for _ in range(2):
        subprocess.run([sys.executable, "-c", code], env=environment, check=True)
    assert find_traces(folder) == []

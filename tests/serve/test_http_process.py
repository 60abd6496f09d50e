"""`becausal serve --api` as a process: how it starts, what it refuses, SIGTERM, load, and the example client."""

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from libraries import need
from serving import SLOW, encode, load_benchmark, serving

from becausal import load_model
from becausal.interfaces.cli.app import main
from becausal.scenes import make_scene
from test_docs import as_pattern, in_words

need("starlette", "uvicorn", "python_multipart", "prometheus_client")

load = load_benchmark("api_load")
ROOT = Path(__file__).parents[2]
TOKEN = "a-token-for-tests-1234"
ONE = ("--port", "0", "--searches", "1")  # each search has a process, which takes a second to start
STARTED = r"becausal: the API is at http://[^:]+:(\d+)(.*), described at http://[^ ]+/docs; press Ctrl-C to stop\n"


@contextmanager
def started(*arguments):
    """The process of a server and its port."""
    command = [sys.executable, "-m", "becausal", "serve", "--api", *ONE, *arguments]
    clean = {key: value for key, value in os.environ.items() if key != "BECAUSAL_TOKEN"} | {"OMP_NUM_THREADS": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=clean, **pipes) as process:
        try:
            line = process.stdout.readline()
            found = re.fullmatch(STARTED, line)
            assert found, (line, process.stderr.read() if not line else "")
            process.needed = found[2]
            yield process, int(found[1])
        finally:
            process.kill()


def scene():
    return encode(make_scene(1025, label="bus").image)


@pytest.mark.smoke
def test_sigterm_returns_the_best_so_far_and_exits_with_0(tmp_path):
    """Of a server with a token for other machines."""
    (tmp_path / "slow.py").write_text(SLOW)
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    words = ("--model", f"python:{tmp_path / 'slow.py'}:predict", "--host", "0.0.0.0", "--token-file", str(file))
    with started(*words) as (process, port):
        assert process.needed == f" with the token in {file}"
        assert load.ApiClient(port).request("GET", "/v1/models")[0] == 401
        client, found = load.ApiClient(port, TOKEN), {}
        assert client.request("GET", "/v1/models", headers={"Host": "any.example"})[0] == 200
        status, _, answer = client.post_form([], "bus.png", b"not an image")  # by the process that checks uploads
        assert (status, answer["error"].partition(":")[0]) == (400, "bus.png is not an image")

        def ask(name):
            found[name] = client.post_form([("grain", "1"), ("wait", "200")], f"{name}.png", scene())

        running = threading.Thread(target=ask, args=("running",))
        running.start()
        text = ""
        while "becausal_running_jobs 1.0" not in text:
            time.sleep(0.1)
            text = client.request("GET", "/metrics")[2].decode()
        queued = threading.Thread(target=ask, args=("queued",))
        queued.start()
        while "becausal_queue_length 1.0" not in text:
            time.sleep(0.1)
            text = client.request("GET", "/metrics")[2].decode()
        time.sleep(1.2)  # a few model calls
        process.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        with pytest.raises((ConnectionRefusedError, ConnectionResetError)):
            client.request("GET", "/healthz")
        assert process.poll() is None  # the grace period
        out, err = process.communicate(timeout=60)
        running.join(10)
        queued.join(10)
    assert (process.returncode, out) == (0, "")
    assert re.fullmatch(r"becausal: warning: other machines can reach this API; [^\n]+\n", err)
    assert TOKEN not in err
    status, _, answer = found["running"]
    assert (status, answer["image"], answer["stopped_by"]) == (200, "running.png", "interrupt")
    assert answer["explanation"]["sufficient"]
    assert answer["explanation"]["size"] < 1
    status, _, answer = found["queued"]
    assert (status, answer) == (503, {"error": "stopped before a result was found"})


@pytest.mark.parametrize("library", ["starlette", "uvicorn", "python_multipart", "prometheus_client"])
def test_a_missing_library_is_named_with_its_extra(library, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, library, None)
    assert main(["serve", "--help"]) == 0
    capsys.readouterr()
    assert main(["serve", "--port", "0"]) == 2
    assert capsys.readouterr().err == (
        f"becausal: error: becausal serve needs {library}, which is not installed: "
        'pip install starlette uvicorn python-multipart prometheus-client, or pip install ".[serve]" in the folder of '
        "becausal's source\n"
    )


def test_the_example_client(tmp_path):
    """examples/http_client.py against a server that is already running, with a token, and what the page says it prints."""
    example = ROOT / "examples" / "http_client.py"
    (tmp_path / "photo.jpg").write_bytes(encode(make_scene(107, size=512).image, "JPEG", quality=95))
    with serving({"bundled": load_model("bundled")}, token=TOKEN) as served:
        command = [sys.executable, str(example), f"http://127.0.0.1:{served.port}", "photo.jpg"]
        done = subprocess.run(
            command, cwd=tmp_path, env=os.environ | {"BECAUSAL_TOKEN": TOKEN}, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
        page = (ROOT / "docs" / "http-api.md").read_text(encoding="utf-8")
        assert done.stdout == re.search(r"\$ python examples/http_client\.py .*\n((?:.*\n)*?)```", page)[1]
        assert (tmp_path / "photo-explanation.png").read_bytes().startswith(b"\x89PNG")
        refused = subprocess.run(
            command, cwd=tmp_path, env=os.environ | {"BECAUSAL_TOKEN": ""}, capture_output=True, text=True, timeout=120
        )
        assert refused.returncode == 1
        assert "401: the token is missing or wrong" in refused.stderr


@pytest.mark.skipif(shutil.which("curl") is None or shutil.which("base64") is None, reason="curl is not installed")
def test_the_commands_of_the_page(tmp_path, port):
    page = (ROOT / "docs" / "http-api.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^<!-- (curl|answer) -->\n```\w+\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert [kind for kind, _ in blocks] == ["curl", "answer", "curl", "curl", "curl", "answer"]
    (tmp_path / "photo.jpg").write_bytes(encode(make_scene(107, size=512).image, "JPEG", quality=95))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    printed = ""
    for kind, text in blocks:
        if kind == "answer":
            assert as_pattern(text).fullmatch(in_words(printed)), printed
            continue
        commands = text.replace("http://127.0.0.1:7860", f"http://127.0.0.1:{port}")
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", commands],
            cwd=tmp_path,
            env=os.environ | {"PATH": path},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        printed = done.stdout
        assert "-i -H" not in text or printed.startswith("HTTP/1.1 202 Accepted")
    assert (tmp_path / "explanation.png").read_bytes().startswith(b"\x89PNG")


def test_many_clients_at_once_get_their_own_answers(port):
    """The reduced form; `pytest -m slow` has 30 clients for two minutes."""
    report = load.run(port, 0, load.make_cases(3), clients=3, seconds=60, rounds=1)
    assert (report.errors, report.mixed_up, report.answers) == ([], 0, 3)


@pytest.mark.slow
def test_thirty_clients_for_two_minutes():
    cases = load.make_cases(60)
    process, port = load.start_server("--api", environment={"OMP_NUM_THREADS": "1"})
    try:
        report = load.run(port, process.pid, cases, clients=30, seconds=120)
    finally:
        process.terminate()
        status = process.wait(60)
        process.stdout.close()
    assert (report.errors, report.mixed_up, status) == ([], 0, 0)
    assert report.answers >= 30
    assert report.memory_peak < 600
    assert report.memory_peak < report.memory_peak_first_half + 100  # it does not keep growing

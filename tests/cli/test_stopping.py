"""Work that is stopped ends: jobs of servers in their processes, servers at SIGTERM, commands at Ctrl-C."""

import base64
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from job_toys import Dying, Endless, Failing, Naming
from libraries import need
from PIL import Image
from serving import encode, load_benchmark, serving

from becausal import load_model
from becausal.api import Request
from becausal.core.errors import AnswerError, ModelError, OptionError, TargetError
from becausal.interfaces.serve.images import Upload
from becausal.interfaces.serve.job_queue import JobQueue
from becausal.interfaces.serve.jobs import BackgroundJob, JobProcesses, ModelSource
from becausal.interfaces.serve.limits import Limits
from becausal.interfaces.serve.tasks import ExplainTask, unpack_result
from becausal.models import Loading
from becausal.scenes import make_scene

need("starlette", "uvicorn", "python_multipart", "prometheus_client")

load = load_benchmark("api_load")
AREAS = ",".join([".5"] * 48)


def scene():
    return encode(make_scene(1025, label="bus").image)


@pytest.fixture(scope="module")
def models():
    return {"bundled": load_model("bundled")}


SOURCES = {"bundled": ModelSource("bundled", Loading())}


@pytest.fixture(scope="module")
def processes(models):
    made = JobProcesses(models, SOURCES)
    yield made
    made.close()


def finished(task, processes, **limits):
    job = BackgroundJob(task, Limits(**limits))
    job.run(processes)
    return job


# ---------------------------------------------------------------- jobs in processes


def test_a_process_gives_the_same_answer_and_reports_on_the_way(models, processes):
    request = Request(seed=1, max_calls=300)
    task = ExplainTask(Upload("bus.png", scene()), models["bundled"], request, Limits())
    here, there = BackgroundJob(task, Limits()), BackgroundJob(replace(task), Limits())
    here.run()
    there.run(processes)
    expected, found = (unpack_result(job.result)[0].record() for job in (here, there))
    for record in (expected, found):
        record.pop("seconds", None)
        record.pop("created", None)
    assert {key: found[key] for key in ("label", "calls", "explanation", "levels")} == {
        key: expected[key] for key in ("label", "calls", "explanation", "levels")
    }
    assert there.progress.calls == here.progress.calls > 0
    assert there.progress.updates > 0


def test_processes_are_kept_and_have_the_servers_models(models, processes):
    spec, first = finished(Naming(models["bundled"]), processes).result
    assert spec == "bundled"
    assert first != os.getpid()
    assert finished(Naming(models["bundled"]), processes).result == (spec, first)


def test_a_job_that_does_not_end_is_killed_and_the_next_one_starts(models, processes):
    queue = JobQueue(Limits(workers=1, grace_seconds=0.5), processes)
    endless, small = queue.submit(Endless(models["bundled"])), queue.submit(Naming(models["bundled"]))
    while endless.state == "waiting":
        time.sleep(0.01)
    time.sleep(0.2)
    assert not small.ended.is_set()
    endless.stop()
    assert endless.ended.wait(10)
    assert (endless.error, endless.failure) == ("stopped before a result was found", None)
    assert small.ended.wait(30)
    assert small.result[0] == "bundled"


def test_the_time_limit_ends_a_job_that_does_not_report(models, processes):
    job = finished(Endless(models["bundled"]), processes, seconds=0.3, grace_seconds=0.2)
    assert job.error == "stopped at this server's limit of 0.3 seconds: stopped before a result was found"


@pytest.mark.smoke
def test_errors_of_a_process_are_those_of_the_task(models, processes):
    job = finished(Failing(models["bundled"], TargetError("no class is named 'purple'")), processes)
    assert (job.error, job.failure) == ("no class is named 'purple'", TargetError)
    job = finished(Failing(models["bundled"], ZeroDivisionError("a\nb")), processes)
    assert (job.error, job.failure) == ("unexpected ZeroDivisionError: a b", Exception)
    job = finished(Dying(models["bundled"]), processes)
    assert (job.error, job.failure) == (
        "the process of the search has ended unexpectedly: not enough memory?",
        AnswerError,
    )


def test_a_model_whose_files_have_changed_is_refused(models):
    class Changed:
        info = replace(models["bundled"].info, sha256="0" * 64)

    changed = Changed()
    made = JobProcesses({"bundled": changed}, SOURCES)
    job = finished(Naming(changed), made)
    made.close()
    assert (job.failure, job.error) == (
        ModelError,
        "the files of the model bundled have changed since the server was started: restart the server",
    )


def test_a_queue_with_endless_jobs_is_closed_at_once(models):
    made = JobProcesses(models, SOURCES)
    queue = JobQueue(Limits(workers=2), made)
    queue.start()
    jobs = [queue.submit(Endless(models["bundled"])) for _ in range(3)]
    while jobs[1].state == "waiting":
        time.sleep(0.01)
    begun = time.monotonic()
    queue.close()
    assert time.monotonic() - begun < 3
    assert [job.error for job in jobs] == ["stopped before a result was found"] * 3


# ---------------------------------------------------------------- servers


@contextmanager
def server(*arguments):
    """The process of a server and its port."""
    command = [sys.executable, "-m", "becausal", "serve", "--port", "0", *arguments]
    clean = {key: value for key, value in os.environ.items() if key != "BECAUSAL_TOKEN"} | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, env=clean, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process, int(re.search(r"http://[^:]+:(\d+)", process.stdout.readline())[1])
        finally:
            process.kill()


def begin(client, method, model=None, **options):
    """The address of a job that runs."""
    request = {"method": method, "options": options}
    body = {"image": base64.b64encode(scene()).decode(), "model": model, "request": request}
    status, headers, job = client.post_json("/v1/explain", body, headers={"Prefer": "respond-async"})
    assert status == 202, job
    return headers["location"]


def end(process):
    """Seconds until a server has ended after SIGTERM."""
    begun = time.monotonic()
    process.terminate()
    assert process.wait(30) == 0
    return time.monotonic() - begun


WHOLE = [("extremal", {"steps": 5000, "areas": AREAS, "cells": 128}), ("rise", {"masks": 5000, "cells": 1400})]


@pytest.mark.slow
@pytest.mark.parametrize(("method", "options"), WHOLE)
def test_the_api_ends_in_time_and_serves_others_whatever_runs(method, options):
    if method == "extremal":
        pytest.importorskip("torch")
    with server("--api", "--max-calls", "1000000") as (process, port):
        client = load.ApiClient(port)
        jobs = [begin(client, method, **options) for _ in range(2)]
        time.sleep(5)
        begun = time.monotonic()
        for job in jobs:
            client.request("DELETE", job)
        assert client.post_form([("max_calls", "100")], "bus.png", scene())[0] == 200
        assert time.monotonic() - begun < 12  # it starts within ten
        for _ in range(2):
            begin(client, method, **options)
        time.sleep(3)
        assert end(process) < 5


STUCK = """
import time
from becausal import load_model
model = load_model("bundled")
SIZE, LABELS, OUTPUT = 128, list(model.info.labels), "probabilities"

def predict(batch):
    if any(0 < image.min() == image.max() < 255 for image in batch):  # masked as a whole, by a search
        time.sleep(1000)
    return model.classify(batch)
"""


def test_others_are_served_once_a_stuck_search_was_deleted(tmp_path, models):
    """A client occupies the only process with a model that never answers, and then waits for it until the end."""
    (tmp_path / "stuck.py").write_text(STUCK)
    stuck = ModelSource(f"python:{tmp_path / 'stuck.py'}:predict", Loading())
    limits, sources = Limits(workers=1, grace_seconds=0.5), SOURCES | {"stuck": stuck}
    with serving(models | {"stuck": stuck.open()}, limits, sources=sources) as served:
        client, found = load.ApiClient(served.port), []
        job = begin(client, "causal", model="stuck")
        time.sleep(1)
        begun = time.monotonic()
        assert client.request("DELETE", job)[0] == 202
        status, _, answer = client.post_form([("max_calls", "100")], "bus.png", scene())
        assert (status, answer["label"]) == (200, "bus")
        assert time.monotonic() - begun < 10
        assert client.wait_for(job)["error"] == "stopped before a result was found"
        waiting = [("wait", "100"), ("model", "stuck")]
        thread = threading.Thread(target=lambda: found.append(client.post_form(waiting, "bus.png", scene())))
        thread.start()
        time.sleep(1)
    thread.join(10)
    assert (found[0][0], found[0][2]) == (503, {"error": "stopped before a result was found"})


def test_the_server_ends_within_five_seconds_of_sigterm(tmp_path):
    """It runs a search of the page with a model that never answers, and one of the API that is busy; others wait."""
    (tmp_path / "stuck.py").write_text(STUCK)
    page = load_benchmark("serve_load")
    with server("--model", f"python:{tmp_path / 'stuck.py'}:predict") as (process, port):
        client, seen = page.Client(port, model="python:stuck.py:predict"), []
        client.choose("bus.png", scene())

        def watch():
            with suppress(Exception):  # the connection is lost in the end
                client.follow(client.start(), lambda name, content: seen.append(content["html"]))

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        while not any('data-state="running"' in html for html in seen):
            time.sleep(0.05)
        for method, options in (("rise", {"masks": 5000, "cells": 1300}), ("hsic", {"samples": 900, "grid": 5000})):
            begin(load.ApiClient(port), method, model="bundled", **options)
        time.sleep(1.5)
        assert thread.is_alive()  # it waits for the explanation
        assert end(process) < 5
        thread.join(10)


# ---------------------------------------------------------------- the command line


BUSY = '''
import pathlib, threading, time
import numpy as np

def predict(batch):
    """It answers from another thread, which nothing ends, and cannot be interrupted."""
    pathlib.Path("busy").touch()
    until = time.monotonic() + 100
    while time.monotonic() < until:
        try:
            time.sleep(0.05)
        except KeyboardInterrupt:
            pass
    return np.zeros((len(batch), 2))
'''


def test_ctrl_c_and_sigterm_end_commands_that_cannot_be_interrupted(tmp_path):
    """Side by side, since each takes as long as a search is waited for."""
    explain, batch = ["explain", "bus.png"], ["batch", ".", "--out", "run"]
    cases = [(signal.SIGINT, explain), (signal.SIGINT, batch), (signal.SIGTERM, batch)]
    processes = []
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        for number, (_, words) in enumerate(cases):
            place = tmp_path / str(number)
            place.mkdir()
            (place / "bus.png").write_bytes(scene())
            (place / "net.py").write_text(BUSY)
            command = [sys.executable, "-m", "becausal", *words, "--model", "python:net.py:predict"]
            processes.append(
                subprocess.Popen(command, cwd=place, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
            )
    finally:
        signal.signal(signal.SIGINT, before)
    try:
        for number, process in enumerate(processes):
            while not (tmp_path / str(number) / "busy").exists() and process.poll() is None:
                time.sleep(0.05)
        begun = time.monotonic()
        for process, (number, _) in zip(processes, cases, strict=True):
            process.send_signal(number)
        for process, (number, _) in zip(processes, cases, strict=True):
            err = process.communicate(timeout=30)[1]
            assert time.monotonic() - begun < 6
            assert process.returncode == 130
            assert "Traceback" not in err
            if number == signal.SIGINT:
                said = "becausal: stopped: interrupted; the search did not return in time, so its result is lost"
                assert err.splitlines()[-1] == said
    finally:
        for process in processes:
            process.kill()
            process.wait()


# ---------------------------------------------------------------- what options cost together


@pytest.mark.parametrize(
    ("method", "options", "said"),
    [
        (
            "hsic",
            {"samples": 5000, "grid": 5000},
            r"samples=5000, grid=5000 would take about 8.03 GB of memory .*224x224",
        ),
        ("rise", {"masks": 5000, "cells": 5000}, r"masks=5000, cells=5000 would take about 125 billion numbers to compute"),
        ("sobol", {"designs": 5000, "grid": 500}, r"reduce designs or grid$"),
        ("greedy", {"patches": 5000}, r"reduce patches$"),
        ("sbfl", {"chains": 50000, "mutants": 50000}, r"reduce chains or mutants$"),
        ("lime", {"samples": 50000, "patches": 5000}, r"reduce samples or patches$"),
        ("shap", {"evaluations": 2000000, "cells": 500}, r"reduce evaluations or cells$"),
    ],
)
def test_options_that_cost_too_much_together_are_refused(method, options, said):
    from becausal.methods import make_explainer
    from becausal.methods.costs import check_cost

    with pytest.raises(OptionError, match=said):
        check_cost(make_explainer(method, options), (224, 224))


def test_the_defaults_are_cheap_even_on_a_server():
    from becausal.methods import METHODS, make_explainer
    from becausal.methods.costs import check_cost

    limits = Limits()
    for name in METHODS:
        for grid in ((224, 224), (512, 512), (4, 4), (1000,), (48, 48, 48)):
            check_cost(
                make_explainer(name),
                grid,
                memory=limits.method_bytes,
                numbers=limits.method_numbers,
                gradients=limits.max_calls,
            )


def test_the_command_line_refuses_them_with_one_line(tmp_path, capsys):
    from becausal.interfaces.cli.app import main

    (tmp_path / "bus.png").write_bytes(scene())
    words = ["--method", "rise", "--option", "masks=5000", "--option", "cells=5000", "--out", str(tmp_path / "out")]
    assert main(["explain", str(tmp_path / "bus.png"), "--model", "bundled", *words]) == 2
    assert re.fullmatch(
        r"becausal: error: the method rise with masks=5000[^\n]+: reduce masks or cells\n", capsys.readouterr().err
    )
    assert not Path(tmp_path / "out").exists()


def test_the_api_refuses_them_with_status_400():
    with serving({"bundled": load_model("bundled")}) as served:
        client = load.ApiClient(served.port)
        for method, options, said in (
            ("extremal", {"steps": 5000, "areas": AREAS}, "240,000 gradients of the model"),
            ("rise", {"masks": 5000, "cells": 5000}, "reduce masks or cells"),
            ("hsic", {"samples": 5000, "grid": 5000}, "reduce samples or grid"),
            ("causal", {"grain": [1]}, "the option grain of causal is a list, expected an integer or null"),
        ):
            body = {"image": base64.b64encode(scene()).decode(), "request": {"method": method, "options": options}}
            status, _, answer = client.post_json("/v1/explain", body)
            assert status == 400, answer
            assert said in answer["error"]


# ---------------------------------------------------------------- what Ctrl-C leaves out


INTERRUPTED = """
import signal
import numpy as np

CALLS = []

def predict(batch):
    CALLS.append(len(batch))
    if len(CALLS) == 12:
        signal.raise_signal(signal.SIGINT)
    bright = batch.mean(axis=(1, 2, 3)) / 255
    return np.stack([0.3 + 0 * bright, bright], axis=1) / (0.3 + bright)[:, None]
"""


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_images_that_were_not_reached_are_named(tmp_path, monkeypatch, capsys, without_figures, more):
    from becausal.interfaces.cli.app import main

    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(INTERRUPTED)
    names = [f"{letter}.png" for letter in "abcdefgh"]
    for number, name in enumerate(names):
        Image.fromarray(np.full((24, 24, 3), 200 + number, np.uint8)).save(tmp_path / name)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        words = ["--model", "python:net.py:predict", "--fill", "black", "--batch-size", "1", "--out", "out"]
        assert main(["explain", *names, *words, *more]) == 130
    finally:
        signal.signal(signal.SIGINT, before)
    out, err = capsys.readouterr()
    explained = {own.name for own in (tmp_path / "out").iterdir()}
    left = [name for name in names if name.partition(".")[0] not in explained]
    assert 6 <= len(left) < 8
    (said,) = [line for line in err.splitlines() if "not explained" in line]
    more_than = f" and {len(left) - 5} more"
    assert said == f"becausal: stopped: {len(left)} of 8 images not explained: {', '.join(left[:5])}{more_than}"
    if more:
        assert len(json.loads(out)) == 8 - len(left)

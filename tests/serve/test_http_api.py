"""The HTTP API: the same answers as the library, jobs, limits, the token, bad requests, and its end."""

import io
import json
import re
import socket
import tempfile
import threading
import time
from base64 import b64decode, b64encode
from contextlib import closing
from dataclasses import dataclass, fields, replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from libraries import need
from PIL import Image
from serving import Gate, bright_image, encode, load_benchmark, serving

import becausal
from becausal.core.errors import BecausalError, InputError
from becausal.core.options import option
from becausal.core.request import Request
from becausal.interfaces.serve import api, bodies, page
from becausal.interfaces.serve.api import make_openapi, type_schema
from becausal.interfaces.serve.bodies import INCLUDABLE, check_request, parse_form, read_explain
from becausal.interfaces.serve.guard import RequestRejected
from becausal.interfaces.serve.job_queue import JobQueue, QueueFull
from becausal.interfaces.serve.jobs import BackgroundJob
from becausal.interfaces.serve.limits import Limits
from becausal.interfaces.serve.rendering import render
from becausal.interfaces.serve.service import Metrics, Service
from becausal.interfaces.serve.tasks import JobResult, LimitedProgress
from becausal.scenes import make_scene

need("starlette", "uvicorn", "python_multipart", "prometheus_client")

load = load_benchmark("api_load")
ApiClient, encode_form, without_times = load.ApiClient, load.encode_form, load.without_times
LIMITS = Limits()
TOKEN = "a-token-for-tests-1234"
JSON = {"Content-Type": "application/json"}
ASYNC = {"Prefer": "respond-async"}


def b64(data):
    return b64encode(data).decode()


@pytest.fixture(scope="module", autouse=True)
def _decoded_here():
    """Uploads are decoded in this process: starting another one for each takes long. One test has the real check."""
    from becausal.interfaces.serve import images

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(images, "check_upload", images.decode_image)
        yield


@pytest.fixture(scope="module")
def bundled():
    return becausal.load_model("bundled")


@pytest.fixture(scope="module")
def gate():
    return Gate()


@pytest.fixture(scope="module")
def served(bundled, gate):
    limits = Limits(upload_bytes=200_000, workers=1, waiting=3, grace_seconds=1.0)
    with serving({"bundled": bundled, "gate": gate.classifier}, limits, has_page=False) as served:
        yield served


@pytest.fixture
def client(served):
    return ApiClient(served.port)


@pytest.fixture
def closed(gate):
    """The gate, closed; it is opened at the end, whatever happens."""
    gate.close()
    yield gate
    gate.is_open.set()


def post(client, data=None, headers=None, model="gate", **content):
    """POST /v1/explain as JSON: status, headers and answer."""
    body = {"image": b64(data or bright_image()), "model": model, **content}
    return client.post_json("/v1/explain", body, headers)


def get_job(client, location):
    status, _, body = client.request("GET", location)
    return status, json.loads(body)


def wait_until(condition, seconds=30):
    ends = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.01)


# ---------------------------------------------------------------- the same as the library


def scene_file(file_format):
    pixels = make_scene(1025, label="bus").image
    if file_format == "GIF":
        frames = [Image.fromarray(pixels), Image.fromarray(255 - pixels)]
        buffer = io.BytesIO()
        frames[0].save(buffer, "GIF", save_all=True, append_images=frames[1:])
        return buffer.getvalue()
    if file_format == "JPEG":
        exif = Image.Exif()
        exif[0x0112] = 3  # upside down
        return encode(pixels[::-1, ::-1], "JPEG", exif=exif, quality=95)
    return encode(pixels, file_format)


@pytest.mark.parametrize(
    ("file_format", "asked", "shape"),
    [
        ("PNG", {}, "json"),
        ("JPEG", {"seed": 1, "fills": ["blur", "black"], "max_calls": 300, "grain": 8}, "form"),
        ("GIF", {"confidence": 0.9, "contrast": True, "grain": None, "target": "bus", "max_calls": 150}, "json"),
        ("PNG", {"method": "dc-causal", "options": {"partitions": 2}, "max_calls": 200}, "form"),
        ("PNG", {"seed": 2, "holds": 0.8, "max_calls": 300}, "json"),
    ],
)
def test_the_answer_is_that_of_the_library_bit_by_bit(client, bundled, tmp_path, file_format, asked, shape):
    file = tmp_path / f"bus.{file_format.lower()}"
    file.write_bytes(scene_file(file_format))
    include = ["arrays.npz", "explanation.png"] if shape != "form" else ["arrays.npz"]
    if shape == "form":
        texts = [("include", name) for name in include]
        for key, value in asked.items():
            lines = value if isinstance(value, list) else [value]
            lines = [f"{k}={v}" for k, v in value.items()] if isinstance(value, dict) else lines
            texts += [(key, str(line)) for line in lines]
        status, _, answer = client.post_form(texts, file.name, file.read_bytes())
    else:
        status, _, answer = post(client, file.read_bytes(), model=None, name=file.name, request=asked, include=include)
    assert status == 200, answer
    expected = next(becausal.explain_many([file], bundled, request=Request.from_record(asked)))
    record = json.loads(json.dumps(expected.record()))
    assert record["origin"].pop("files") == {"image": {"path": str(file), "sha256": record["origin"]["image_sha256"]}}
    assert answer["origin"].pop("files") == {}  # the server has no file
    sent = answer["files"]
    if shape == "form" and "options" in asked:  # given as text, used as a number
        answer["origin"]["request"]["options"] = asked["options"]
    assert without_times(answer) == without_times(record)
    made = expected.files(render="explanation.png" in include)
    with np.load(io.BytesIO(b64decode(sent["arrays.npz"]))) as got, np.load(io.BytesIO(made["arrays.npz"])) as own:
        assert set(got) == set(own)
        for name in own:
            np.testing.assert_array_equal(got[name], own[name])
    if "explanation.png" in include:
        assert b64decode(sent["explanation.png"]) == made["explanation.png"]


def test_a_plain_request_is_a_plain_explain(client, bundled, tmp_path):
    file = tmp_path / "bus.png"
    file.write_bytes(scene_file("PNG"))
    _, _, answer = client.post_form([("seed", "5")], file.name, file.read_bytes())
    record = json.loads(json.dumps(becausal.explain(file, bundled, seed=5).record()))
    for found in (answer, record):
        found["origin"].pop("files")
    assert without_times(answer) == without_times(record)
    assert "files" not in answer


def test_every_field_of_a_request_is_read_and_described():
    names = {f.name for f in fields(Request)}
    document = make_openapi(LIMITS)
    assert set(document["components"]["schemas"]["Request"]["properties"]) == names
    content = document["paths"]["/v1/explain"]["post"]["requestBody"]["content"]
    assert names <= set(content["multipart/form-data"]["schema"]["properties"])
    record = Request().record()
    body = json.dumps({"image": b64(b"x"), "request": record}).encode()
    assert read_explain("application/json", body, LIMITS)[1] == Request()


@dataclass(frozen=True, kw_only=True)
class WiderRequest(Request):
    """A request with options that we do not have yet."""

    sharpness: int = option(3, "How sharp.", metavar="N")
    is_curved: bool = option(False, "Whether it is curved.")


def test_a_new_option_is_in_the_schema_the_forms_and_the_answer_without_an_edit(monkeypatch, bundled):
    for module in (api, bodies, page):
        monkeypatch.setattr(module, "Request", WiderRequest)
    described = {"type": "integer", "description": "How sharp.", "default": 3}
    document = make_openapi(LIMITS)
    assert document["components"]["schemas"]["Request"]["properties"]["sharpness"] == described
    content = document["paths"]["/v1/explain"]["post"]["requestBody"]["content"]
    assert content["multipart/form-data"]["schema"]["properties"]["sharpness"] == described
    body, kind = encode_form([("sharpness", "7"), ("is_curved", "true")], "a.png", bright_image())
    as_json = json.dumps({"image": b64(b"x"), "request": {"sharpness": 7, "is_curved": True}}).encode()
    asked = [read_explain(kind, body, LIMITS)[1], read_explain("application/json", as_json, LIMITS)[1]]
    asked.append(page.make_request({"sharpness": "7", "is_curved": "true"}, bundled, None, LIMITS))  # the page's controls
    for request in asked:
        assert request == WiderRequest(sharpness=7, is_curved=True)
        assert request.record()["sharpness"] == 7  # as in the answer
    assert page.make_request({"sharpness": ""}, bundled, None, LIMITS) == WiderRequest()
    with pytest.raises(InputError, match='sharpness is "x", expected an integer'):
        page.make_request({"sharpness": "x"}, bundled, None, LIMITS)
    with serving({"bundled": bundled}) as served:
        html = ApiClient(served.port).request("GET", "/")[2].decode()
    assert '<input type="number" id="bc-sharpness" name="sharpness" step="any">' in html
    assert '<input type="checkbox" id="bc-is_curved" name="is_curved" value="true">' in html
    assert "How sharp." in html


# ---------------------------------------------------------------- jobs


@pytest.mark.smoke
def test_a_job_is_queued_runs_and_is_done(client, closed):
    status, headers, first = post(client, headers=ASYNC)
    assert status == 202
    assert headers["location"] == f"/v1/jobs/{first['id']}"
    assert re.fullmatch(r"[\w-]{32}", first["id"])
    assert closed.reached.wait(30)
    _, _, second = post(client, bright_image(1), headers={"Prefer": "wait=5, Respond-Async"})
    assert (second["state"], second["ahead"], second["calls"]) == ("queued", 0, 0)
    assert get_job(client, headers["location"])[1]["state"] == "running"
    closed.is_open.set()
    done = client.wait_for(headers["location"])
    assert done["state"] == "done"
    assert done["calls"] > 0
    assert "error" not in done
    assert done["result"]["label"] == "bright"
    assert without_times(post(client)[2]) == without_times(done["result"])
    assert get_job(client, headers["location"])[1]["result"] == done["result"]  # it is kept
    status, _, _ = client.request("DELETE", headers["location"])
    assert status == 200
    assert get_job(client, headers["location"])[0] == 404
    assert client.wait_for(f"/v1/jobs/{second['id']}")["state"] == "done"


def test_a_running_job_shows_its_progress_and_ends_with_the_best_so_far(client, gate):
    gate.close(after=12)
    try:
        _, headers, _ = post(client, headers=ASYNC, request={"grain": 1})
        assert gate.reached.wait(30)
        _, job = get_job(client, headers["location"])
        assert job["state"] == "running"
        assert job["calls"] > 0
        assert 0 < job["size"] < 1
        assert job["stage"] in ("search", "extract", "minimise", "verify")
        status, _, body = client.request("DELETE", headers["location"])
        assert (status, json.loads(body)["state"]) == (202, "running")
    finally:
        gate.is_open.set()
    done = client.wait_for(headers["location"])
    assert done["state"] == "done"
    assert done["result"]["stopped_by"] == "interrupt"
    assert done["result"]["explanation"]["sufficient"]
    assert done["result"]["explanation"]["size"] <= job["size"]


def test_a_queued_job_is_removed(client, closed):
    _, running, _ = post(client, headers=ASYNC)
    assert closed.reached.wait(30)
    _, queued, _ = post(client, headers=ASYNC)
    status, _, body = client.request("DELETE", queued["location"])
    assert status == 200
    assert json.loads(body)["error"] == "stopped before a result was found"
    assert get_job(client, queued["location"])[0] == 404
    closed.is_open.set()
    assert client.wait_for(running["location"])["result"]["stopped_by"] == "finished"
    assert "becausal_queue_length 0.0" in client.request("GET", "/metrics")[2].decode()


def test_after_the_wait_a_client_gets_the_job(client, closed):
    status, headers, job = post(client, wait=0.2)
    assert (status, job["state"]) == (202, "running")
    closed.is_open.set()
    assert client.wait_for(headers["location"])["state"] == "done"


def test_a_job_that_fails_says_why(client):
    _, headers, _ = post(client, headers=ASYNC, request={"target": "purple"})
    job = client.wait_for(headers["location"])
    assert job["state"] == "failed"
    assert job["error"].startswith("no class is named 'purple' among 2: ")
    assert "result" not in job


def test_who_asks_for_the_address_of_the_job_gets_it_even_if_the_job_has_ended(client, monkeypatch):
    submit = Service.submit

    def submit_and_wait(*args):
        job = submit(*args)
        assert job.ended.wait(30)
        return job

    monkeypatch.setattr(Service, "submit", submit_and_wait)
    status, headers, job = post(client, headers=ASYNC, request={"target": "purple"})
    assert (status, job["state"]) == (202, "failed")
    assert client.wait_for(headers["location"])["error"] == job["error"]


def test_the_job_of_a_client_that_has_gone_is_stopped(served, client, closed):
    body = json.dumps({"image": b64(bright_image()), "model": "gate"}).encode()
    with closing(socket.create_connection(("127.0.0.1", served.port), timeout=30)) as connection:
        head = (
            f"POST /v1/explain HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
        )
        connection.sendall(head.encode() + b"\r\n\r\n" + body)
        assert closed.reached.wait(30)
    before = count(client, 'becausal_errors_total{kind="stopped",model="gate"}')
    time.sleep(0.5)  # until the server has noticed
    closed.is_open.set()
    wait_until(lambda: count(client, 'becausal_errors_total{kind="stopped",model="gate"}') == before + 1)


def test_a_full_queue_is_429(client, closed):
    running = post(client, headers=ASYNC)[1]["location"]
    assert closed.reached.wait(30)
    waiting = [post(client, headers=ASYNC)[1]["location"] for _ in range(3)]
    status, headers, answer = post(client)
    assert (status, headers["retry-after"]) == (429, "10")
    assert answer == {"error": "the queue is full (3 searches are waiting): try again in a minute"}
    closed.is_open.set()
    assert [client.wait_for(job)["state"] for job in (running, *waiting)] == ["done"] * 4


def test_images_in_the_queue_have_a_limit_together():
    queue = JobQueue(Limits(workers=1, receiving_bytes=100))
    release = threading.Event()

    def work(progress):
        assert release.wait(30)
        return JobResult(b"{}")

    first = queue.submit(work, size=60)
    with pytest.raises(QueueFull, match="too large together"):
        queue.submit(work, size=60)
    release.set()
    assert first.ended.wait(30)
    assert queue.submit(work, size=200).ended.wait(30)  # one alone is always taken
    queue.close()


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def finished(body):
    job = BackgroundJob(lambda progress: JobResult(body), LIMITS)
    job.run()
    return job


def test_results_are_kept_for_some_time_up_to_a_number_and_a_size():
    clock = Clock()
    jobs = JobQueue(Limits(results=3, held_bytes=1000, idle_seconds=100), clock=clock)
    unfinished = jobs.keep(BackgroundJob(lambda progress: 1, LIMITS))
    names = [jobs.keep(finished(b"x")) for _ in range(4)]
    assert jobs.kept == (4, 3)
    with pytest.raises(RequestRejected, match="no such job"):
        jobs.find(names[0])
    clock.now = 90
    jobs.find(names[1])
    clock.now = 150
    jobs.clean_up()
    assert jobs.kept == (2, 1)  # the one that was asked for, and the one that has not ended
    jobs.find(names[1])
    jobs.keep(finished(bytes(900)))
    last = jobs.keep(finished(bytes(900)))
    assert jobs.kept == (2, 900)
    jobs.find(last)
    jobs.find(unfinished)


@pytest.mark.parametrize(
    ("limits", "note"),
    [
        ({"max_calls": 20}, "stopped at this server's limit of 20 model calls"),
        ({"seconds": 0.005}, "stopped at this server's limit of 0.005 seconds"),
        ({}, ""),
    ],
)
def test_a_search_ends_at_the_limits_of_the_server_once(limits, note):
    raised = []

    def search(max_calls):
        def run(progress):
            watch = LimitedProgress(progress, Limits(**limits).max_calls)
            for calls in range(5, 60, 5):
                try:
                    watch(becausal.Status("a", 0, "search", calls, max_calls, 0.5, np.ones((2, 2), bool)))
                except KeyboardInterrupt:
                    raised.append(calls)
                time.sleep(0.001)
            return watch.note

        return run

    job = BackgroundJob(search(None), Limits(**limits))
    job.run()
    assert (job.result, len(raised)) == (note, 1 if note else 0)
    assert not note or job.progress.updates < 11
    job = BackgroundJob(search(20), Limits(**limits | {"seconds": 60}))
    job.run()  # with a limit of its own, the search plans with it and ends by itself
    assert job.result == ""


def test_a_capped_search_says_so(gate):
    with serving({"gate": gate.classifier}, Limits(max_calls=30)) as served:
        status, _, answer = post(ApiClient(served.port), request={"grain": 1})
    assert status == 200
    assert answer["stopped_by"] == "interrupt"
    assert answer["notes"][-1] == "stopped at this server's limit of 30 model calls"
    assert answer["origin"]["request"]["max_calls"] is None


# ---------------------------------------------------------------- bad requests


IMAGE = b64(bright_image())


@pytest.mark.parametrize(
    ("content", "status", "said"),
    [
        ({}, 400, "image is missing"),
        ({"image": 5}, 400, "image is 5, expected text"),
        ({"image": "no base64!"}, 400, "image is not valid base64"),
        ({"image": ""}, 400, "image is empty"),
        ({"image": b64(b"text")}, 400, "image is not an image: expected a JPEG, PNG"),
        ({"image": b64(bytes(200_001))}, 413, "image is too large: the limit is 0.2 MB"),
        ({"image": IMAGE, "reqest": {}}, 400, "unknown field reqest; expected image, include, model"),
        ({"image": IMAGE, "request": []}, 400, "request is a list, expected an object"),
        ({"image": IMAGE, "request": {"sed": 1}}, 400, "unknown field request.sed; expected against"),
        ({"image": IMAGE, "request": {"seed": "1"}}, 400, 'request.seed is "1", expected an integer'),
        ({"image": IMAGE, "request": {"seed": -1}}, 400, "seed must be at least 0"),
        ({"image": IMAGE, "request": {"fills": ["image:/etc/passwd"]}}, 400, "the server reads no files for clients"),
        ({"image": IMAGE, "request": {"holds": 2}}, 400, "holds is a share of random backgrounds"),
        (
            {"image": IMAGE, "request": {"holds": 0.9, "backgrounds": "/etc"}},
            400,
            "backgrounds from a folder are not allowed: the server reads no files for clients",
        ),
        ({"image": IMAGE, "request": {"fills": ["grey"] * 8}}, 400, "fills has 8 fills, expected at most 7"),
        ({"image": IMAGE, "request": {"fills": ["plaid"]}}, 400, "unknown fill 'plaid'"),
        ({"image": IMAGE, "request": {"method": "magic"}}, 400, "unknown method 'magic'"),
        ({"image": IMAGE, "request": {"method": {"name": "causal"}}}, 400, "request.method is an object, expected text"),
        ({"image": IMAGE, "request": {"options": {"x": 1}}}, 400, "the method causal has no option 'x'"),
        (
            {"image": IMAGE, "request": {"method": "lime", "options": {"samples": 10**9}}},
            400,
            "options.samples is 1000000000, expected at most 5000 on this server",
        ),
        (
            {"image": IMAGE, "request": {"method": "lime", "options": {"samples": "1e9"}}},
            400,
            "options.samples is 1e9, expected at most 5000",
        ),
        ({"image": IMAGE, "request": {"target": "x" * 201}}, 400, "target has 201 characters, expected at most 200"),
        ({"image": IMAGE, "request": {"max_calls": 5001}}, 400, "max_calls is 5001, expected at most 5000 on this server"),
        ({"image": IMAGE, "include": ["a.png"]}, 400, "include has 'a.png', expected arrays.npz, explanation.png"),
        ({"image": IMAGE, "wait": -1}, 400, "wait is -1, expected 0 to 300 seconds"),
        ({"image": IMAGE, "wait": 301}, 400, "wait is 301, expected 0 to 300 seconds"),
        ({"image": IMAGE, "model": "python:evil.py:f"}, 404, "there is no model 'python:evil.py:f': it is one of bundled"),
        ({"image": IMAGE, "model": "gate", "request": {"target": "red"}}, 400, "no class is named 'red'"),
    ],
    ids=lambda value: str(value)[:60] if isinstance(value, (dict, str)) else "",
)
def test_a_bad_request_gets_one_sentence(client, content, status, said):
    got, headers, answer = client.post_json("/v1/explain", content)
    assert got == status, answer
    assert headers["content-type"] == "application/json"
    assert list(answer) == ["error"]
    assert said in answer["error"]
    assert "\n" not in answer["error"]
    assert not answer["error"].endswith(".")


@pytest.mark.parametrize(
    ("body", "content_type", "status", "said"),
    [
        (b"{}", None, 415, "the Content-Type is missing, expected application/json or multipart/form-data"),
        (b"{}", "text/plain", 415, "the Content-Type is text/plain"),
        (b"a=b", "application/x-www-form-urlencoded", 415, "expected application/json or multipart/form-data"),
        (b"{", "application/json", 400, "the body is not valid JSON"),
        (b"\xff", "application/json", 400, "the body is not valid JSON"),
        (b'{"image": NaN}', "application/json", 400, "NaN is not a JSON number"),
        (b"[]", "application/json; charset=utf-8", 400, "the body is not a JSON object"),
        (b"[" * 90_000, "application/json", 400, "the body is not valid JSON"),
        (b'{"image": ' + b"[" * 40 + b"]" * 40 + b"}", "application/json", 400, "nested more than 32 deep"),
        (b"x", "multipart/form-data", 400, "has no boundary"),
        (b"x", "multipart/form-data; boundary=b", 400, "the form cannot be read"),
        (b"--b\r\n\r\n", "multipart/form-data; boundary=b", 400, "the form"),
        (b"--b--\r\n", "multipart/form-data; boundary=b", 400, "the form has no file named image"),
        (bytes(400_000), "application/json", 413, "too large: the limit is 0.331 MB"),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_a_body_that_cannot_be_read_gets_one_sentence(client, body, content_type, status, said):
    headers = {"Content-Type": content_type} if content_type else {}
    got, _, answer = client.request("POST", "/v1/explain", body, headers)
    assert got == status
    assert said in json.loads(answer)["error"]


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        ([("sed", "1")], "unknown field sed; expected against"),
        ([("seed", "1"), ("seed", "2")], "the form has the field seed 2 times, expected once"),
        ([("seed", "one")], 'seed is "one", expected an integer'),
        ([("contrast", "maybe")], 'contrast is "maybe", expected true or false'),
        ([("grain", "x")], "the grain is a side in whole pixels"),
        ([("options", "x")], "a method's option is written key=value"),
        ([("wait", "soon")], 'wait is "soon", expected a number'),
        ([("request", "{")], "request is not valid JSON"),
        ([("request", '{"sed": 1}')], "unknown field request.sed"),
        ([("seed", "1")] * 101, "the form has more than 100 fields"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_bad_form_gets_one_sentence(client, texts, said):
    status, _, answer = client.post_form(texts, "a.png", bright_image())
    assert status == 400
    assert said in answer["error"]


def test_a_form_can_have_its_request_as_json_and_as_fields(client):
    texts = [("request", '{"seed": 4, "top": 1}'), ("seed", "6"), ("model", "gate"), ("name", "other.png"), ("wait", "20")]
    status, _, answer = client.post_form(texts, "a.png", bright_image())
    assert status == 200
    assert answer["origin"]["request"]["seed"] == 6
    assert answer["image"] == "other.png"


def test_a_file_under_another_name_is_refused(client):
    body, kind = encode_form([], "a.png", bright_image())
    body = body.replace(b'name="image"', b'name="photo"')
    status, _, answer = client.request("POST", "/v1/explain", body, {"Content-Type": kind})
    assert status == 400
    assert "has a file 'photo', expected one named image" in json.loads(answer)["error"]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("GET", "/v1/explain", 405),
        ("GET", "/v1/jobs/unknown", 404),
        ("DELETE", "/v1/jobs/unknown", 404),
        ("DELETE", "/v1/models", 405),
        ("POST", "/v1/models", 404),
        ("POST", "/v1/models/bundled:explain", 404),
        ("GET", "/v1/models/bundled", 404),
        ("POST", "/", 404),
        ("PUT", "/v1/explain", 405),
        ("GET", "/v1/jobs/../../etc/passwd", 404),
    ],
)
def test_other_addresses_and_methods_get_one_sentence(client, method, path, status):
    got, _, answer = client.request(method, path, b"{}" if method == "POST" else None, JSON)
    assert got == status
    assert re.fullmatch(r"[^\n.]+[^.\n]", json.loads(answer)["error"].replace("/openapi.json", ""))


def test_a_failing_model_is_the_servers_fault(client):
    def fails(batch):
        raise RuntimeError("no\nmemory")

    broken = becausal.models.as_classifier(fails, labels=["a"], returns="probabilities")
    with serving({"broken": broken}) as served:
        status, _, answer = ApiClient(served.port).post_json("/v1/explain", {"image": IMAGE})
        metrics = ApiClient(served.port).request("GET", "/metrics")[2].decode()
    assert status == 500
    assert "\n" not in answer["error"]
    assert "RuntimeError" in answer["error"]
    assert 'becausal_errors_total{kind="model",model="broken"} 1.0' in metrics


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
REQUESTS = st.dictionaries(st.sampled_from([f.name for f in fields(Request)]), JSON_VALUES, max_size=4)


@settings(max_examples=60, deadline=None)
@given(
    st.fixed_dictionaries(
        {"image": st.just(IMAGE)},
        optional={"request": REQUESTS | JSON_VALUES, "include": JSON_VALUES, "wait": JSON_VALUES, "model": JSON_VALUES},
    )
)
def test_any_json_is_read_or_refused(content):
    check_reading(lambda: read_explain("application/json", json.dumps(content).encode(), LIMITS))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["seed", "fills", "options", "grain", "target", "wait", "x"]), st.text(max_size=9))),
    st.binary(max_size=300),
)
def test_any_form_is_read_or_refused(texts, tail):
    body, kind = encode_form(texts, "a.png", bright_image())
    check_reading(lambda: read_explain(kind, body, LIMITS))
    check_reading(lambda: read_explain(kind, body[: -len(tail) or None] + tail, LIMITS))


def check_reading(read):
    """It returns an order, or raises an error of one line."""
    try:
        _, found, _ = read()
    except (RequestRejected, InputError) as error:
        found = error
    assert isinstance(found, Request) or "\n" not in str(found)
    assert 400 <= getattr(found, "status", 400) < 500


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.text(max_size=20).filter(lambda text: "\r" not in text))), st.binary())
def test_a_form_is_what_was_sent(texts, data):
    texts = [(key, text.encode("utf-8", "replace").decode()) for key, text in texts]
    body, kind = encode_form(texts, "a b.png", data)
    if b"--becausal-form" in data:
        return
    found, files = parse_form(kind, body)
    expected = {}
    for key, text in texts:
        expected.setdefault(key, []).append(text)
    assert (found, files) == (expected, {"image": ("a b.png", data)})


def test_a_large_file_is_not_written_to_disk(monkeypatch):
    def refuse(*args, **options):
        raise AssertionError("a temporary file")

    for name in ("NamedTemporaryFile", "TemporaryFile", "SpooledTemporaryFile", "mkstemp"):
        monkeypatch.setattr(tempfile, name, refuse)
    data = np.random.default_rng(0).bytes(5_000_000)
    body, kind = encode_form([], "a.png", data)
    assert parse_form(kind, body)[1]["image"][1] == data


@pytest.mark.parametrize("fill", ["image:a.png", "IMAGE:a.png"])
def test_no_fill_names_a_file(fill):
    with pytest.raises(InputError, match="reads no files"):
        check_request(Request(fills=("grey", fill)), LIMITS)


def test_an_upload_is_checked_in_a_process_of_its_own(client, monkeypatch):
    from becausal.interfaces.serve import images

    checked = []
    monkeypatch.setattr(images, "check_upload", lambda upload, limits: checked.append(upload.name))
    assert post(client, b"no image", name="a/b.png")[2]["error"].startswith("b.png is not an image")  # decoded again here
    assert checked == ["b.png"]


def test_the_models_are_listed(client):
    assert json.loads(client.request("GET", "/v1/models")[2]) == {"models": ["bundled", "gate"]}


# ---------------------------------------------------------------- token, hosts, sites


def test_a_server_with_a_token(gate):
    with serving({"gate": gate.classifier}, token=TOKEN) as served:
        stranger, client = ApiClient(served.port), ApiClient(served.port, TOKEN)
        status, _, answer = post(stranger)
        assert status == 401
        assert answer == {"error": "the token is missing or wrong: send the header Authorization: Bearer TOKEN"}
        assert stranger.request("GET", "/metrics")[0] == 401
        assert json.loads(stranger.request("GET", "/healthz")[2]) == {"status": "ok"}
        assert post(client)[0] == 200
        assert b'becausal_requests_total{path="/v1/explain",status="401"} 1.0' in client.request("GET", "/metrics")[2]


# ---------------------------------------------------------------- metrics and description


def count(client, name):
    lines = client.request("GET", "/metrics")[2].decode().splitlines()
    return next((float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name} ")), 0.0)


def test_metrics_count_what_was_done(gate):
    with serving({'g"a\\te': gate.classifier}) as served:
        client = ApiClient(served.port)
        calls = post(client, model=None)[2]["calls"] + post(client, bright_image(1), model=None)[2]["calls"]
        post(client, b"no image", model=None)
        post(client, model=None, request={"target": "red"})
        status, headers, body = client.request("GET", "/metrics")
    assert status == 200
    assert headers["content-type"].startswith("text/plain; version=")
    lines = body.decode().splitlines()
    name = 'model="g\\"a\\\\te"'
    for line in (
        'becausal_requests_total{path="/v1/explain",status="200"} 2.0',
        'becausal_requests_total{path="/v1/explain",status="400"} 2.0',
        f'becausal_explanations_total{{{name},stopped_by="finished"}} 2.0',
        f'becausal_errors_total{{kind="input",{name}}} 1.0',
        "becausal_explanation_seconds_count 2.0",
        'becausal_explanation_seconds_bucket{le="+Inf"} 2.0',
        "becausal_queue_length 0.0",
        "becausal_running_jobs 0.0",
    ):
        assert line in lines
    total = next(line for line in lines if line.startswith("becausal_model_calls_total"))
    assert float(total.rpartition(" ")[2]) >= calls
    pattern = r'# (HELP|TYPE) \w+ .+|\w+(\{(\w+="(\\.|[^"\\])*",?)+\})? [\d.e+-]+'
    assert all(re.fullmatch(pattern, line) for line in lines)
    families = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert len(families) == len(set(families))


def test_a_histogram_counts_up_to_each_bound():
    metrics = Metrics(JobQueue(LIMITS))
    for seconds in (0.1, 0.11, 2.0, 1000.0):
        metrics.count_job("m", SimpleNamespace(result=JobResult(b""), seconds=seconds))
    text = metrics.render()[0].decode()
    for bound, number in (("0.1", 1), ("0.25", 2), ("1.0", 2), ("2.5", 3), ("300.0", 3), ("+Inf", 4)):
        assert f'becausal_explanation_seconds_bucket{{le="{bound}"}} {number}.0\n' in text
    assert "becausal_explanation_seconds_sum 1002.21\n" in text


def test_the_description_is_valid_openapi_and_names_every_route(client):
    status, headers, body = client.request("GET", "/openapi.json")
    assert (status, headers["content-type"]) == (200, "application/json")
    document = json.loads(body)
    assert (document["openapi"], document["info"]["version"]) == ("3.1.0", becausal.__version__)
    described = {(m.upper(), path) for path, entry in document["paths"].items() for m in entry if m != "parameters"}
    assert described == {
        ("POST", "/v1/explain"),
        ("GET", "/v1/jobs/{id}"),
        ("DELETE", "/v1/jobs/{id}"),
        ("GET", "/v1/models"),
        ("GET", "/healthz"),
        ("GET", "/metrics"),
        ("GET", "/docs"),
        ("GET", "/openapi.json"),
    }
    assert "gate" not in body.decode()  # names of models need the token
    for kind, reference in re.findall(r"#/components/(schemas|responses)/(\w+)", body.decode()):
        assert reference in document["components"][kind]


def test_the_description_is_a_page_that_loads_nothing(client):
    status, headers, body = client.request("GET", "/docs")
    page = body.decode()
    assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert "default-src 'none'" in headers["content-security-policy"]
    assert not re.search(r"<script|<link|<img|src=|url\(|https?://", page)
    for text in ("POST /v1/explain", "DELETE /v1/jobs/{id}", "max_calls", "429", "Random seed"):
        assert text in page
    document = make_openapi(LIMITS)
    document["info"]["title"] = "<script>"
    assert "<script>" not in render("docs", document=document)


def test_types_as_json_schema():
    assert type_schema(int | None) == {"anyOf": [{"type": "integer"}, {"type": "null"}]}
    assert type_schema(tuple[str, ...]) == {"type": "array", "items": {"type": "string"}}
    assert type_schema(str | BecausalError) == {"type": "string"}
    assert type_schema(BecausalError) is None
    assert set(INCLUDABLE) == {"arrays.npz", "explanation.png", "heatmap.png", "report.html"}


# ---------------------------------------------------------------- the end of the server


def in_background(function):
    found = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()

    def result():
        thread.join(60)
        return found[0]

    return result


def test_what_is_under_way_is_completed_when_the_server_ends():
    gate = Gate()
    limits = Limits(workers=1, grace_seconds=0.5)
    with serving({"gate": gate.classifier}, limits) as served:
        client = ApiClient(served.port)
        gate.close(after=12)
        running = in_background(lambda: post(client, request={"grain": 1}))
        assert gate.reached.wait(30)
        queued = in_background(lambda: post(client))
        wait_until(lambda: count(client, "becausal_queue_length") == 1)
        served.server.should_exit = True
        status, _, answer = queued()
        assert (status, answer) == (503, {"error": "stopped before a result was found"})
        with pytest.raises(ConnectionRefusedError):
            ApiClient(served.port).request("GET", "/healthz")
        gate.is_open.set()
        status, _, answer = running()
        assert (status, answer["stopped_by"]) == (200, "interrupt")
        assert answer["explanation"]["sufficient"]


def test_a_job_that_needs_no_more_than_the_grace_period_finishes():
    gate = Gate()
    with serving({"gate": gate.classifier}, replace(LIMITS, grace_seconds=60.0)) as served:
        client = ApiClient(served.port)
        gate.close(after=5)
        running = in_background(lambda: post(client, request={"smallest": True, "grain": 4}))
        assert gate.reached.wait(30)
        served.server.should_exit = True
        time.sleep(0.1)
        gate.is_open.set()
        status, _, answer = running()
    assert (status, answer["stopped_by"]) == (200, "finished")

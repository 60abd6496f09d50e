"""The page over plain HTTP: responses, rejected requests, and many clients at once."""

import http.client
import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import zipfile
from html import unescape

import pytest
from libraries import need
from PIL import Image
from serving import load_benchmark

import becausal
from becausal.interfaces.cli.app import main
from becausal.interfaces.serve.rendering import summarise
from becausal.scenes import make_scene

need("starlette", "uvicorn", "python_multipart", "prometheus_client")

load = load_benchmark("serve_load")


def png(seed, **options):
    buffer = io.BytesIO()
    Image.fromarray(make_scene(seed, **options).image).save(buffer, "PNG")
    return buffer.getvalue()


BUS = png(1025, label="bus")


@pytest.fixture
def client(port):
    return load.Client(port)


@pytest.fixture(scope="module")
def explained(port):
    """A client with an explanation of its own image that several tests share: the client, the result and its path."""
    client = load.Client(port)
    client.choose("mine.png", BUS)
    return client, *client.explain()


def test_the_page_is_served_with_nothing_from_outside(client):
    status, headers, body = client.request("GET", "/")
    assert status == 200
    policy = headers["content-security-policy"]
    assert "default-src 'none'; script-src 'self'; style-src 'self'" in policy
    assert "unsafe" not in policy
    assert headers["x-frame-options"] == "DENY"
    page = body.decode()
    assert re.findall(r"""(?:src|href)=["']((?!data:)[^"']*)""", page) == ["static/page.css", "static/page.js"]
    assert not re.search(r"""<script(?! src=)|<style|\sstyle=|\son\w+=""", page)
    assert "Find the pixels that are enough for it." in page
    assert "minimal" not in page
    for name, kind in (("page.css", "text/css"), ("page.js", "text/javascript")):
        status, headers, text = client.request("GET", f"/static/{name}")
        assert (status, headers["content-type"]) == (200, f"{kind}; charset=utf-8")
        assert not re.search(rb"@import|https?://|url\(", text)


@pytest.mark.parametrize(
    ("controls", "words"),
    [
        ({"rank": "1", "label": "5", "ask": "sets", "detail": "medium", "several": "1", "calls": ""}, []),
        ({"ask": "smallest", "detail": "coarse"}, ["--smallest", "--grain", "8"]),
        ({"ask": "share", "share": "0.5"}, ["--confidence", "0.5"]),
        ({"several": "2", "fill": "blur", "calls": "400"}, ["--several", "2", "--fill", "blur", "--max-calls", "400"]),
    ],
)
def test_the_answer_is_that_of_the_command_line(client, tmp_path, capsys, without_figures, controls, words):
    """The same image, model and options: the same pixels, levels and calls, and the same request in the record."""
    data = png(107, size=256)
    (tmp_path / "photo.png").write_bytes(data)
    client.image = ("photo.png", data)
    found, link = client.explain(**controls)
    assert main(["explain", str(tmp_path / "photo.png"), "--model", "bundled", "--out", str(tmp_path / "out"), *words]) == 0
    capsys.readouterr()
    expected = becausal.Explanation.load(next(tmp_path.rglob("explanation.json")).parent)
    assert found == json.loads(json.dumps(summarise(expected)))
    if words:
        return
    archive = zipfile.ZipFile(io.BytesIO(client.request("GET", link)[2]))
    records = [json.loads(archive.read("becausal-sailboat/explanation.json")), json.loads(json.dumps(expected.record()))]
    for record in records:
        record["origin"].pop("files")  # the server has none
        record.pop("seconds")
        record["stats"] = {key: value for key, value in record["stats"].items() if not key.endswith("seconds")}
    assert records[0] == records[1]


def test_the_zip_file_is_the_saved_folder(explained, tmp_path):
    client, said, link = explained
    status, headers, body = client.request("GET", link)
    assert status == 200
    assert headers["content-disposition"] == 'attachment; filename="becausal-bus.zip"'
    zipfile.ZipFile(io.BytesIO(body)).extractall(tmp_path)
    assert main(["verify", str(tmp_path / "becausal-bus")]) == 0
    saved = becausal.Explanation.load(tmp_path / "becausal-bus")
    assert (saved.pixels, saved.origin.image) == (said["pixels"], "mine.png")


def test_a_pixel_of_an_answer_has_a_witness(explained):
    client, _, link = explained
    address = link.replace("/download", "/pixel")
    status, _, body = client.request("GET", f"{address}?row=5&column=6")
    assert status == 200
    assert "row 5, column 6" in json.loads(body)["html"]
    for query, said in (("row=x&column=6", "whole numbers"), ("row=5000&column=6", "position in the view"), ("", "whole")):
        status, _, body = client.request("GET", f"{address}?{query}")
        assert status == 400
        assert said in json.loads(body)["error"]


def test_an_answer_is_not_given_without_its_id_and_not_kept_for_another_image(client):
    client.choose("mine.png", BUS)
    _, link = client.explain(calls="60")
    address = link.removesuffix("/download")
    other = address[:-1] + ("a" if address[-1] != "a" else "b")
    for method, path in (("GET", "/download"), ("GET", "/events"), ("GET", "/pixel?row=1&column=1"), ("DELETE", "")):
        assert client.request(method, other + path)[0] == 404
    assert client.request("GET", address.replace("/page/", "/v1/"))[0] == 404  # the jobs of programs are others
    assert client.request("DELETE", address)[0] == 200
    assert client.request("GET", link)[0] == 404


@pytest.mark.smoke
def test_a_finished_search_can_be_watched_again(client):
    client.choose("mine.png", BUS)
    address = client.start(calls="60")
    assert client.follow(address) == client.follow(address)


@pytest.mark.parametrize(
    "path",
    [
        "/static/..%2fpage.py",
        "/static/%2e%2e/app.py",
        "/static/openapi.json",
        "/static/../../../../etc/passwd",
        "/page/jobs/..%2f..%2fetc%2fpasswd/download",
        "/page",
        "/config",
        "/favicon.ico",
    ],
)
def test_no_path_leads_to_a_file(client, path):
    status, _, body = client.request("GET", path)
    assert status == 404
    assert b"root:" not in body


@pytest.mark.parametrize(
    "values",
    [
        {"method": "python:/tmp/x.py:f"},
        {"fill": "image:/etc/passwd"},
        {"label": "999", "rank": "2"},
        {"calls": "1e3"},
    ],
    ids=str,
)
def test_what_was_not_offered_is_not_done(client, values):
    client.choose("mine.png", BUS)
    status, reply = client.post("/page/explain", **values)
    if status == 202:  # a label that the model does not have
        name, reply = client.follow(f"/page/jobs/{reply['job']}")
        assert name == "failed"
    else:
        assert status == 400
    assert re.fullmatch(r"[^\n]+[^.\n]", reply["error"])


def test_two_methods_are_compared(client):
    client.choose("mine.png", BUS)
    name, content = client.follow(client.start("/page/compare", other="centre", calls="200"))
    assert name == "done"
    assert 'data-methods="causal,centre"' in content["compared"]
    for other, said in (("causal", "choose another method"), ("nonsense", "not one of those offered")):
        status, reply = client.post("/page/compare", other=other)
        assert status == 400
        assert said in reply["error"]


def test_a_model_is_never_a_spec_of_a_client(client):
    client.model = "python:evil.py:predict"
    for path in ("/page/labels", "/page/explain"):
        status, reply = client.post(path)
        assert status == 404
        assert "there is no model" in reply["error"]


def test_a_model_of_ones_own_has_no_examples(client):
    client.model = "python:slow.py:predict"
    status, reply = client.post("/page/labels", example="scenes/0")
    assert status == 200
    assert "Drop an image here" in reply["image"]
    assert "data-example" not in reply["image"]
    assert "<input" not in reply["labels"]
    assert client.post("/page/explain") == (400, {"error": "choose an image first"})


@pytest.mark.parametrize(
    ("data", "status", "said"),
    [
        (b"no image", 400, "note.png is not an image"),
        (b"", 400, "note.png is empty"),
        (bytes(1_000_001), 413, "too large"),
        (bytes(1_500_000), 413, "too large"),
    ],
    ids=["text", "empty", "large", "larger"],
)
def test_a_bad_upload_is_refused_in_a_line(client, data, status, said):
    client.image = ("note.png", data)
    got, reply = client.post("/page/labels")
    assert got == status
    assert said in reply["error"]


@pytest.mark.parametrize("path", ["/page/labels", "/v1/explain"])
def test_a_body_that_does_not_say_its_length_is_cut_off(port, path):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    chunk = bytes(100_000)
    try:
        connection.request("POST", path, (chunk for _ in range(100)), {"Transfer-Encoding": "chunked"}, encode_chunked=True)
        assert connection.getresponse().status == 413
    except (BrokenPipeError, ConnectionResetError):
        pass  # the server has hung up on the rest
    finally:
        connection.close()


@pytest.mark.parametrize("name", ["../../etc/passwd", "a<script>alert(1)</script>.png", "%00.png", "x" * 3000])
def test_a_name_is_only_shown(client, name):
    page = client.choose(name, BUS)["image"]
    assert "<script" not in page
    assert "/etc" not in page


def test_another_name_or_site_is_refused(client):
    assert client.request("GET", "/", headers={"Host": "evil.example"})[0] == 421
    for method, path in (("POST", "/page/labels"), ("POST", "/page/explain"), ("DELETE", "/page/jobs/" + "a" * 32)):
        assert client.request(method, path, b"x", {"Origin": "http://evil.example"})[0] == 403


@pytest.mark.parametrize(
    "raw",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: x\r\n\r\n",
        b"\x00\x01\x02\r\n\r\n",
        b"POST /page/labels HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
        b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ],
    ids=["length", "noise", "negative", "long"],
)
def test_a_malformed_request_does_not_harm(client, port, raw):
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        try:
            connection.sendall(raw)
            answer = connection.recv(1000)
        except ConnectionResetError:
            answer = b""
    assert not answer or re.match(rb"HTTP/1\.[01] [45]\d\d", answer)
    assert client.request("GET", "/healthz")[0] == 200


def test_stop_keeps_the_best_so_far(client):
    client.model = "python:slow.py:predict"
    client.choose("mine.png", BUS)
    address, stopped = client.start(), []

    def stop_once_it_shrinks(name, content):
        if not stopped and 'data-size="0.' in content.get("html", ""):
            stopped.append(client.request("DELETE", f"{address}?keep=1")[0])

    name, content = client.follow(address, stop_once_it_shrinks)
    assert (stopped, name) == ([200], "done")
    result = json.loads(unescape(re.findall(r'data-result="(.*?)"', content["stage"])[-1]))
    assert result["stopped_by"] == "interrupt"
    assert "Stopped early" in content["stage"]


def test_many_clients_at_once_get_their_own_answers(port):
    """The reduced form; `pytest -m slow` has 30 clients for two minutes."""
    report = load.run(port, 0, load.make_cases(2), clients=2, seconds=60, rounds=1)
    assert report.errors == []
    assert report.rounds == 2


@pytest.mark.slow
def test_thirty_clients_for_two_minutes():
    cases = load.make_cases(60)
    process, port = load.start_server()
    try:
        report = load.run(port, process.pid, cases, clients=30, seconds=120)
    finally:
        process.terminate()
        process.wait(30)
        process.stdout.close()
    assert report.errors == []
    assert report.rounds >= 30
    assert report.memory_peak < 1200
    assert report.memory_peak < report.memory_half + 150  # it does not keep growing


def test_serve_says_in_a_line_what_is_wrong(capsys, port):
    for arguments, said in (
        (["--port", str(port)], "cannot listen on port"),
        (["--port", "70000"], "--port must be 0 to 65535"),
        (["--searches", "0"], "at least 1"),
        (["--port", "0", "--host", "no.such.host.invalid"], "cannot listen on no.such.host.invalid"),
        (["--port", "0", "--model", "nonsense"], "is not a model specification"),
    ):
        assert main(["serve", *arguments]) == 2
        line = capsys.readouterr().err
        assert said in line
        assert line.count("\n") == 1


WATCHED = """
import json, socket, sys
from becausal.interfaces.cli.app import main

asked = []
connect, find = socket.socket.connect, socket.getaddrinfo

def watch_connect(self, address):
    if self.family != socket.AF_UNIX and address[0] not in ("127.0.0.1", "::1"):
        asked.append(str(address))
    return connect(self, address)

def watch_find(host, *rest, **more):
    if host not in ("127.0.0.1", "localhost", "::1", "0.0.0.0", None):
        asked.append(str(host))
    return find(host, *rest, **more)

socket.socket.connect, socket.getaddrinfo = watch_connect, watch_find
status = main(["serve", "--port", "0", "--host", "0.0.0.0", "--searches", "1", "--model", "bundled", "--model", sys.argv[1]])
print(json.dumps({"status": status, "asked": asked}))
"""


def test_the_server_calls_nobody_needs_the_printed_token_and_ends_with_ctrl_c(served_folder):
    command = [sys.executable, "-c", WATCHED, f"python:{served_folder / 'slow.py'}:predict"]
    environment = {key: value for key, value in os.environ.items() if key != "BECAUSAL_TOKEN"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment, **pipes) as process:
        line = process.stdout.readline()
        port, token = re.search(r"http://[^/]+:(\d+)/\?token=([\w-]{32}) in a browser", line).groups()
        one = load.Client(int(port))
        assert one.request("GET", "/")[0] == one.request("GET", "/static/page.js")[0] == 401
        status, headers, _ = one.request("GET", f"/?token={token}")
        assert status == 200
        one.cookie = headers["set-cookie"].partition(";")[0]
        assert b'id="bc-go"' in one.request("GET", "/")[2]
        assert one.request("GET", "/v1/models", headers={"Authorization": f"Bearer {token}"})[0] == 200
        one.explain(calls="60")
        one.model = "python:slow.py:predict"
        one.choose("mine.png", BUS)
        page = http.client.HTTPConnection("127.0.0.1", one.port, timeout=60)
        page.request("GET", f"{one.start()}/events", headers={"Cookie": one.cookie})
        assert page.getresponse().status == 200  # an open page does not keep the server from ending
        process.send_signal(signal.SIGINT)
        said, wrong = process.communicate(timeout=60)
        page.close()
    assert json.loads(said) == {"status": 0, "asked": []}
    assert re.fullmatch(r"becausal: warning: other machines can reach this page; [^\n]+\n", wrong)
    assert token not in wrong + said


def test_nothing_is_left_on_disk(explained, served_folder):
    client, _, link = explained
    assert client.request("GET", link)[0] == 200
    left = [path for path in (served_folder / "temporary").rglob("*") if path.is_file()]
    assert [path for path in left if path.name != ".ses"] == []  # onnxruntime writes that one, when it is loaded

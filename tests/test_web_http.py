"""The server over plain HTTP: responses, rejected requests, and many clients at once."""

import http.client
import io
import json
import re
import signal
import subprocess
import sys
import zipfile
from html import unescape

import pytest
from PIL import Image

import becausal
from becausal.interfaces.cli.app import main
from becausal.scenes import make_scene
from libraries import need
from web_serving import load_benchmark, serving

need("gradio")

load = load_benchmark()
VALUES = ["causal", load.FILL, 0, load.SHARE, load.CELLS, 1, load.CALLS]


def png(seed, **options):
    buffer = io.BytesIO()
    Image.fromarray(make_scene(seed, **options).image).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("served")


@pytest.fixture(scope="module")
def port(folder):
    with serving(folder, "--max-upload", "1") as port:
        yield port


@pytest.fixture
def client(port):
    return load.Client(port)


@pytest.fixture(scope="module")
def visitor(port):
    """A client that several tests share, with an image of its own."""
    client = load.Client(port)
    client.upload("mine.png", png(1025, label="bus"))
    return client


@pytest.fixture(scope="module")
def explained(port):
    """A client with an explanation of its own image that several tests share: the client, the result and its path."""
    client = load.Client(port)
    client.upload("mine.png", png(1025, label="bus"))
    return client, *client.explain(0)


def last_page(said):
    """The first output of an event's last message."""
    return said[-1]["output"]["data"][0]


def test_the_page_is_served_with_nothing_from_outside(client):
    status, headers, body = client.request("GET", "/")
    assert status == 200
    assert "default-src 'self'" in headers["content-security-policy"]
    assert headers["x-frame-options"] == "DENY"
    page = body.decode()
    assert re.findall(r"""<(?:script|img|iframe)[^>]*src=["'](https?:[^"']*)""", page) == []
    assert re.findall(r"""<link[^>]*stylesheet[^>]*href=["'](https?:[^"']*)""", page) == []
    status, _, theme = client.request("GET", "/theme.css")
    assert status == 200
    assert re.findall(r"@import[^;]*|url\([\x22\x27]?(?:https?:)?//[^)]*", theme.decode()) == []


def test_a_picture_is_explained_and_its_answer_fetched(client):
    case = load.make_case(5001, becausal.load_model("bundled"))
    load.do_round(client, case)  # compares with the library, pixel by pixel, and opens the zip file


def test_the_zip_file_is_the_saved_folder(explained, tmp_path):
    client, said, link = explained
    status, headers, body = client.request("GET", link)
    assert status == 200
    assert headers["content-disposition"] == 'attachment; filename="becausal-bus.zip"'
    zipfile.ZipFile(io.BytesIO(body)).extractall(tmp_path)
    assert main(["verify", str(tmp_path / "becausal-bus")]) == 0
    saved = becausal.Explanation.load(tmp_path / "becausal-bus")
    assert (saved.pixels, saved.origin.image) == (said["pixels"], "mine.png")


def test_a_pixel_of_ones_own_answer_has_a_witness_and_nobody_elses(explained, port):
    client, _, _ = explained
    mine = last_page(client.fire("bc-stage", "select", [], {"row": 5, "column": 6}))
    assert "row 5, column 6" in mine
    stranger = load.Client(port)
    assert "no longer available" in last_page(stranger.fire("bc-stage", "select", [], {"row": 5, "column": 6}))
    assert last_page(client.fire("bc-stage", "select", [], {"row": "5", "column": 6})) == ""
    outside = last_page(client.fire("bc-stage", "select", [], {"row": 5000, "column": 6}))
    assert "a position in the view" in outside.lower()


def test_an_upload_belongs_to_whoever_has_its_token(client, port):
    _, _, body = client.request("POST", "/image?name=mine.png", png(1002, label="house"))
    token = json.loads(body)["token"]
    stranger = load.Client(port)
    guess = last_page(stranger.fire("bc-image", "upload", ["bundled"], {"token": "x" * len(token)}))
    assert "no longer available" in guess
    mine = last_page(client.fire("bc-image", "upload", ["bundled"], {"token": token}))
    assert "mine.png" in mine
    again = last_page(stranger.fire("bc-image", "upload", ["bundled"], {"token": token}))
    assert "no longer available" in again


def test_an_answer_is_not_given_without_its_token(client):
    assert client.request("GET", "/download/" + "a" * 32)[0] == 404
    client.upload("mine.png", png(1025, label="bus"))
    _, link = client.explain(0)
    assert client.request("GET", link[:-1] + ("a" if link[-1] != "a" else "b"))[0] == 404
    client.upload("other.png", png(1002, label="house"))  # the answer belonged to the image before
    assert client.request("GET", link)[0] == 404


@pytest.mark.parametrize(
    "path",
    [
        "/gradio_api/file=/etc/passwd",
        "/gradio_api/file=../../../../etc/passwd",
        "/gradio_api/file=%2Fetc%2Fpasswd",
        "/file=/etc/passwd",
        "/gradio_api/proxy=http://127.0.0.1:1/x",
        "/assets/../../../../../etc/passwd",
        "/assets/%2e%2e/%2e%2e/%2e%2e/etc/passwd",
        "/assets/..%2f..%2f..%2fetc%2fpasswd",
        "/static/%2e%2e%5c%2e%2e%5csecret",
        "/svelte/..%2f..%2fgradio.js",
        "/download/..%2f..%2fetc%2fpasswd",
        "/?deep_link=../../x",
        "/gradio_api/custom_component/x/client/component/..%2f..%2fx",
        "/gradio_api/runs",
        "/gradio_api/info",
        "/monitoring",
    ],
)
def test_no_path_leads_to_a_file(client, path):
    status, _, body = client.request("GET", path)
    assert status == 404
    assert b"root:" not in body


def test_an_event_cannot_name_a_file(client):
    number = client.events["bc-go", "click"]
    for value in (
        {"path": "/etc/passwd", "meta": {"_type": "gradio.FileData"}},
        {"url": "http://127.0.0.1:1/x", "path": "x", "meta": {"_type": "gradio.FileData"}},
    ):
        event = {"data": [value] * 7, "fn_index": number, "session_hash": client.name}
        assert client.request("POST", "/gradio_api/queue/join", json.dumps(event).encode())[0] == 400


@pytest.mark.parametrize(
    ("place", "value"),
    [(0, "python:/tmp/x.py:f"), (1, "image:/etc/passwd"), (2, 999), (3, 0.01), (4, 0), (5, 99), (6, 10**9), (6, None)],
)
def test_what_was_not_offered_is_not_done(visitor, place, value):
    values = [*VALUES[:place], value, *VALUES[place + 1 :]]
    try:
        page = json.dumps(visitor.fire("bc-go", "click", values))
    except load.UnexpectedResponse:  # gradio itself knows what it offered
        page = ""
    assert "data-result" not in page
    assert not page or "role=" in page
    assert "bus.png" in last_page(visitor.fire("bc-image", "select", ["bundled"], {"example": 0}))  # the page still works


def test_a_model_is_never_a_spec_of_a_client(client):
    with pytest.raises(load.UnexpectedResponse):
        client.fire("bc-model", "input", ["python:evil.py:predict"])


@pytest.mark.parametrize(
    ("data", "status", "said"),
    [
        (b"no image", 400, "note.png is not an image"),
        (b"", 400, "note.png is empty"),
        (bytes(1_000_001), 413, "too large"),
    ],
    ids=["text", "empty", "large"],
)
def test_a_bad_upload_is_refused_in_a_line(client, data, status, said):
    got, _, body = client.request("POST", "/image?name=note.png", data)
    assert got == status
    assert said in json.loads(body)["error"]


def test_a_body_that_does_not_say_its_length_is_cut_off(port):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    chunk = bytes(100_000)
    try:
        connection.request(
            "POST", "/image", (chunk for _ in range(100)), {"Transfer-Encoding": "chunked"}, encode_chunked=True
        )
        assert connection.getresponse().status == 413
    except (BrokenPipeError, ConnectionResetError):
        pass  # the server has hung up on the rest
    finally:
        connection.close()


@pytest.mark.parametrize("name", ["../../etc/passwd", "a<script>alert(1)</script>.png", "%00.png", "x" * 3000])
def test_a_name_is_only_shown(client, name):
    said = client.upload(name, png(1025, label="bus"))
    page = last_page(said)
    assert "<script" not in page
    assert "/etc" not in page


def test_another_name_or_site_is_refused(client):
    assert client.request("GET", "/", headers={"Host": "evil.example"})[0] == 421
    assert client.request("POST", "/image", b"x", {"Origin": "http://evil.example"})[0] == 403


@pytest.mark.parametrize(
    "raw",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: x\r\n\r\n",
        b"\x00\x01\x02\r\n\r\n",
        b"POST /image HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
        b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ],
    ids=["length", "noise", "negative", "long"],
)
def test_a_malformed_request_does_not_harm(client, port, raw):
    import socket

    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        try:
            connection.sendall(raw)
            answer = connection.recv(1000)
        except ConnectionResetError:
            answer = b""
    assert not answer or re.match(rb"HTTP/1\.[01] [45]\d\d", answer)
    assert client.request("GET", "/config")[0] == 200


def test_stop_keeps_the_best_so_far(client):
    client.upload("mine.png", png(1025, label="bus"))
    client.fire("bc-model", "input", ["python:slow.py:predict"])
    stopped = []

    def stop_once_it_shrinks(message):
        if not stopped and "enough so far" in json.dumps(message):
            stopped.append(client.send("bc-stop", "click", []))

    page = json.dumps(client.fire("bc-go", "click", VALUES, watch=stop_once_it_shrinks))
    assert stopped
    result = json.loads(unescape(re.findall(r'data-result=\\"(.*?)\\"', page)[-1]))
    assert result["stopped_by"] == "interrupt"
    assert "Stopped early" in page


def test_many_clients_at_once_get_their_own_answers(port):
    """The reduced form; `pytest -m slow` has 30 clients for two minutes."""
    report = load.run(port, 0, load.make_cases(3), clients=3, seconds=60, rounds=1)
    assert report.errors == []
    assert report.rounds == 3


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
    if host not in ("127.0.0.1", "localhost", "::1", None):
        asked.append(str(host))
    return find(host, *rest, **more)

socket.socket.connect, socket.getaddrinfo = watch_connect, watch_find
status = main(["serve", "--port", "0"])
print(json.dumps({"status": status, "asked": asked}))
"""


def test_the_server_calls_nobody_and_ends_with_ctrl_c():
    command = [sys.executable, "-c", WATCHED]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        port = int(re.search(r":(\d+) ", process.stdout.readline())[1])
        one = load.Client(port)
        one.fire("page", "load", [])
        one.explain(0)
        page = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        page.request("GET", f"/gradio_api/heartbeat/{one.name}")  # an open page does not keep the server from ending
        assert page.getresponse().status == 200
        process.send_signal(signal.SIGINT)
        said, wrong = process.communicate(timeout=60)
        page.close()
    assert json.loads(said) == {"status": 0, "asked": []}
    assert wrong == ""


def test_without_gradio_the_extra_is_named():
    code = (
        "import sys; sys.modules['gradio'] = None\n"
        "from becausal.interfaces.cli.app import main\n"
        "assert main(['--help']) == 0 and main(['serve', '--help']) == 0\n"
        "raise SystemExit(main(['serve', '--port', '0']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert done.stderr.strip() == (
        "becausal: error: the page needs gradio, which is not installed: pip install gradio (the extra becausal[web])"
    )


def test_nothing_is_left_on_disk(explained, folder):
    client, _, link = explained
    assert client.request("GET", link)[0] == 200
    left = [path for path in (folder / "temporary").rglob("*") if path.is_file()]
    assert [path for path in left if path.name != ".ses"] == []  # onnxruntime writes that one, when it is loaded

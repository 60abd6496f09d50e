"""Endpoints of the Open Inference Protocol, asked over HTTP: a server process of our own, with faults, and MLServer.

The server is tests/oip_server.py, which says what it can do. MLServer wants an environment of its own: name its Python
in BECAUSAL_MLSERVER (`pip install mlserver onnxruntime` there), or those tests are skipped.
"""

import json
import os
import random
import re
import shlex
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import becausal
from becausal.api.explanation import Explanation
from becausal.core.contracts import Classifier
from becausal.core.errors import AnswerError, MissingExtraError, ModelError, NetworkError, OptionError, OutputError
from becausal.interfaces.cli.app import main
from becausal.models import KINDS, Loading, as_classifier, load_model
from becausal.models.endpoint import transport as http
from becausal.models.endpoint.cache import FILE, AnswerCache
from becausal.models.endpoint.caller import decode, encode, read_metadata
from becausal.models.endpoint.options import (
    EndpointOptions,
    as_pairs,
    make_headers,
    parse_address,
    parse_endpoint,
    without_secrets,
)
from becausal.models.endpoint.transport import Reply, Transport
from becausal.models.outputs import TensorInfo
from becausal.scenes import make_scene
from becausal.search.budget import LAST_CALLS

ROOT = Path(__file__).parents[2]
BUNDLED = ROOT / "src" / "becausal" / "models" / "bundled"
PROBES = 6  # images that are asked at the start of every run


class Server:
    """The server process of tests/oip_server.py."""

    def __init__(self, *arguments):
        command = [sys.executable, str(ROOT / "tests" / "oip_server.py"), *arguments]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.port = int(self.process.stdout.readline())

    def spec(self, model="toy"):
        return f"oip:http://127.0.0.1:{self.port}/v2/models/{model}"

    def set(self, faults=(), **settings):
        """Forget what was asked, and behave like this from now on."""
        self._call(json.dumps({"faults": list(faults), "settings": settings}).encode())

    def seen(self):
        return self._call(None)

    def _call(self, body):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/control", body, timeout=30) as reply:
            return json.load(reply)

    def stop(self):
        self.process.kill()
        self.process.communicate()


@pytest.fixture(scope="module")
def process():
    server = Server()
    yield server
    server.stop()


@pytest.fixture
def server(process, tmp_path, monkeypatch):
    """The server as new, an empty cache, and pauses too short to notice."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(http, "FIRST_PAUSE", 0.01)
    monkeypatch.chdir(tmp_path)
    process.set()
    return process


def picture():
    """16 x 16, bright where `toy` looks, noise elsewhere."""
    pixels = np.random.default_rng(3).integers(0, 200, (16, 16, 3), np.uint8)
    pixels[:8, :8] = 250
    return pixels


def corner(batch):
    """What `toy` answers, in this process."""
    share = batch[:, :8, :8].astype(np.float64).mean(axis=(1, 2, 3)) / 255
    return np.stack([1 - share, share], axis=1).astype(np.float32)


def explain(model, **options):
    return becausal.explain(picture(), model, fills="black", grain=1, **options)


def same(a, b):
    """Whether two explanations say the same at the same price."""
    return (
        np.array_equal(a.visible, b.visible)
        and np.array_equal(a.responsibility, b.responsibility)
        and (a.calls, a.label_id, a.checks, a.confidence) == (b.calls, b.label_id, b.checks, b.confidence)
    )


@pytest.fixture(scope="module")
def local():
    return explain(as_classifier(corner, returns="probabilities"))


# The address and the options


@pytest.mark.parametrize(
    ("target", "url"),
    [
        ("http://localhost:8000/v2/models/net", "http://localhost:8000/v2/models/net"),
        ("https://host/v2/models/net/versions/3/", "https://host/v2/models/net/versions/3"),
        ("http://host/a/b/v2/models/net/infer", "http://host/a/b/v2/models/net"),
        ("http://me:pass@host/v2/models/net", "http://host/v2/models/net"),
        ("http://[::1]:80/v2/models/net", "http://[::1]:80/v2/models/net"),
        ("http://host/v2/models/naïve", "http://host/v2/models/na%C3%AFve"),
    ],
)
def test_addresses(target, url):
    address = parse_address(target)
    assert address.url == url
    assert "pass" not in repr(address)
    assert make_headers(address, EndpointOptions()) == ({"Authorization": "Basic bWU6cGFzcw=="} if "pass" in target else {})


@pytest.mark.parametrize(
    "target",
    [
        "localhost:8000/v2/models/net", "ftp://host/v2/models/net", "http:///v2/models/net", "http://host:99999/v2/models/n",
        "http://host:x/v2/models/net", "http://host/v1/models/net", "http://host/v2/models/", "http://host/v2/models/a b",
        "http://me:secret@host/nothing", "http://me:se/cr@et@host/nothing", "http://host/v2/models/net?key=secret",
        "http://[host/v2/models/net", "https://me:secret@host:x/v2/models/n",
    ],
)  # fmt: skip
def test_bad_addresses_are_refused_and_repeat_no_secret(target):
    with pytest.raises(ModelError) as caught:
        parse_address(target)
    assert "oip:" in str(caught.value)
    assert "secret" not in str(caught.value)
    assert "et@" not in str(caught.value)


def test_options_are_read():
    words = ["timeout=5", "retries=0", "rate=2.5", "price=0.002", "cache=none", "binary=yes", "layout=NHWC", "token-env=T",
             "shape=N,3,8,8", "datatype=fp16", "input=a=b", "header=A: 1", "header=B:${X} y", "timeout=6"]  # fmt: skip
    options = parse_endpoint(words)
    assert options == EndpointOptions(
        timeout=6.0, retries=0, rate=2.5, price=0.002, cache=None, binary="yes", layout="nhwc", token_env="T",
        shape=(None, 3, 8, 8), datatype="FP16", input="a=b", header=("A: 1", "B:${X} y"),
    )  # fmt: skip
    assert parse_endpoint(as_pairs({"timeout": 6, "header": ["A: 1", "B: 2"], "cache": None, "binary": True})) == (
        EndpointOptions(timeout=6.0, header=("A: 1", "B: 2"), cache=None, binary="yes")
    )


@pytest.mark.parametrize(
    "word",
    [
        "timeout", "timeout=", "timeout=soon", "timeout=0", "timeout=nan", "speed=9", "retries=-1", "retries=1.5", "rate=0",
        "price=free", "binary=maybe", "layout=chwn", "shape=3x3", "shape=a,b,c,d", "shape=0,3,8,8", "input=", "ca=no/file",
        "secret", "X-Key: secret=1",
        "header=secret", "header=A: secret\x01", "header=sec ret: A", "cache_mb=0", "cache=", "token_env=",
    ],
)  # fmt: skip
def test_bad_options_are_refused(word):
    with pytest.raises(OptionError) as caught:
        parse_endpoint([word])
    assert "secret" not in str(caught.value)


def test_headers_come_from_the_environment(monkeypatch):
    address = parse_address("http://host/v2/models/net")
    options = parse_endpoint(["token_env=TOKEN", "header=X-Key: a ${KEY} b"])
    monkeypatch.setenv("TOKEN", " t0ken\n")
    with pytest.raises(OptionError, match=r"variable KEY, which .*is not set"):
        make_headers(address, options)
    monkeypatch.setenv("KEY", "k3y")
    assert make_headers(address, options) == {"Authorization": "Bearer t0ken", "X-Key": "a k3y b"}
    monkeypatch.setenv("KEY", "k3y\r\nX-Evil: 1")
    with pytest.raises(OptionError, match="X-Key") as caught:
        make_headers(address, options)
    assert "k3y" not in str(caught.value)


def test_only_what_is_no_secret_is_kept():
    words = [
        "price=1",
        "header=A: b",
        "header=A: Bearer ${T}",
        "header=A: s3cret${T}",
        "cache=/x",
        "cache-mb=1",
        " token-env = T",
    ]
    assert without_secrets(words) == ["price=1", "header=A: Bearer ${T}", "token_env=T"]
    shown = repr(Loading(endpoint=tuple(words), device="cuda"))
    assert shown == "Loading(device='cuda', endpoint=['price=1', 'header=A: Bearer ${T}', 'token_env=T'])"


# The protocol's words


def as_reply(body, **headers):
    return Reply(200, {key.replace("_", "-"): value for key, value in headers.items()}, body)


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize(
    ("datatype", "dtype"), [("FP32", "f4"), ("FP64", "f8"), ("FP16", "f2"), ("UINT8", "u1"), ("INT64", "i8")]
)
def test_every_bit_of_a_number_arrives(datatype, dtype, binary):
    rng = np.random.default_rng(0)
    batch = rng.integers(0, 256, (7, 5, 3, 16), np.uint8).view(dtype)
    batch = np.where(np.isfinite(batch), batch, 1).astype(dtype)
    body, headers = encode(TensorInfo("x", datatype, (None,)), batch, "y", binary=binary)
    head = body[: int(headers["Inference-Header-Content-Length"])] if binary else body
    (sent,) = json.loads(head)["inputs"]
    tail = body[len(head) :]
    read = np.frombuffer(tail, dtype) if binary else np.array(sent["data"], dtype)
    assert (sent["name"], sent["datatype"], sent["shape"]) == ("x", datatype, list(batch.shape))
    assert np.array_equal(read.reshape(sent["shape"]), batch)
    # and back: an answer of the same numbers
    output = {"name": "y", "datatype": datatype, "shape": list(batch.shape)}
    output |= {"parameters": {"binary_data_size": len(tail)}} if binary else {"data": sent["data"]}
    head = json.dumps({"outputs": [output], "model_version": "3"}).encode()
    reply = as_reply(head + tail, inference_header_content_length=str(len(head))) if binary else as_reply(head)
    found, version = decode(reply, "url")
    assert version == "3"
    assert found["y"].dtype == np.dtype(dtype)
    assert np.array_equal(found["y"], batch)


def test_nested_data_and_other_outputs_are_read():
    outputs = [
        {"name": "words", "datatype": "BYTES", "shape": [2], "data": ["a", "b"]},
        {"name": "y", "datatype": "FP32", "shape": [2, 2], "data": [[1, 2], [3, 4.5]]},
    ]
    found, version = decode(as_reply(json.dumps({"outputs": outputs}).encode()), "url")
    assert list(found) == ["y"]
    assert version is None
    assert found["y"].tolist() == [[1, 2], [3, 4.5]]


@pytest.mark.parametrize(
    "body",
    [
        b"", b"[]", b"{}", b'{"outputs": []}', b'{"outputs": 3}', b'{"outputs": [3]}', b"\xff\xfe", b"[" * 100_000,
        b'{"outputs": [{"name": "y", "datatype": "FP32", "shape": [2, 2], "data": [1, 2, 3]}]}',
        b'{"outputs": [{"name": "y", "datatype": "FP32", "shape": [2], "data": ["a", "b"]}]}',
        b'{"outputs": [{"name": "y", "datatype": "FP32", "shape": "many", "data": [1]}]}',
        b'{"outputs": [{"name": "y", "datatype": "FP32", "shape": [2]}]}',
        b'{"outputs": [{"name": "y", "datatype": "INT64", "shape": [1], "data": [1.5]}]}',
        b'{"outputs": [{"name": "y", "datatype": "INT64", "shape": [1], "data": [99999999999999999999999]}]}',
        b'{"outputs": [{"name": "y", "datatype": "FP32", "shape": [1], "parameters": {"binary_data_size": "x"}}]}',
        b'{"outputs": [{"name": "y", "datatype": "FP32", "shape": [1], "parameters": {"binary_data_size": 4}}]}',
        b'{"outputs": [{"name": "y", "datatype": "BYTES", "shape": [1], "data": ["a"]}]}',
    ],
)  # fmt: skip
def test_what_is_no_answer_is_refused(body):
    with pytest.raises(AnswerError) as caught:
        decode(as_reply(body), "url")
    assert "\n" not in str(caught.value)
    with pytest.raises(AnswerError, match="head"):
        decode(as_reply(body, inference_header_content_length="900000"), "url")


@pytest.mark.parametrize(
    "body",
    [
        b"", b"[]", b"<html>", b'{"inputs": 3}', b'{"inputs": [{"name": "x"}]}', b'{"outputs": ["y"]}',
        b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": ["a"]}]}',
        b'{"outputs": [{"name": "y", "datatype": "FP32", "shape": 3}]}',
    ],
)  # fmt: skip
def test_what_is_no_metadata_is_refused(body):
    with pytest.raises(ModelError, match="url sent no metadata of the Open Inference Protocol"):
        read_metadata(as_reply(body), "url")


def test_metadata_may_say_little():
    assert read_metadata(as_reply(b'{"name": "net", "inputs": null}'), "url").inputs == ()
    tensor = b'{"name": "x", "datatype": "fp32", "shape": [-1, "3", 8, 8], "parameters": {}}'
    (found,) = read_metadata(as_reply(b'{"inputs": [%b]}' % tensor), "url").inputs
    assert found == TensorInfo("x", "FP32", (None, 3, 8, 8))
    assert str(found) == "x FP32 [N,3,8,8]"


# Attempts, pauses, limits: with a clock of our own


class Clock:
    """Time that passes only when somebody sleeps."""

    def __init__(self):
        self.now, self.slept = 0.0, []

    def sleep(self, seconds):
        self.slept.append(round(seconds, 6))
        self.now += seconds

    def __call__(self):
        return self.now


def transport(server, *words, clock=None):
    clock = clock or Clock()
    address = parse_address(server.spec().removeprefix("oip:"))
    return Transport(address, parse_endpoint(words), sleep=clock.sleep, clock=clock, rng=random.Random(7)), clock


def ask(carrier, rows=1):
    batch = np.zeros((rows, 16, 16, 3), np.uint8)
    body, headers = encode(TensorInfo("x", "UINT8", ()), batch, None, binary=False)
    return carrier.request("POST", "/v2/models/toy/infer", body, headers)


def test_pauses_grow_and_are_drawn_from_the_seed(server, monkeypatch):
    monkeypatch.setattr(http, "FIRST_PAUSE", 0.5)
    expected = [base * (1 - 0.5 * draw) for base, draw in zip((0.5, 1, 2, 4), drawn(4), strict=True)]
    server.set([{"status": code} for code in (429, 502, 503, 504)])
    carrier, clock = transport(server)
    assert ask(carrier).status == 200
    assert clock.slept == [round(pause, 6) for pause in expected]


def drawn(count):
    rng = random.Random(7)
    return [rng.random() for _ in range(count)]


def test_a_server_may_say_when_to_come_back(server):
    later = format_datetime(datetime.now(UTC) + timedelta(seconds=40))
    server.set([{"status": 429, "headers": {"Retry-After": "17"}}, {"status": 503, "headers": {"Retry-After": later}}])
    carrier, clock = transport(server)
    assert ask(carrier).status == 200
    assert clock.slept[0] == 17
    assert 30 < clock.slept[1] <= 40
    server.set([{"status": 503, "headers": {"Retry-After": "3600"}, "error": "busy"}])
    carrier, clock = transport(server)
    with pytest.raises(NetworkError, match=r"503 Service Unavailable: busy, and asked to wait for 3600 s \(1 attempt\)"):
        ask(carrier)
    assert clock.slept == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("9" * 400, "asked to wait for 1e+09 s"),
        ("Fri, 31 Dec 9999 23:59:59 -2359", "503 Service Unavailable"),
        ("Fri, 31 Dec 99999999999 23:59:59 GMT", "503 Service Unavailable"),
        ("Fri, 31 Dec 2020 99:99:99 GMT", "503 Service Unavailable"),
        ("-5", "503 Service Unavailable"),
        ("never", "503 Service Unavailable"),
        ("1e999", "503 Service Unavailable"),
    ],
)
def test_a_time_to_come_back_that_makes_no_sense(server, text, said):
    server.set([{"status": 503, "headers": {"Retry-After": text}}] * 9)
    carrier, clock = transport(server, "retries=1")
    with pytest.raises(NetworkError, match=re.escape(said)):
        ask(carrier)
    assert len(clock.slept) <= 1


@pytest.mark.parametrize(
    "shape", ["[Infinity]", "[-Infinity, 3]", "[NaN]", "[1e999]", "[null]", "5", "[" * 9000, "[" + "9" * 5000 + "]"]
)
def test_metadata_that_make_no_sense(shape):
    body = f'{{"inputs": [{{"name": "x", "datatype": "FP32", "shape": {shape}}}], "outputs": []}}'.encode()
    with pytest.raises(ModelError, match="sent no metadata") as caught:
        read_metadata(Reply(200, {}, body), "http://host/v2/models/x")
    assert len(str(caught.value)) < 200


def test_lengths_that_make_no_sense():
    length = "9" * 5000
    with pytest.raises(AnswerError, match="invalid head length") as caught:
        decode(Reply(200, {"inference-header-content-length": length}, b"{}"), "http://host/v2/models/x")
    assert len(str(caught.value)) < 200


def test_attempts_end(server):
    server.set([{"status": 503}] * 9)
    carrier, clock = transport(server, "retries=2")
    with pytest.raises(NetworkError, match=r"\(3 attempts\)"):
        ask(carrier)
    assert len(clock.slept) == 2
    server.set([{"status": 503, "headers": {"Retry-After": "40"}}] * 9)
    carrier, clock = transport(server, "deadline=100")
    with pytest.raises(NetworkError, match=r"\(3 attempts\)"):
        ask(carrier)
    assert sum(clock.slept) <= 100


def test_the_rate_is_kept(server):
    carrier, clock = transport(server, "rate=4", "deadline=0.5")
    for _ in range(5):
        assert ask(carrier).status == 200
    assert clock.slept == [0.25] * 4
    clock.now += 10
    ask(carrier)
    assert clock.slept == [0.25] * 4


def test_one_connection_is_kept_and_reopened(server):
    carrier, _ = transport(server)
    for _ in range(5):
        ask(carrier)
    assert server.seen()["connections"] == 2  # ours, and the one that asks
    server.set(keep_alive=False)
    for _ in range(3):
        assert ask(carrier).status == 200
    server.set([None, {"reset": "before"}, None])
    for _ in range(2):  # cut while it was kept: opened again at once, no attempt is counted
        assert ask(carrier).status == 200
    carrier, clock = transport(server)
    server.set([{"reset": "before"}])
    ask(carrier)
    assert len(clock.slept) == 1


def test_an_answer_may_not_be_too_large(server, monkeypatch):
    monkeypatch.setattr(http, "MAX_BYTES", 2**20)
    for fault in ({"huge": 3_000_000}, {"huge": 3_000_000, "pieces": 1000}):  # the length is said, or found out
        server.set([fault, {"pieces": 7}])
        carrier, _ = transport(server)
        with pytest.raises(AnswerError, match="more than 1 MiB"):
            ask(carrier)
        assert decode(ask(carrier), "url")[0]["scores"].shape == (1, 2)  # the rest is not taken for the next answer


def test_credentials_go_nowhere_else(server, monkeypatch):
    monkeypatch.setenv("TOKEN", "s3cret")
    spec = f"oip:http://127.0.0.1:{server.port}/elsewhere/v2/models/toy"
    with pytest.raises(
        NetworkError, match=r"redirects to http://other\.example/v2/models/toy, which is not followed"
    ) as caught:
        load_model(spec, endpoint=["token_env=TOKEN"])
    assert "secret" not in str(caught.value)
    for location, said in (
        ("/v2/models/single", "/v2/models/single"),
        ("http://[", "an unknown address"),
        ("", "an unknown address"),
    ):
        server.set([{"status": 307, "headers": {"Location": location}}])
        with pytest.raises(NetworkError, match=f"redirects to {said}, which"):
            load_model(server.spec())


def test_the_environment_changes_nothing(server, tmp_path, monkeypatch):
    """No proxy and no .netrc of the environment, and no cookies of the server."""
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_port()}")
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password s3cret\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    server.set([{"status": 503, "headers": {"Set-Cookie": "session=abc; Path=/"}}])
    carrier, _ = transport(server)
    assert ask(carrier).status == 200
    assert not {"authorization", "cookie", "proxy-authorization"} & set(server.seen()["headers"])
    assert server.seen()["headers"]["user-agent"] == "becausal"


def test_a_connection_is_closed_with_its_transport(server):
    carrier, _ = transport(server)
    ask(carrier)
    client, close = carrier._client, carrier.close
    del carrier
    assert not close.alive
    assert client.is_closed


@pytest.mark.parametrize("host", ["a" * 70 + ".example", "xn--a", "b\u00fc..example"])
def test_a_host_that_cannot_exist(host, capsys):
    assert main(["inspect", f"oip:http://{host}/v2/models/toy"]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "cannot be reached: " in err


def test_httpx_that_is_not_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "httpx", None)
    with pytest.raises(MissingExtraError, match=r"needs httpx.*pip install httpx, or pip install \"\.\[endpoint\]\" in "):
        load_model("oip:http://127.0.0.1:9/v2/models/toy")
    assert KINDS["oip"].extra == "endpoint"


# A model behind an endpoint


def test_an_explanation_through_an_endpoint_equals_the_local_one(server):
    scene = make_scene(112).image
    here = becausal.explain(scene, "bundled", grain=8)
    server.set(binary=True, extensions=["binary_tensor_data"])
    there = becausal.explain(
        scene, load_model(server.spec("scenes"), preprocess="tf", labels=BUNDLED / "labels.txt"), grain=8
    )
    assert same(here, there)
    assert here.label == there.label
    assert server.seen()["headers"]["content-type"] == "application/octet-stream"
    twice = there.calls + PROBES - len(server.seen()["pictures"])  # in one batch, at the very end: sent once
    assert 0 <= twice < there.calls / 5
    # In JSON the model sees the same bits, so it answers with the same bits.
    server.set()
    plain = load_model(server.spec("scenes"), preprocess="tf", batch_size=4)
    views = np.stack([scene, 255 - scene])
    assert np.array_equal(plain.classify(views), load_model("bundled", batch_size=4).classify(views))
    assert server.seen()["headers"]["content-type"] == "application/json"
    assert isinstance(plain, Classifier)


@pytest.mark.slow
def test_the_same_in_json(server):
    for seed in (107, 112):
        scene = make_scene(seed).image
        model = load_model(server.spec("scenes"), preprocess="tf", endpoint={"binary": "no"})
        assert same(becausal.explain(scene, "bundled"), becausal.explain(scene, model))


RELATIVES = {
    "toy": [],
    "toy/versions/2": [],
    "nameless": ["shape=N,16,16,3", "datatype=UINT8", "input=x"],
    "single": [],
    "four": [],
    "half": [],
}


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("name", RELATIVES)
def test_shapes_types_and_layouts(name, binary, server, local):
    server.set(binary=binary, extensions=["binary_tensor_data"] if binary else [])
    model = load_model(server.spec(name), preprocess="unit" if name == "half" else None, endpoint=RELATIVES[name])
    assert model.info.geometry.grid == (16, 16)
    found = explain(model)
    if name == "half":
        assert found.label_id == local.label_id
    else:
        assert same(found, local)
    sizes = set(server.seen()["batches"])
    assert sizes == ({1} if name == "single" else {4} if name == "four" else sizes)
    views = np.stack([picture(), 255 - picture(), picture()[::-1]])
    assert np.allclose(model.classify(views), corner(views), atol=2e-3 if name == "half" else 0)


def test_whole_numbers_must_stay_whole(server, tmp_path):
    with pytest.raises(ModelError, match=r"x UINT8 \[N,16,16,3\] takes integers from 0 to 255, but the normalisation tf"):
        load_model(server.spec(), preprocess="tf")
    with pytest.raises(ModelError, match="from -128 to 127, but the normalisation raw produces other values"):
        load_model(server.spec(), endpoint={"datatype": "INT8"})
    (tmp_path / "card.toml").write_text("scale = 0.5\nmean = 127.5\nstd = -0.5\n")  # 255 - x
    view = picture()[None]
    model = load_model(server.spec(), preprocess=tmp_path / "card.toml")
    assert np.array_equal(model.classify(view), corner(255 - view))


def test_labels_only(server):
    found = explain(load_model(server.spec("labelled"), labels=["dark", "bright"]))
    assert found.label == "bright"
    assert "the output is read as labels: there are no scores" in found.notes


def test_names_and_layout_may_come_from_a_toml_file(server, tmp_path):
    (tmp_path / "card.toml").write_text('preprocess = "tf"\noutput_name = "logits"\nlayout = "nchw"\ninput = "input"\n')
    server.set(binary=True, extensions=["binary_tensor_data"])
    model = load_model(server.spec("scenes"), preprocess=tmp_path / "card.toml")
    view = make_scene(3).image[None]
    assert np.allclose(model.classify(view), load_model("bundled").classify(view), atol=1e-6)
    assert model.info.output == "probabilities"
    with pytest.raises(ModelError, match="no output 'scores'; it has probs, logits"):
        load_model(server.spec("scenes"), endpoint={"output": "scores"})
    with pytest.raises(ModelError, match="no input 'y'; it has x"):
        load_model(server.spec(), endpoint={"input": "y"})


@pytest.mark.smoke
def test_a_batch_that_is_too_large_is_split(server, local):
    assert same(explain(load_model(server.spec(), batch_size=64, endpoint={"cache": None})), local)
    whole = server.seen()["pictures"]
    server.set(largest=5)
    model = load_model(server.spec(), batch_size=64, endpoint={"cache": None})
    assert same(explain(model), local)
    batches = server.seen()["batches"]
    assert max(batches) <= 5
    asked = server.seen()["pictures"]
    assert set(asked) == set(whole)
    assert len(whole) <= len(asked) <= local.calls + PROBES  # equal images of one batch are sent once
    server.set(largest=0)
    with pytest.raises(AnswerError, match=r"refused images of shape 1x16x16x3: 400 Bad Request: .*batch-size must be <= 0"):
        load_model(server.spec())


def test_the_largest_batch_may_be_in_the_configuration(server):
    server.set(largest=3, extensions=["model_configuration"], config={"max_batch_size": 3})
    model = load_model(server.spec())
    assert model.batch_size == 3
    assert server.seen()["batches"] == [3, 3]
    for config in ({"max_batch_size": 0}, {}, [], "x"):
        server.set(extensions=["model_configuration"], config=config)
        assert load_model(server.spec()).batch_size == 32


def test_threads_may_share_an_endpoint(server):
    model = load_model(server.spec(), endpoint={"cache": None})
    views = np.random.default_rng(0).integers(0, 256, (24, 16, 16, 3), np.uint8)
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda i: model.classify(views[i : i + 1]), range(24)))
    assert np.array_equal(np.concatenate(answers), corner(views))


def test_options_that_are_not_for_it(server):
    for options, said in (
        ({"device": "cuda"}, "--device"),
        ({"half": True, "device": "cuda"}, "--device"),
    ):
        with pytest.raises(OptionError, match=said):
            load_model(server.spec(), **options)
    with pytest.raises(OptionError, match="endpoint options are for oip: "):
        load_model("bundled", endpoint={"timeout": 3})
    with pytest.raises(OptionError, match="endpoint options are for oip: "):
        as_classifier(corner, endpoint={"timeout": 3})


# Faults


def test_faults_that_pass_change_nothing(server, local):
    faults = [None, {"status": 503}, None, {"reset": "body"}, {"status": 429, "headers": {"Retry-After": "0"}}, None,
              {"reset": "before"}, {"sleep": 1.2}, {"status": 502}, {"status": 504}]  # fmt: skip
    server.set(faults)
    model = load_model(server.spec(), batch_size=8, endpoint={"timeout": 0.6})
    assert same(explain(model), local)
    assert server._call(None)["pictures"]


LASTING = {
    "slow": ({"sleep": 0.5}, "no answer within 0.15 s"),
    "dripping": ({"pieces": 1, "pause": 0.01}, "no answer within 0.15 s"),
    "dripping head": ({"head_pause": 0.01}, "no answer within 0.15 s"),
    "unavailable": ({"status": 503, "error": "no worker"}, "503 Service Unavailable: no worker (3 attempts)"),
    "cut": ({"reset": "body"}, "the response was incomplete"),
    "cut early": ({"reset": "before"}, "the connection was closed"),
    "wrong shape": ({"shape": [1, 3]}, "values do not fit its shape [1, 3]"),
    "too many rows": ({"twice": True}, "images; expected ("),
    "too few numbers": ({"flat": 1}, "values do not fit its shape"),
    "NaN": ({"nan": True}, "NaN or infinite"),
    "infinite": ({"infinite": True}, "NaN or infinite"),
    "null": ({"null": True}, "NaN or infinite"),
    "no JSON": ({"body": "<html>\noops"}, "not JSON: '<html> oops'"),
    "no object": ({"body": "[1]"}, "expected an object"),
    "no outputs": ({"body": '{"outputs": []}'}, "without outputs"),
    "another output": (
        {"body": '{"outputs": [{"name": "z", "datatype": "FP32", "shape": [1], "data": [1]}]}'}, "no output 'scores', only z"
    ),
    "redirect": ({"status": 308, "headers": {"Location": "http://other.example/x"}}, "redirects to http://other.example/x"),
    "refused": ({"status": 403, "error": "not you"}, "403 Forbidden: not you"),
    "gone": ({"status": 404, "error": "unloaded"}, "404 Not Found: unloaded"),
    "broken": ({"status": 500, "error": "CUDA\nerror"}, "500 Internal Server Error: CUDA error"),
    "huge": ({"huge": 70_000_000}, "more than 64 MiB"),
}  # fmt: skip


@pytest.mark.parametrize("moment", ["loading", "asking"])
@pytest.mark.parametrize("name", LASTING)
def test_faults_that_last_give_one_line(name, moment, server, capsys):
    fault, said = LASTING[name]
    Image.fromarray(picture()).save("photo.png")
    server.set(([None] if moment == "asking" else []) + [fault] * 40)
    words = ["timeout=0.15" if name in ("slow", "dripping", "dripping head") else "timeout=20", "retries=2"]
    status = main(["inspect", server.spec(), "photo.png", *(w for word in words for w in ("--endpoint", word))])
    out, err = capsys.readouterr()
    assert (status, out) == (2, "")
    assert err.startswith("becausal: error: ")
    assert err.count("\n") == 1
    assert said in err
    assert "Traceback" not in err
    assert len(err) < 400


@pytest.fixture(scope="module")
def secure(tmp_path_factory):
    """A server with a certificate that nobody has signed but itself, and the certificate."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl, which makes the certificate, is not installed")
    folder = tmp_path_factory.mktemp("tls")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=nobody", "-addext",
         "subjectAltName=IP:127.0.0.1", "-keyout", "key.pem", "-out", "cert.pem"],
        cwd=folder, check=True, capture_output=True,
    )  # fmt: skip
    server = Server("--tls", str(folder / "cert.pem"), str(folder / "key.pem"))
    yield server, folder / "cert.pem"
    server.stop()


def test_tls(secure, server):
    other, certificate = secure
    spec = other.spec().replace("http:", "https:")
    with pytest.raises(NetworkError, match=r"its certificate is not trusted \(self-signed certificate\)"):
        load_model(spec)
    view = picture()[None]
    assert np.array_equal(load_model(spec, endpoint={"ca": certificate}).classify(view), corner(view))
    with pytest.raises(NetworkError, match="certificate is not trusted"):  # made for 127.0.0.1, not for this name
        load_model(spec.replace("127.0.0.1", "localhost"), endpoint={"ca": certificate})
    with pytest.raises(NetworkError, match="no TLS connection"):
        load_model(server.spec().replace("http:", "https:"))
    Path("no.pem").write_text("hello")
    with pytest.raises(OptionError, match="no certificates"):
        load_model(spec, endpoint={"ca": "no.pem"})


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/v2/models/missing", "404 Not Found: model missing not found"),
        ("/v2/models/toy/versions/9", "404 Not Found"),
        ("/v2/models/loading", "is not ready: 400 Bad Request: still loading"),
        ("/page/v2/models/toy", "no metadata of the Open Inference Protocol"),
        ("/v2/models/nameless", "--endpoint shape=N,3,224,224"),
        ("/v2/models/named", "is numeric: scores are needed"),
        ("/v2/models/two", "2 inputs (x, y)"),
        ("/v2/models/flat", "x FP32 [N,768] has 2 axes; images need 4"),
        ("/v2/models/text", "x BYTES [N,16,16,3] has a type"),
        ("/nothing", "is not the address of a model"),
    ],
)
def test_what_is_no_classifier_says_so(path, said, server, capsys):
    assert main(["inspect", f"oip:http://127.0.0.1:{server.port}{path}"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert said in err


def test_nobody_there(capsys, monkeypatch):
    assert main(["inspect", f"oip:http://127.0.0.1:{free_port()}/v2/models/toy"]) == 2
    assert "no server is listening at 127.0.0.1:" in capsys.readouterr().err
    monkeypatch.setattr(socket, "getaddrinfo", no_such_host)
    assert main(["inspect", "oip:http://nowhere.invalid/v2/models/toy"]) == 2
    assert "there is no host nowhere.invalid" in capsys.readouterr().err


def no_such_host(*arguments, **options):
    raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")


def test_another_protocol_says_so(capsys):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        with ThreadPoolExecutor(1) as pool:
            done = pool.submit(greet, listener)
            assert main(["inspect", f"oip:http://127.0.0.1:{listener.getsockname()[1]}/v2/models/toy"]) == 2
            done.result()
    assert "the response is not HTTP" in capsys.readouterr().err


def greet(listener):
    connection, _ = listener.accept()
    with connection:
        connection.recv(2**16)
        connection.sendall(b"220 mail.example ready\r\n")


def test_a_version_that_changes_is_refused(server):
    server.set([None, None, {"version": "2"}])
    with pytest.raises(AnswerError, match=r"changed from 1 to 2: name one in the address, e\.g\. …/versions/2"):
        explain(load_model(server.spec(), batch_size=4))


def test_a_server_that_dies_and_comes_back(tmp_path, monkeypatch, capsys, local):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(http, "FIRST_PAUSE", 0.01)
    monkeypatch.chdir(tmp_path)
    Image.fromarray(picture()).save("photo.png")
    server = Server()
    server.set([None] * 60 + [{"exit": True}])
    words = ["explain", "photo.png", "--model", server.spec(), "--fill", "black", "--grain", "1", "--batch-size", "4"]
    assert main([*words, "--endpoint", "retries=2"]) == 2
    out, err = capsys.readouterr()
    assert "The model failed before the search finished." in out
    assert err.count("\n") == 1
    assert "failed: no server is listening at" in err
    assert Explanation.load("becausal-out/photo").stopped_by == "failure"
    server.stop()
    server = Server("--port", str(server.port))
    try:
        assert main([*words, "--endpoint", "price=0.01", "--json"]) == 0
        (entry,) = json.loads(capsys.readouterr().out)
        assert entry["calls"] == local.calls
        asked = len(server.seen()["pictures"])
        kept = entry["calls"] + PROBES - asked
        assert kept >= 4
        said = f"{asked * 0.01:.2f} spent so far at 0.01 per image: {asked} images evaluated by the server (6 of them probe "
        note, cached = entry["notes"][-1].rsplit(", ", 1)
        assert note == f"{said}images)"
        assert kept - LAST_CALLS < int(cached.split()[0]) <= kept  # equal mutants in one batch are sent once
        assert same(Explanation.load("becausal-out/photo"), local)
    finally:
        server.stop()


# What is kept


def test_a_run_that_was_killed_does_not_pay_twice(server, capsys, without_figures):
    """SIGKILL in the middle; the second run asks nothing again but the batch that was under way."""
    Image.fromarray(make_scene(112).image).save("scene.png")
    batch = 4
    command = ["explain", "scene.png", "--model", server.spec("scenes"), "--preprocess", "tf"]
    command += ["--grain", "8", "--batch-size", str(batch)]
    server.set(binary=True, extensions=["binary_tensor_data"], delay=0.03)
    with subprocess.Popen([sys.executable, "-m", "becausal", *command], stdout=subprocess.DEVNULL) as run:
        until = time.monotonic() + 60
        while len(server.seen()["pictures"]) < 40 and time.monotonic() < until:
            time.sleep(0.01)
        run.send_signal(signal.SIGKILL)
    assert run.returncode == -signal.SIGKILL
    while server.seen()["busy"]:
        time.sleep(0.01)
    before = server.seen()["pictures"]
    assert len(before) >= 40

    server.set(binary=True, extensions=["binary_tensor_data"])
    assert main([*command, "--json"]) == 0
    after = server.seen()["pictures"]
    (entry,) = json.loads(capsys.readouterr().out)
    alone = becausal.explain("scene.png", "bundled", grain=8)
    assert entry["calls"] == alone.calls
    assert entry["explanation"]["pixels"] == alone.pixels
    assert np.array_equal(Explanation.load("becausal-out/scene").visible, alone.visible)
    # The probes are asked by every run. Some questions are repeated by every run on purpose: the whole view is asked for
    # its label and again by the search, and the explanation with others once more at the end.
    assert before[:PROBES] == after[:PROBES]
    first, second = before[PROBES:], after[PROBES:]
    again = [question for question in second if question in set(first)]
    under_way = set(first[-batch:])
    whole = first[0]
    assert set(again) - under_way <= {whole, *second[-LAST_CALLS:]}
    assert len(again) <= batch + 2 + LAST_CALLS
    assert len(first) + len(second) <= alone.calls + batch + 2


def test_what_is_known_is_not_asked(server, local):
    assert same(explain(load_model(server.spec())), local)
    twice = local.calls + PROBES - len(server.seen()["pictures"])  # equal mutants in one batch: sent once
    assert 0 <= twice < LAST_CALLS
    server.set()
    again = explain(load_model(server.spec()))
    assert same(again, local)
    # The probes, and what the run itself asks twice to see whether the answer stands.
    repeated = len(server.seen()["pictures"]) - PROBES
    assert 2 + LAST_CALLS <= repeated <= 2 + 2 * LAST_CALLS
    cached = int(again.notes[-1].rsplit(", ", 1)[1].split()[0])
    assert local.calls - repeated - LAST_CALLS < cached <= local.calls - repeated
    server.set()
    assert same(explain(load_model(server.spec(), endpoint={"cache": None})), local)
    twice = local.calls + PROBES - len(server.seen()["pictures"])  # equal mutants in one batch: sent once
    assert 0 <= twice < LAST_CALLS


def test_what_is_kept_is_of_one_model(server, tmp_path):
    view = picture()[None]
    load_model(server.spec()).classify(view)

    def asked(model, **settings):
        server.set(**settings)
        scores = load_model(server.spec(model)).classify(view)
        return len(server.seen()["pictures"]) - PROBES, scores

    assert asked("toy")[0] == 0
    assert asked("toy/versions/2")[0] == 1
    assert asked("toy", versions=["1", "2"])[0] == 1  # another state of the server's metadata
    count, scores = asked("toy", mix=0.1)  # the model was changed, and nothing says so but its answers
    assert count == 1
    assert np.allclose(scores, 0.9 * corner(view) + 0.05)
    assert asked("toy")[0] == 0  # and back
    assert np.array_equal(asked("toy", mix=1e-5)[1], corner(view))  # a last digit that moves is no other model
    assert (tmp_path / "cache" / "becausal").stat().st_mode & 0o077 == 0 or os.name == "nt"


def test_answers_that_are_wrong_are_not_kept(server):
    view = picture()[None]
    server.set([None, {"nan": True}])
    with pytest.raises(AnswerError, match="NaN"):
        load_model(server.spec()).classify(view)
    server.set()
    assert np.array_equal(load_model(server.spec()).classify(view), corner(view))
    assert len(server.seen()["pictures"]) == PROBES + 1


def test_a_cache_that_cannot_be_used(server, tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / FILE).write_bytes(b"this is no database, whatever it is called" * 100)
    with pytest.raises(OutputError, match=r"answers\.sqlite3 cannot be used \(file is not a database\): delete it"):
        load_model(server.spec(), endpoint={"cache": folder})
    (tmp_path / "cache").write_text("a file where the folder should be")
    model = load_model(server.spec())
    assert any(note.startswith("answers are not cached: the cache") for note in model.info.notes)
    assert np.array_equal(model.classify(picture()[None]), corner(picture()[None]))
    with pytest.raises(OutputError):
        load_model(server.spec(), endpoint={"cache": tmp_path / "cache"})


def test_a_cache_that_breaks_halfway_loses_nothing(server, tmp_path, local):
    model = load_model(server.spec())
    with sqlite3.connect(tmp_path / "cache" / "becausal" / FILE) as base:
        base.execute("DROP TABLE answers")
    base.close()
    found = explain(model)
    assert same(found, local)
    assert sum(note.startswith("answers are no longer cached: ") for note in found.notes) == 1


def items(start, count, size=1000):
    return [(number.to_bytes(32, "big"), bytes([number % 251]) * size) for number in range(start, start + count)]


def test_the_cache_has_a_size(tmp_path):
    cache = AnswerCache(tmp_path, max_bytes=2**20)
    for start in range(0, 5000, 50):
        cache.put(items(start, 50))
    newest = items(4900, 100)
    assert cache.get([key for key, _ in newest]) == dict(newest)
    assert not cache.get([key for key, _ in items(0, 2000)])
    cache.close()
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 2 * 2**20


WRITER = """
import sys
sys.path.insert(0, sys.argv[3])
from pathlib import Path
from test_classifiers_oip import AnswerCache, items
import numpy as np
cache = AnswerCache(Path(sys.argv[1]), max_bytes=2**30)
print(cache.find_epoch(b"model", np.ones((2, 3), np.float32)).hex())
for start in range(int(sys.argv[2]), int(sys.argv[2]) + 400, 4):
    cache.put(items(start, 4, 64))
    assert len(cache.get([key for key, _ in items(start, 4)])) == 4
"""


def test_processes_share_a_cache(tmp_path):
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path / "new"), str(start), str(Path(__file__).parent)],
            stdout=subprocess.PIPE, text=True,
        )
        for start in (0, 200, 400)
    ]  # fmt: skip
    salts = {run.communicate(timeout=60)[0] for run in runs}
    assert [run.returncode for run in runs] == [0, 0, 0]
    assert len(salts) == 1
    cache = AnswerCache(tmp_path / "new", max_bytes=2**30)
    wanted = items(0, 800, 64)
    assert cache.get([key for key, _ in wanted]) == dict(wanted)
    cache.close()


# The command line, secrets, money


def files_of(folder):
    return {path.name: path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}


def test_no_secret_is_shown_or_kept(server, monkeypatch, capsys):
    Image.fromarray(picture()).save("photo.png")
    monkeypatch.setenv("MY_TOKEN", "s3cret-token")
    server.set(token="Bearer s3cret-token")
    place = server.spec().removeprefix("oip:http://")
    common = ["--fill", "black", "--grain", "1", "--json"]
    assert main(["explain", "photo.png", "-m", f"oip:http://me:s3cret-pass@{place}", *common]) == 2  # not these
    assert "refuses the given credentials (401 Unauthorized: who are you?)" in capsys.readouterr().err
    assert main(["inspect", server.spec()]) == 2
    assert "refuses a request without credentials" in capsys.readouterr().err
    words = ["--endpoint", "token_env=MY_TOKEN", "--endpoint", "header=X-Key: s3cret-key", "--endpoint", "price=0.5"]
    assert main(["explain", "photo.png", "-m", f"oip:http://me:s3cret-pass@{place}", *common, *words]) == 0
    out, err = capsys.readouterr()
    assert server.seen()["headers"]["x-key"] == "s3cret-key"
    record = json.loads(Path("becausal-out/photo/explanation.json").read_text())
    assert record["origin"]["model"] == server.spec()
    assert record["origin"]["loading"] == {"endpoint": ["token_env=MY_TOKEN", "price=0.5"]}
    kept = {**files_of("becausal-out"), **files_of("cache"), "out": out.encode(), "err": err.encode()}
    assert {"explanation.json", "report.html", FILE} <= set(kept)
    for name, content in kept.items():
        assert b"s3cret" not in content, name
    assert b"--endpoint token_env=MY_TOKEN --endpoint price=0.5" in kept["report.html"]
    # and what is kept is enough to ask again, past the cache, with the user's word for the server and the token
    server.set(token="Bearer s3cret-token")
    assert main(["verify", "becausal-out/photo"]) == 2
    assert main(["verify", "becausal-out/photo", "--trust"]) == 2
    assert "refuses a request without credentials" in capsys.readouterr().err
    verify = ["verify", "becausal-out/photo", "--model", server.spec(), "--endpoint", "token_env=MY_TOKEN"]
    assert main(verify) == 0
    assert len(server.seen()["pictures"]) > PROBES + 2
    server.set([{"status": 500, "error": "failed with Bearer s3cret-token"}] * 9, token="Bearer s3cret-token")
    capsys.readouterr()
    assert main(verify) == 2
    assert "500 Internal Server Error: failed with Bearer ***" in capsys.readouterr().err
    server.set([{"body": "Bearer s3cret-token"}] * 9, token="Bearer s3cret-token")
    assert main(verify) == 2
    assert "not JSON: 'Bearer ***'" in capsys.readouterr().err
    server.set(token="Bearer other")
    assert main(verify) == 2
    monkeypatch.setenv("MY_TOKEN", "other")
    assert main([*verify, "--endpoint", "timeout=20"]) == 0


def test_money_is_said(server, capsys, local):
    Image.fromarray(picture()).save("photo.png")
    words = ["explain", "photo.png", "-m", server.spec(), "--fill", "black", "--grain", "1", "--max-calls", "1000"]
    assert main([*words, "--endpoint", "price=0.02"]) == 0
    out = capsys.readouterr().out
    assert f"{local.calls} calls, priced at {local.calls * 0.02:.2f} (budget 20.00), " in out
    sent = len(server.seen()["pictures"])
    assert local.calls < sent + LAST_CALLS <= local.calls + PROBES + LAST_CALLS
    assert f"{sent * 0.02:.2f} spent so far at 0.02 per image" in out
    assert main(words) == 0
    assert "priced" not in capsys.readouterr().out


def test_plain_http_with_credentials_is_noted(server, monkeypatch):
    model = load_model(server.spec(), endpoint={"header": "X-Key: a"})
    assert not any("plain http" in note for note in model.info.notes)
    real = socket.create_connection
    place = ("127.0.0.1", server.port)
    monkeypatch.setattr(socket, "create_connection", lambda address, *rest, **more: real(place, *rest, **more))
    spec = server.spec().replace("127.0.0.1", "models.example")
    assert any("plain http" in note for note in load_model(spec, endpoint={"header": "X-Key: a"}).info.notes)
    assert not any("plain http" in note for note in load_model(spec).info.notes)


def test_the_documentation_is_true(server, capsys, monkeypatch, without_figures):
    """Every `becausal` line of docs/endpoints.md, with our server in the place of the one it speaks of."""
    text = (ROOT / "docs" / "endpoints.md").read_text(encoding="utf-8")
    Image.fromarray(make_scene(107, size=512).image).save("photo.jpg", quality=95)
    shutil.copy(BUNDLED / "labels.txt", "names.txt")
    monkeypatch.setenv("API_TOKEN", "t")
    blocks = re.findall(r"^```bash\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    commands = [shlex.split(line)[1:] for line in lines if line.startswith("becausal ")]
    assert len(commands) == 4
    server.set(binary=True, extensions=["binary_tensor_data"])
    here = f"oip:http://127.0.0.1:{server.port}/"
    for command in commands:
        assert main([word.replace("oip:http://localhost:8000/", here) for word in command]) == 0, command
        assert "http://localhost" in " ".join(command) or command[0] in ("verify", "models")
    for block in re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        exec(compile(block.replace("oip:http://localhost:8000/", here), "endpoints.md", "exec"), {"__name__": "__docs__"})
    keys = set(re.findall(r"^\| `(\w+)=", text, re.MULTILINE))
    assert keys == set(EndpointOptions.__dataclass_fields__)


# A server that others have written


@pytest.fixture(scope="module")
def mlserver(tmp_path_factory):
    """MLServer with the bundled classifier, as docs/endpoints.md sets it up; its port."""
    python = os.environ.get("BECAUSAL_MLSERVER")
    if not python:
        pytest.skip("BECAUSAL_MLSERVER names no Python that has mlserver and onnxruntime")
    folder = tmp_path_factory.mktemp("mlserver")
    port, others = free_port(), [free_port(), free_port()]
    text = (ROOT / "docs" / "endpoints.md").read_text(encoding="utf-8")
    for name, content in re.findall(r"^<!-- file ([\w.-]+) -->\n```\w+\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        (folder / name).write_text(content)
    settings = {"http_port": port, "grpc_port": others[0], "metrics_port": others[1], "host": "127.0.0.1"}
    (folder / "settings.json").write_text(json.dumps(json.loads((folder / "settings.json").read_text()) | settings))
    shutil.copy(BUNDLED / "scenes.onnx", folder / "net.onnx")
    with (folder / "log.txt").open("w") as log:
        run = subprocess.Popen(
            [python, "-c", "from mlserver.cli import main; main()", "start", "."], cwd=folder, stdout=log, stderr=log
        )
    until = time.monotonic() + 90
    while not is_ready(port):
        if run.poll() is not None or time.monotonic() > until:
            run.kill()
            pytest.fail((folder / "log.txt").read_text()[-2000:])
        time.sleep(0.2)
    yield port
    run.terminate()
    run.wait(30)


def is_ready(port):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/models/scenes/ready", timeout=5) as reply:
            return reply.status == 200
    except OSError:
        return False


def test_mlserver(mlserver, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    spec = f"oip:http://127.0.0.1:{mlserver}/v2/models/scenes"
    scene = make_scene(112).image
    there = becausal.explain(scene, load_model(spec, preprocess="tf", labels=BUNDLED / "labels.txt"), grain=8)
    here = becausal.explain(scene, "bundled", grain=8)
    assert there.label == here.label
    assert np.array_equal(there.visible, here.visible)
    assert there.calls == here.calls
    assert there.checks == replace(here.checks, confidence=there.checks.confidence)
    assert np.isclose(there.checks.confidence, here.checks.confidence, atol=1e-6)
    with pytest.raises(ModelError, match=r"there is no model at .*missing: 404 Not Found"):
        load_model(spec.replace("scenes", "missing"))
    with pytest.raises(AnswerError, match="refused images of shape 1x3x64x64"):
        load_model(spec, endpoint={"shape": "N,3,64,64"})

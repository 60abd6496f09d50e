"""Small faults of clients: they get an answer of one line, and never a traceback."""

import json
import zlib

import pytest
from libraries import need
from serving import Gate, bright_image, load_benchmark, serving

from becausal.core.errors import ImageError
from becausal.interfaces.serve.guard import RequestRejected, check_origin, forwarded_client, strip_port
from becausal.interfaces.serve.images import Upload, decode_image
from becausal.interfaces.serve.limits import Limits

need("starlette", "uvicorn", "python_multipart", "prometheus_client")

load = load_benchmark("api_load")


@pytest.mark.parametrize("origin", [b"http://[", b"http://[::1", b"http://other.example", b"null"])
def test_a_strange_origin_is_another_site(origin):
    with pytest.raises(RequestRejected, match="other sites"):
        check_origin({"headers": [(b"origin", origin), (b"host", b"localhost:7860")]})


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("localhost", "localhost"),
        ("Localhost:80", "localhost"),
        ("[::1]", "::1"),
        ("[::1]:7860", "::1"),
        ("[::1]evil", ""),
        ("[::1].evil.example", ""),
        ("[::1]:80.evil", ""),
        ("localhost:80evil", ""),
        ("[", ""),
        ("", ""),
    ],
)
def test_the_name_in_a_host_header(host, name):
    assert strip_port(host) == name


def test_faults_over_http():
    with serving({"gate": Gate().classifier}) as served:
        client = load.ApiClient(served.port)
        body = json.dumps({"image": ""}).encode()
        kind = {"Content-Type": "application/json"}
        assert client.request("POST", "/v1/explain", body, kind | {"Origin": "http://["})[0] == 403
        assert client.request("GET", "/healthz", headers={"Host": "[::1]evil"})[0] == 421


def bomb():
    """The header of a PNG file with 30,000 x 30,000 pixels."""

    def chunk(kind, data):
        return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")

    side = (30_000).to_bytes(4, "big")
    rows = zlib.compress(bytes(1000))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", side + side + b"\x08\x02\x00\x00\x00") + chunk(b"IDAT", rows)


def test_a_decompression_bomb_is_called_what_it_is():
    with pytest.raises(ImageError) as refused:
        decode_image(Upload("bomb.png", bomb()), Limits())
    assert str(refused.value) == "bomb.png has far too many pixels (a decompression bomb); the limit is 40 million"


@pytest.mark.parametrize(
    ("lines", "client"),
    [
        ([], None),
        ([b"10.0.0.7"], ("10.0.0.7", 0)),
        ([b"1.2.3.4, 10.0.0.7"], ("10.0.0.7", 0)),
        ([b"1.2.3.4", b"10.0.0.8"], ("10.0.0.8", 0)),
        ([b"1.2.3.4, nonsense"], None),
    ],
)
def test_the_last_address_that_a_proxy_names_is_the_client(lines, client):
    assert forwarded_client({"headers": [(b"x-forwarded-for", line) for line in lines]}) == client


@pytest.mark.parametrize("behind_proxy", [False, True])
def test_the_header_of_a_proxy_is_read_only_where_the_operator_says_so(behind_proxy, monkeypatch):
    seen = []

    async def check(self, upload, client):
        seen.append(client)

    monkeypatch.setattr("becausal.interfaces.serve.images.UploadChecks.check", check)
    with serving({"gate": Gate().classifier}, Limits(behind_proxy=behind_proxy)) as served:
        client = load.ApiClient(served.port)
        from base64 import b64encode

        body = json.dumps({"image": b64encode(bright_image()).decode(), "request": {"max_calls": 30}}).encode()
        headers = {"Content-Type": "application/json", "X-Forwarded-For": "6.6.6.6, 10.0.0.7"}
        assert client.request("POST", "/v1/explain", body, headers)[0] == 200
    assert seen == ["10.0.0.7" if behind_proxy else "127.0.0.1"]

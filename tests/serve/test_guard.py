"""The guard in front of the server, asked directly: host names, sites, sizes, and the token of the API and of the page."""

import asyncio
import os
import secrets
import socket
from types import SimpleNamespace

import pytest

from becausal.core.errors import OptionError
from becausal.interfaces.cli.app import main
from becausal.interfaces.cli.serve import find_token, join_address
from becausal.interfaces.serve.guard import Access, Guard, strip_port
from becausal.interfaces.serve.limits import Limits

TOKEN = "a-token-for-tests-1234"


def ask_guard(path="/", *, method="GET", headers=(), query=b"", body=b"", kind="http", limits=None, **options):
    """The answer of a guard to a request under localhost:7860: status (299 from the app), headers, text, kinds of messages.

    received: the bodies that have reached the app. headers: pairs; they replace those a request has anyway.
    """
    received, sent = [], []

    async def app(scope, receive, send):
        received.append((await receive())["body"] if method == "POST" else b"")
        await send({"type": "http.response.start", "status": 299, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def receive():
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message):
        sent.append(message)

    given = {b"host": b"localhost:7860", b"content-length": str(len(body)).encode()} | dict(headers)
    scope = {"type": kind, "path": path, "method": method, "query_string": query, "server": ("0.0.0.0", 7860)}
    guard = Guard(app, limits=limits or Limits(), **{"hosts": frozenset({"localhost"}), **options})
    asyncio.run(guard(scope | {"headers": list(given.items())}, receive, send))
    found = SimpleNamespace(received=received, kinds=[message["type"] for message in sent])
    if kind == "http":
        found.status, found.headers, found.text = sent[0]["status"], dict(sent[0]["headers"]), sent[1]["body"].decode()
    return found


# ---------------------------------------------------------------- hosts, sites and sizes


POSTED = ["/page/labels", "/page/explain", "/page/compare", "/v1/explain"]


@pytest.mark.parametrize("path", POSTED)
def test_what_takes_a_body_takes_it_from_its_own_site(path):
    for origin, status in ((b"http://evil.example", 403), (b"null", 403), (b"http://localhost:7860", 299)):
        assert ask_guard(path, method="POST", body=b"{}", headers={b"origin": origin}).status == status
    assert ask_guard(path, method="POST", body=b"{}", headers={b"host": b"evil.example"}).status == 421


@pytest.mark.parametrize("path", ["/", "/static/page.js", "/page/jobs/x/events", "/v1/jobs/x", "/v1/models", "/docs", "/x"])
def test_no_other_door_takes_anything(path):
    got = ask_guard(path, method="POST", body=b"{}")
    assert (got.status, got.received) == (404, [])
    assert b"content-security-policy" in got.headers
    for method in ("PUT", "PATCH", "OPTIONS", "HEAD"):
        assert ask_guard(path, method=method).status == 405
    assert ask_guard(path, method="DELETE", headers={b"origin": b"http://evil.example"}).status == 403


def test_another_name_is_refused():
    assert ask_guard("/", headers={b"host": b"evil.example"}).status == 421
    assert ask_guard("/", headers={b"host": b"evil.example"}, hosts=None).status == 299


@pytest.mark.parametrize(("host", "name"), [("localhost:1", "localhost"), ("[::1]:80", "::1"), ("A.b", "a.b"), ("", "")])
def test_the_name_of_a_host(host, name):
    assert strip_port(host) == name


@pytest.mark.parametrize("declared", [True, False])
def test_what_is_too_large_is_refused(declared):
    small = Limits(upload_bytes=900, body_bytes=100)  # an image in base64 and a request
    headers = {} if declared else {b"content-length": b"0"}
    for path in POSTED:
        got = ask_guard(path, method="POST", body=bytes(1301), headers=headers, limits=small)
        assert (got.status, got.received) == (413, [])
    assert ask_guard("/page/labels", method="POST", body=bytes(1300), limits=small).status == 299


def test_a_websocket_is_closed():
    assert ask_guard(kind="websocket").kinds == ["websocket.close"]
    headers = [(b"authorization", f"Bearer {TOKEN}".encode())]
    assert ask_guard(kind="websocket", headers=headers, token=TOKEN).kinds == ["websocket.close"]


# ---------------------------------------------------------------- the token of the API


OFFERED = [
    ("POST", "/v1/explain"),
    ("GET", "/v1/models"),
    ("GET", "/v1/jobs/" + "a" * 32),
    ("DELETE", "/v1/jobs/" + "a" * 32),
    ("GET", "/metrics"),
    ("GET", "/nowhere"),
]


@pytest.mark.parametrize(("method", "path"), OFFERED)
def test_without_the_token_the_api_is_401(method, path):
    for value in (
        "",
        "Bearer",
        "Bearer ",
        f"Bearer {TOKEN[:-1]}",
        f"Basic {TOKEN}",
        TOKEN,
        f"Bearer x{TOKEN}",
        "Bearer \xff",
    ):
        got = ask_guard(path, method=method, token=TOKEN, headers=[(b"authorization", value.encode("latin-1"))])
        assert (got.status, got.headers[b"www-authenticate"]) == (401, b"Bearer")
    cookie = [(b"cookie", f"becausal-7860={TOKEN}".encode())]  # that of the page is none of the API
    assert ask_guard(path, method=method, token=TOKEN, headers=cookie).status == 401
    for scheme in ("Bearer", "bearer"):
        headers = [(b"authorization", f"{scheme} {TOKEN}".encode())]
        assert ask_guard(path, method=method, token=TOKEN, headers=headers).status == 299
    assert ask_guard(path, method=method).status == 299


@pytest.mark.parametrize("path", ["/healthz", "/docs", "/openapi.json"])
def test_health_and_description_need_no_token(path):
    assert ask_guard(path, token=TOKEN).status == 299
    assert ask_guard(path, token=TOKEN, method="POST").status == 404


def test_another_host_name_or_site_is_refused():
    assert ask_guard("/healthz", hosts=frozenset({"example.org"})).status == 421
    for method, path in OFFERED:
        headers = [(b"origin", b"http://evil.example")]
        assert ask_guard(path, method=method, headers=headers).status == (299 if method == "GET" else 403)
        assert ask_guard(path, method=method, headers=[(b"origin", b"http://localhost:7860")]).status == 299


# ---------------------------------------------------------------- the token of the page


OUTSIDE = {"token": TOKEN, "hosts": None, "has_page": True}  # a page for other machines


BEARER = (b"authorization", f"Bearer {TOKEN}".encode())
COOKIE = (b"cookie", f"other=1; becausal-7860={TOKEN}".encode())


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/"),
        ("HEAD", "/"),
        ("GET", "/static/page.css"),
        ("GET", "/page/jobs/aaaaaaaa/events"),
        ("GET", "/page/jobs/aaaaaaaa/download"),
        ("DELETE", "/page/jobs/aaaaaaaa"),
        ("POST", "/page/labels"),
        ("POST", "/page/explain"),
        ("GET", "/nowhere"),
    ],
)
def test_without_the_token_the_page_is_401(method, path):
    wrong = (b"cookie", b"becausal-7860=" + b"x" * len(TOKEN))
    other_port = (b"cookie", f"becausal-8000={TOKEN}".encode())
    broken = (b"cookie", b'becausal-7860="\xff')
    for headers in ((), (wrong,), (other_port,), (broken,)):
        got = ask_guard(path, method=method, headers=headers, **OUTSIDE)
        assert got.status == 401
        assert TOKEN not in got.text
    query = b"token=" + TOKEN.encode()
    if (method, path) != ("GET", "/"):
        assert (
            ask_guard(path, method=method, query=query, **OUTSIDE).status == 401
        )  # only the page itself takes it from the address
    for given in (COOKIE, BEARER):
        assert ask_guard(path, method=method, headers=(given,), **OUTSIDE).status == (405 if method == "HEAD" else 299)


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "/v1/explain"), ("GET", "/v1/models"), ("DELETE", "/v1/jobs/aaaaaaaa"), ("GET", "/metrics")],
)
def test_the_cookie_of_the_page_is_none_of_the_api(method, path):
    got = ask_guard(path, method=method, headers=(COOKIE,), **OUTSIDE)
    assert (got.status, got.headers[b"www-authenticate"]) == (401, b"Bearer")
    assert ask_guard(path, method=method, headers=(BEARER,), **OUTSIDE).status == 299


def test_the_token_moves_from_the_address_into_a_cookie():
    got = ask_guard(query=b"token=" + TOKEN.encode(), **OUTSIDE)
    assert got.status == 200
    assert got.headers[b"set-cookie"].decode() == f"becausal-7860={TOKEN}; Path=/; HttpOnly; SameSite=Strict"
    assert got.headers[b"cache-control"] == b"no-store"
    assert got.headers[b"referrer-policy"] == b"no-referrer"
    assert TOKEN not in got.text
    assert 'http-equiv="refresh"' in got.text
    for query in (b"", b"token=", b"token=wrong", b"token=" + TOKEN[:-1].encode(), b"token=%ff", b"x=" + TOKEN.encode()):
        got = ask_guard(query=query, **OUTSIDE)
        assert got.status == 401
        assert b"set-cookie" not in got.headers
        assert 'name="token"' in got.text


def test_tokens_are_compared_in_constant_time(monkeypatch):
    compared = []
    compare = secrets.compare_digest
    monkeypatch.setattr(secrets, "compare_digest", lambda a, b: compared.append((a, b)) or compare(a, b))
    access = Access(TOKEN)
    scope = {"path": "/", "method": "GET", "query_string": b"token=wrong", "headers": [COOKIE], "server": ("", 7860)}
    assert access.is_signed_in(scope)
    assert access.sign_in(scope) is None
    assert compared == [(TOKEN.encode(), TOKEN.encode()), (b"wrong", TOKEN.encode())]


def test_a_token_is_long_and_plain():
    assert find_token({"X": TOKEN}, "X", None) == (TOKEN, "X")
    for value in ("", "short", "with a blank in it......", "with;a;semicolon;........", "ä" * 20, "line\nline............"):
        with pytest.raises(OptionError, match="X must hold a token of at least 16"):
            find_token({"X": value}, "X", None)


def test_the_address_that_is_printed():
    assert join_address("127.0.0.1", 1) == "http://127.0.0.1:1"
    assert join_address("::1", 1) == "http://[::1]:1"
    assert join_address("0.0.0.0", 1) == f"http://{socket.gethostname()}:1"


def test_a_token_variable_that_is_not_set_is_an_error(capsys, monkeypatch):
    monkeypatch.delenv("BECAUSAL_TEST_TOKEN", raising=False)
    assert main(["serve", "--port", "0", "--token-env", "BECAUSAL_TEST_TOKEN"]) == 2
    assert "the variable BECAUSAL_TEST_TOKEN must hold a token" in capsys.readouterr().err


# ---------------------------------------------------------------- where a token comes from


def test_other_machines_need_a_token(capsys, monkeypatch):
    monkeypatch.delenv("BECAUSAL_TOKEN", raising=False)
    assert main(["serve", "--api", "--port", "0", "--host", "0.0.0.0"]) == 2
    assert capsys.readouterr().err == (
        "becausal: error: other machines can reach the API on 0.0.0.0, so it needs a token: set BECAUSAL_TOKEN, or use "
        "--token-env or --token-file\n"
    )


def test_where_a_token_comes_from(tmp_path):
    file = tmp_path / "token"
    file.write_text(f"  {TOKEN}\n")
    assert find_token({}, None, None) is None
    assert find_token({"BECAUSAL_TOKEN": ""}, None, None) is None
    assert find_token({"BECAUSAL_TOKEN": TOKEN}, None, None)[0] == TOKEN
    assert find_token({"BECAUSAL_TOKEN": "x", "OTHER": TOKEN}, "OTHER", None)[0] == TOKEN
    assert find_token({"BECAUSAL_TOKEN": "x"}, None, file)[0] == TOKEN
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    (tmp_path / "short").write_text("short")
    (tmp_path / "binary").write_bytes(bytes(range(256)))
    for variable, path, said in (
        ("OTHER", file, "both name a token"),
        ("OTHER", None, "--token-env: the variable OTHER must hold a token"),
        (None, tmp_path / "none", "none cannot be read: No such file"),
        (None, tmp_path, "is a folder, not a regular file"),
        (None, pipe, "is a named pipe, not a regular file"),
        (None, tmp_path / "short", "short must hold a token of at least 16"),
        (None, tmp_path / "binary", "binary must hold a token"),
    ):
        with pytest.raises(OptionError, match=said):
            find_token({}, variable, path)
    with pytest.raises(OptionError, match="the variable BECAUSAL_TOKEN must hold a token of at least 16"):
        find_token({"BECAUSAL_TOKEN": "short"}, None, None)


def test_bearers_are_compared_in_constant_time(monkeypatch):
    compared = []
    compare = secrets.compare_digest
    monkeypatch.setattr(secrets, "compare_digest", lambda a, b: compared.append((a, b)) or compare(a, b))
    assert not Access(TOKEN).has_bearer({"headers": [(b"authorization", b"Bearer wrong")]})
    assert Access(TOKEN).has_bearer({"headers": [(b"authorization", f"Bearer {TOKEN}".encode())]})
    assert compared == [(b"wrong", TOKEN.encode()), (TOKEN.encode(), TOKEN.encode())]

"""The download of published datasets: from a server that fails now and then, and without a server."""

import threading
from functools import partial
from hashlib import sha256
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from becausal.core.errors import NetworkError, OutputError
from becausal.interfaces.cli.app import main
from becausal.lab import datasets
from becausal.lab.datasets import PublishedDataset, fetch_dataset, tree_hash


class Handler(SimpleHTTPRequestHandler):
    """Serves a folder, understands ranges, and fails where a file lies in `failures`: path -> how many times."""

    failures: dict[str, int] = {}  # noqa: RUF012
    asked: list[tuple[str, str | None]] = []  # noqa: RUF012

    def log_message(self, *_: object) -> None:
        """Nothing on stderr."""

    def do_GET(self) -> None:
        self.asked.append((self.path, self.headers.get("Range")))
        if self.failures.get(self.path, 0) > 0:
            self.failures[self.path] -= 1
            self.send_error(503)
            return
        begin = self.headers.get("Range")
        if begin is None:
            super().do_GET()
            return
        data = Path(self.translate_path(self.path)).read_bytes()[int(begin.removeprefix("bytes=").rstrip("-")) :]
        self.send_response(206)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A server with a small published set; gives its address and the set's folder."""
    monkeypatch.setenv("no_proxy", "*")
    folder = tmp_path / "served" / "photobombing"
    (folder / "imgs").mkdir(parents=True)
    lines = []
    for number in range(5):
        (folder / "imgs" / f"{number}.JPEG").write_bytes(bytes([number]) * (1000 + number))
        lines.append(f"{number}.JPEG 1(1) 2(2) 3(3) 4(4) 5 name, box\n")
    (folder / "list.txt").write_text("".join(lines))
    paths = ["list.txt", *(f"imgs/{n}.JPEG" for n in range(5))]
    monkeypatch.setitem(datasets.SETS, "photobombing", PublishedDataset("list.txt", "imgs", 6, tree_hash(folder, paths)))
    Handler.failures, Handler.asked = {}, []
    httpd = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(tmp_path / "served")))
    thread = threading.Thread(target=httpd.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{httpd.server_address[1]}", folder
    httpd.shutdown()
    httpd.server_close()
    thread.join()


def test_a_set_is_fetched_and_checked(server, tmp_path, monkeypatch, capsys):
    address, folder = server
    monkeypatch.chdir(tmp_path)
    assert main(["data", "get", "photobombing", "--from", address]) == 0
    assert "6 files, checked, in data/photobombing/" in capsys.readouterr().out
    for path in folder.rglob("*.*"):
        assert (Path("data/photobombing") / path.relative_to(folder)).read_bytes() == path.read_bytes()
    count = len(Handler.asked)
    assert main(["data", "get", "photobombing", "--from", address]) == 0
    assert len(Handler.asked) == count  # nothing is fetched twice


def test_a_broken_download_is_gone_on_with(server, tmp_path):
    address, folder = server
    Handler.failures["/photobombing/imgs/2.JPEG"] = 2
    out = tmp_path / "out"
    (out / "imgs").mkdir(parents=True)
    (out / "imgs" / ".3.JPEG.part").write_bytes((folder / "imgs" / "3.JPEG").read_bytes()[:400])
    seen = []
    fetch_dataset("photobombing", out, address=address, watch=lambda done, total: seen.append((done, total)))
    assert ("/photobombing/imgs/3.JPEG", "bytes=400-") in Handler.asked
    assert (out / "imgs" / "3.JPEG").read_bytes() == (folder / "imgs" / "3.JPEG").read_bytes()
    assert seen[-1] == (5, 5)
    assert not list(out.rglob(".*.part"))


@pytest.mark.parametrize("name", ["imgs", "imgs/.3.JPEG.part"])
def test_nothing_is_fetched_through_a_link(server, tmp_path, name):
    address, _ = server
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "out" / name).parent.mkdir(parents=True)
    (tmp_path / "out" / name).symlink_to(tmp_path / "elsewhere" / ("" if name == "imgs" else "file"))
    with pytest.raises(OutputError, match="is a link"):
        fetch_dataset("photobombing", tmp_path / "out", address=address)
    assert not list((tmp_path / "elsewhere").iterdir())


def test_what_is_not_the_published_set_is_refused(server, tmp_path):
    address, folder = server
    (folder / "imgs" / "1.JPEG").write_bytes(b"something else")
    with pytest.raises(OutputError, match="not those that were published"):
        fetch_dataset("photobombing", tmp_path / "out", address=address)


def test_a_list_that_names_a_way_out_is_refused(server, tmp_path):
    address, folder = server
    (folder / "list.txt").write_text("../../evil 1(1)\n")
    with pytest.raises(OutputError, match="not a file name"):
        fetch_dataset("photobombing", tmp_path / "out", address=address)


def test_a_file_that_is_not_there_says_what_to_do(server, tmp_path):
    address, folder = server
    (folder / "imgs" / "1.JPEG").unlink()
    with pytest.raises(NetworkError, match="404"):
        fetch_dataset("photobombing", tmp_path / "out", address=address)


def test_without_a_network_the_error_says_what_to_do_instead(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.chdir(tmp_path)
    assert main(["data", "get", "roaming-panda", "--from", "http://127.0.0.1:9"]) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    for hint in ("github.com/theyoucheng/deepcover", "becausal bench scenes"):
        assert hint in told
    assert not Path("data/roaming-panda").exists()


def test_the_hash_of_a_tree_is_that_of_its_lines(tmp_path):
    (tmp_path / "b").write_bytes(b"two")
    (tmp_path / "a").write_bytes(b"one")
    text = f"{sha256(b'one').hexdigest()}  a\n{sha256(b'two').hexdigest()}  b\n"
    assert tree_hash(tmp_path, ["b", "a"]) == sha256(text.encode()).hexdigest()

"""What the server keeps and accepts: memory in bytes, hostile files, slow and idle clients, the token."""

import asyncio
import io
import socket
import struct
import threading
import time
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from libraries import need
from PIL import Image
from serving import load_benchmark, serving

import becausal
from becausal.core.errors import ImageError
from becausal.interfaces.serve.images import MAX_CLIENT_CHECKS, Upload, UploadChecks, check_upload, decode_image
from becausal.interfaces.serve.job_queue import JobQueue
from becausal.interfaces.serve.limits import Connections, IncomingUploads, Limits, TooMany, group_address
from becausal.interfaces.serve.tasks import pack_result, predict_ranking, unpack_result
from becausal.models import as_classifier
from becausal.scenes import make_scene

need("starlette", "uvicorn", "python_multipart", "prometheus_client")

load = load_benchmark("serve_load")
LIMITS = Limits()
TOKEN = "a-token-for-tests-1234"


def encode(pixels, file_format="PNG", **options):
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, file_format, **options)
    return buffer.getvalue()


def noise(height, width, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


# ---------------------------------------------------------------- memory


SIDE = 192


@pytest.fixture(scope="module")
def bright():
    """A model of any size: bright or dark in the middle."""

    def predict(batch):
        middle = batch[:, SIDE // 3 : SIDE // 2, SIDE // 3 : SIDE // 2].astype(float).mean((1, 2, 3)) / 255
        share = 1 / (1 + np.exp(-30 * (middle - 0.6)))
        return np.stack([1 - share, share], 1)

    return as_classifier(predict, labels=["dark", "bright"], returns="probabilities")


@pytest.fixture(scope="module")
def photograph():
    return Upload("photo.png", encode(np.maximum(noise(SIDE, SIDE), 150)))


@pytest.fixture(scope="module")
def found(bright, photograph):
    return becausal.explain(decode_image(photograph, LIMITS).pixels, bright, grain=16, max_calls=300)


def test_a_stored_result_is_compact_and_comes_back_bit_for_bit(found, bright):
    ranking = predict_ranking(found, bright)
    stored = pack_result(found, ranking)
    arrays = (found.visible, found.responsibility, found.view, *found.backgrounds, ranking.entry)
    assert len(stored.data) < 0.5 * sum(array.nbytes for array in arrays)
    again, steps = unpack_result(stored)
    for name in ("visible", "responsibility", "view"):
        np.testing.assert_array_equal(getattr(again, name), getattr(found, name))
    np.testing.assert_array_equal(steps.entry, ranking.entry)
    assert (again.record(), steps.predictions) == (found.record(), ranking.predictions)


def test_a_job_that_is_stopped_in_the_queue_frees_its_place_and_its_image():
    import gc
    import weakref

    class Task:
        def __call__(self, progress):
            return 1

    queue = JobQueue(Limits(workers=1, waiting=2))
    try:
        gate = SimpleNamespace(is_open=False)

        def block(progress):
            while not gate.is_open:
                time.sleep(0.01)

        queue.submit(block)
        task = Task()
        reference, job = weakref.ref(task), queue.submit(task)
        del task
        job.stop()
        gc.collect()
        assert (job.state, job.ended.is_set(), reference()) == ("failed", True, None)
        assert [queue.submit(Task()).ahead for _ in range(2)] == [0, 1]
    finally:
        gate.is_open = True
        queue.close()


@pytest.mark.parametrize("count", [8, pytest.param(40, marks=pytest.mark.slow)])
def test_pages_come_and_go_and_the_bytes_stay_within_the_limit(bright, photograph, count, monkeypatch):
    from becausal.interfaces.serve import images

    monkeypatch.setattr(images, "check_upload", decode_image)
    limits = Limits(held_bytes=400_000)
    with serving({"bright": bright}, limits) as served:
        for _ in range(count):
            client = load.Client(served.port, model="bright")
            client.image = (photograph.name, photograph.data)
            _, link = client.explain(calls="60")
            lines = client.request("GET", "/metrics")[2].decode().splitlines()
            values = dict(line.split(" ") for line in lines if line.startswith("becausal_kept"))
            assert float(values["becausal_kept_bytes"]) <= limits.held_bytes + 400_000  # the last one, until it is looked at
        assert 2 <= float(values["becausal_kept_jobs"]) < count  # some are kept, others had to go
        assert client.request("GET", link)[0] == 200


@pytest.fixture
def slow(bright):
    """The same model, 50 ms later."""
    gate = threading.Event()

    def predict(batch):
        gate.wait(0.05)
        return bright.classify(batch)

    return as_classifier(predict, labels=["dark", "bright"], returns="probabilities")


def test_a_search_that_no_page_watches_is_stopped(slow, photograph):
    with serving({"slow": slow}, Limits(unwatched_seconds=0.4)) as served:
        client = load.Client(served.port, model="slow")
        client.image = (photograph.name, photograph.data)
        address = client.start()
        time.sleep(1.5)  # nobody reads its events
        name, content = client.follow(address)
    assert name == "failed" or "Stopped early" in content["stage"]


def test_a_page_that_watches_keeps_its_search(slow, photograph):
    limits = Limits(unwatched_seconds=1.5)  # less than the search takes, more than a busy machine is silent
    with serving({"slow": slow}, limits) as served:
        client = load.Client(served.port, model="slow")
        client.image = (photograph.name, photograph.data)
        start = time.monotonic()
        name, content = client.follow(client.start())
        assert time.monotonic() - start > limits.unwatched_seconds
    assert name == "done"
    assert "Stopped early" not in content["stage"]


def test_a_falling_curve_is_explained(bright, found):
    from becausal.interfaces.serve import rendering

    ranking = predict_ranking(found, bright)
    steps = [replace(made, confidence=0.9) for made in ranking.predictions]
    text = rendering.render_ranking(found, replace(ranking, predictions=tuple(steps)))
    assert "falls to" not in text
    steps[-2] = replace(steps[-2], confidence=0.25)
    text = rendering.render_ranking(found, replace(ranking, predictions=tuple(steps)))
    assert "the confidence falls to 0.25 although pixels are <em>added</em>" in text


# ---------------------------------------------------------------- hostile files


PIXEL = [(256, 3, 1, 1), (257, 3, 1, 1), (258, 3, 1, 8), (262, 3, 1, 1), (273, 4, 1, 0), (278, 3, 1, 1), (279, 4, 1, 1)]


def many_frames(count):
    """A TIFF file with this many frames: each is a directory of 1 x 1 pixels that refers to the next one."""
    entries = [
        (256, 3, 1, 1),
        (257, 3, 1, 1),
        (258, 3, 1, 8),
        (262, 3, 1, 1),
        (273, 4, 1, 0),
        (278, 3, 1, 1),
        (279, 4, 1, 1),
    ]
    size = 2 + 12 * len(entries) + 4
    tags = b"".join(struct.pack("<HHII", *entry) for entry in entries)
    frames = [
        struct.pack("<H", len(PIXEL)) + tags + struct.pack("<I", 8 + size * (i + 1) if i + 1 < count else 0)
        for i in range(count)
    ]
    return b"II*\x00" + struct.pack("<I", 8) + b"".join(frames)


def test_frames_are_never_counted(monkeypatch):
    from PIL import GifImagePlugin, TiffImagePlugin

    def count(self):
        raise AssertionError("frames are counted")

    monkeypatch.setattr(TiffImagePlugin.TiffImageFile, "n_frames", property(count))
    monkeypatch.setattr(GifImagePlugin.GifImageFile, "n_frames", property(count))
    pixels = noise(8, 12)
    for file_format in ("TIFF", "GIF"):
        buffer = io.BytesIO()
        frames = [Image.fromarray(noise(8, 12, seed)) for seed in (1, 2)]
        Image.fromarray(pixels).save(buffer, file_format, save_all=True, append_images=frames)
        image = decode_image(Upload("x", buffer.getvalue()), LIMITS)
        assert image.grid == (8, 12)
        assert "several frames: first frame used" in image.notes
        if file_format == "TIFF":
            np.testing.assert_array_equal(image.pixels, pixels)


def test_a_tiff_of_many_frames_is_decoded_at_once():
    data = many_frames(86_841)
    begun = time.perf_counter()
    assert decode_image(Upload("x.tif", data), LIMITS).grid == (1, 1)
    assert time.perf_counter() - begun < 2


def test_a_tiff_is_turned_upright_as_from_a_file(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    data = encode(noise(8, 12), "TIFF", exif=exif)
    (tmp_path / "x.tif").write_bytes(data)
    expected = becausal.images.loading.load_image(tmp_path / "x.tif")
    image = decode_image(Upload("x.tif", data), LIMITS)
    assert image.grid == (12, 8)
    np.testing.assert_array_equal(image.pixels, expected.pixels)
    assert image.notes == expected.notes


def bloated_tiff():
    """A TIFF file of 4 MB whose 400 tags all claim the same 4 MB: read in full they are 1.6 GB."""
    count, length = 400, 4_000_000
    tags = [*PIXEL, *((30_000 + i, 7, length, 8) for i in range(count))]
    directory = struct.pack("<H", len(tags)) + b"".join(struct.pack("<HHII", *tag) for tag in tags) + bytes(4)
    return b"II*\x00" + struct.pack("<I", 8 + length) + bytes(length) + directory


def test_a_file_that_takes_too_much_memory_or_time_is_refused():
    small = replace(LIMITS, decode_bytes=900_000_000)
    check_upload(Upload("good.png", encode(noise(20, 20))), small)
    with suppress(ImageError):  # from Pillow 13 on such tags are not read in full, and the file does no harm
        check_upload(Upload("x.tif", bloated_tiff()), small)
    with pytest.raises(ImageError, match=r"x\.png (takes too|is not an image|cannot be decoded|could not be checked)"):
        check_upload(Upload("x.png", encode(noise(2000, 2000))), replace(LIMITS, decode_bytes=10_000_000))
    slow = encode(np.zeros((3000, 3300, 3), np.uint8), "JPEG", progressive=True)
    scan = slow[slow.rindex(b"\xff\xda") : -2]
    with pytest.raises(ImageError, match=r"x\.jpg takes too long"):
        check_upload(Upload("x.jpg", slow[:-2] + scan * 3000 + slow[-2:]), replace(LIMITS, decode_seconds=1))


def test_a_process_that_cannot_start_is_not_blamed_on_the_image(monkeypatch):
    from becausal.interfaces.serve import images

    monkeypatch.setattr(images, "PROGRAM", "import no_such_module")
    with pytest.raises(ImageError, match=r"good\.png could not be checked"):
        check_upload(Upload("good.png", encode(noise(20, 20))), LIMITS)


def test_the_errors_of_the_other_process_are_those_of_this_one():
    for data in (b"", b"no image", encode(noise(64, 64))[:2000]):
        with pytest.raises(ImageError) as here:
            decode_image(Upload("ä.png", data), LIMITS)
        with pytest.raises(ImageError) as there:
            check_upload(Upload("ä.png", data), LIMITS)
        assert str(here.value) == str(there.value)


def test_slow_uploads_of_one_client_do_not_block_another(monkeypatch):
    from becausal.interfaces.serve import images

    def check(upload, limits):
        checking.append(upload.name)
        while upload.name == "slow" and not gate:
            time.sleep(0.01)

    gate, checking = [], []
    monkeypatch.setattr(images, "check_upload", check)

    async def run():
        checks = UploadChecks(LIMITS)
        slow = [asyncio.create_task(checks.check(Upload("slow", b"%d" % n), "10.0.0.1")) for n in range(8)]
        await asyncio.sleep(0.1)
        assert len(checking) == MAX_CLIENT_CHECKS
        await asyncio.wait_for(checks.check(Upload("fast", b""), "10.0.0.2"), 10)
        gate.append(True)
        await asyncio.gather(*slow)
        assert len(checking) == 9
        assert not checks._slots
        checks.close()

    asyncio.run(run())


# ---------------------------------------------------------------- connections and uploads


class Transport:
    def __init__(self):
        self.is_open, self.unsent = True, 0

    def abort(self):
        self.is_open = False

    def get_write_buffer_size(self):
        return self.unsent


@pytest.mark.parametrize(
    ("host", "group"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"),
        ("fe80::1%eth0", "fe80::"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("", ""),
    ],
)
def test_clients_are_counted_by_network(host, group):
    assert group_address(host) == group


def test_one_connection_too_many_replaces_one_without_a_request():
    async def run():
        connections = Connections(Limits(connections=5, client_connections=3))
        transports = []

        def connect(host, *, has_request):
            transport, client = Transport(), (host, len(transports))
            connections.add(client, transport)
            if has_request:
                connections.begin(client)
            transports.append(transport)

        for has_request in (True, False, False):
            connect("10.0.0.1", has_request=has_request)
        connect("10.0.0.1", has_request=True)
        assert [transport.is_open for transport in transports] == [True, False, True, True]
        connections.remove(("10.0.0.1", 1))
        connect("10.0.0.2", has_request=True)
        connect("10.0.0.3", has_request=True)
        connect("10.0.0.4", has_request=True)  # the sixth: the other half-open one goes
        assert [transport.is_open for transport in transports] == [True, False, False, True, True, True, True]
        connections.remove(("10.0.0.1", 2))
        connect("10.0.0.5", has_request=True)  # all others are busy
        assert not transports[-1].is_open

    asyncio.run(run())


def test_a_client_that_sends_no_headers_or_does_not_read_is_cut_off():
    async def run():
        connections = Connections(Limits(header_seconds=0.05))
        silent, busy = Transport(), Transport()
        connections.add(("10.0.0.1", 1), silent)
        connections.add(("10.0.0.1", 2), busy)
        connections.begin(("10.0.0.1", 2))
        await asyncio.sleep(0.15)
        assert (silent.is_open, busy.is_open) == (False, True)
        reader = Transport()
        connections.add(("10.0.0.1", 3), reader)
        reader.unsent = 1000
        await asyncio.sleep(0.07)
        assert reader.is_open
        reader.unsent = 500  # it is reading
        await asyncio.sleep(0.05)
        assert reader.is_open
        await asyncio.sleep(0.1)  # it is not
        assert not reader.is_open

    asyncio.run(run())


def test_one_upload_too_many_ends_the_slowest_of_the_same_client():
    async def receive(uploads, host, length, done):
        try:
            async with asyncio.timeout(30) as deadline:
                upload = uploads.admit(host, deadline)
                uploads.add_bytes(upload, length)
                await done.wait()
        except TimeoutError:
            return "ended"
        finally:
            await asyncio.sleep(0)
        uploads.remove(upload)
        return "received"

    async def run():
        uploads, done = IncomingUploads(Limits(uploads=5, client_uploads=3, receiving_bytes=1000)), asyncio.Event()
        tasks = []
        for length in (100, 1, 50, 100):
            tasks.append(asyncio.create_task(receive(uploads, "10.0.0.1", length, done)))
            await asyncio.sleep(0.02)
        for host in ("10.0.0.2", "10.0.0.3"):
            tasks.append(asyncio.create_task(receive(uploads, host, 10, done)))
            await asyncio.sleep(0.02)
        with pytest.raises(TooMany):
            await receive(uploads, "10.0.0.4", 1, done)  # no slower one of its own
        done.set()
        assert await asyncio.gather(*tasks) == ["received", "ended", "received", "received", "received", "received"]
        with pytest.raises(TooMany):
            await receive(uploads, "10.0.0.4", 1001, done)

    asyncio.run(run())


def connect(port, data):
    connection = socket.create_connection(("127.0.0.1", port), timeout=30)
    connection.sendall(data)
    return connection


def is_closed(connection):
    try:
        return connection.recv(10_000) == b""
    except ConnectionResetError:
        return True


PATHS = (b"/page/labels", b"/v1/explain")


def test_half_open_connections_and_slow_uploads_do_not_block_others():
    limits = Limits(header_seconds=1.0, client_connections=30, connections=40, client_uploads=4, uploads=6, body_seconds=2.0)
    with serving({"bundled": becausal.load_model("bundled")}, limits) as served:
        port, client = served.port, load.Client(served.port)
        half_open = [connect(port, b"GET / HTTP/1.1\r\nHost: local") for _ in range(60)]
        assert client.request("GET", "/")[0] == 200
        assert all(is_closed(connection) for connection in half_open)  # the oldest at once, the others after a second
        dripping = [connect(port, b"GET / HTTP/1.1\r\n") for _ in range(3)]
        for _ in range(15):  # a byte now and then does not help
            time.sleep(0.1)
            for connection in dripping:
                try:
                    connection.sendall(b"X")
                except OSError:
                    break
        assert all(is_closed(connection) for connection in dripping)

        heads = [b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\nx" % path for path in PATHS]
        slow = [connect(port, heads[number % 2]) for number in range(9)]
        time.sleep(0.3)
        assert "bus.png" in client.choose("bus.png", encode(make_scene(1025, label="bus").image))["image"]
        replies = [connection.recv(1000) for connection in slow]  # ended by others, or after two seconds
        assert all(reply.startswith(b"HTTP/1.1 408") for reply in replies)
        for connection in (*half_open, *dripping, *slow):
            connection.close()


# ---------------------------------------------------------------- token


def test_a_full_round_with_a_token_of_ones_own():
    with serving({"bundled": becausal.load_model("bundled")}, hosts=None, token=TOKEN) as served:
        stranger = load.Client(served.port)
        assert stranger.request("GET", f"/?token={TOKEN[::-1]}")[0] == 401
        with pytest.raises(load.UnexpectedResponse, match="401"):
            stranger.choose("bus.png", b"x")
        client = load.Client(served.port, f"becausal-{served.port}={TOKEN}")
        client.choose("bus.png", encode(make_scene(1025, label="bus").image))
        _, link = client.explain()
        assert client.request("GET", link)[0] == 200
        assert stranger.request("GET", link)[0] == 401
        assert stranger.post("/page/labels")[1]["error"].startswith("the token is missing or wrong")

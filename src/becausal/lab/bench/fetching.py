"""Download of the published datasets from their authors' repository, file by file, with a checksum; can be resumed."""

import os
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from http.client import HTTPException
from pathlib import Path

from becausal.core.errors import NetworkError, OptionError, OutputError
from becausal.core.files import path_inside

COMMIT = "4f70b2498ee1dc030b4ded0d4bc57447274b9fe0"
REPOSITORY = "https://github.com/theyoucheng/deepcover"
ADDRESS = f"https://raw.githubusercontent.com/theyoucheng/deepcover/{COMMIT}/benchmarks"
THREADS, TRIES, TIMEOUT = 8, 3, 30.0  # parallel downloads; attempts for each file; seconds to wait for a response


@dataclass(frozen=True)
class PublishedDataset:
    """A published dataset.

    Attributes:
        folder: Its folder in the repository.
        listing: The file that lists the images.
        images: The folder of the images.
        files: Number of files.
        sha256: Hash of the text with a line `sha256␠␠relative/path` for each file, sorted by path.
    """

    folder: str
    listing: str
    images: str
    files: int
    sha256: str


SETS = {
    "photobombing": PublishedDataset(
        "photobombing", "photobombing_groundtruth.txt", "photobombing_imgs", 2061,
        "3142725cbe8db3f0685530d5d5c17ae32df99acbe6805ab34ac8ad210ac2dcc8",
    ),
    "roaming-panda": PublishedDataset(
        "roaming-panda", "roaming_panda_groundtruth_vgg16_mobilenet.csv", "roaming_panda_images_vgg16_mobilenet", 2895,
        "9337c4bc50f2a7965d027d527b5d8c7608d76d347b4bcdb601687d1c983956f2",
    ),
}  # fmt: skip

Watch = Callable[[int, int], None]  # (files done, files in total)


def fetch_dataset(name: str, out: Path, *, address: str | None = None, watch: Watch | None = None) -> Path:
    """Download a published dataset and check it; files that exist already are not downloaded again.

    Args:
        name: One of `SETS`.
        out: Folder to write to.
        address: Address of a mirror with the same layout.
        watch: Called with the number of files done and in total.

    Raises:
        OptionError: The dataset is unknown, or the address is not one of the web.
        NetworkError: A file cannot be downloaded.
        OutputError: A file cannot be written, or the files are not those that were published.
    """
    published = SETS.get(name)
    if published is None:
        raise OptionError(f"unknown dataset {name!r}: choose one of {', '.join(SETS)}")
    if address is not None and not re.match(r"https?://[^/\s]", address):
        raise OptionError(f"the address of a mirror starts with https:// or http://, {address!r} does not")
    base = f"{(address or ADDRESS).rstrip('/')}/{published.folder}"
    try:
        out.mkdir(parents=True, exist_ok=True)
        try:
            _fetch(f"{base}/{published.listing}", out / published.listing, name, out)
        except NetworkError:
            with suppress(OSError):
                out.rmdir()  # only if it is empty
            raise
        path_inside(out, published.images).mkdir(exist_ok=True)
        names = list_names(out / published.listing)
        paths = [f"{published.images}/{each}" for each in names]
        with ThreadPoolExecutor(THREADS) as pool:
            jobs = [pool.submit(_fetch, f"{base}/{path}", out / path, name, out) for path in paths]
            try:
                for done, job in enumerate(jobs, start=1):
                    job.result()
                    if watch is not None:
                        watch(done, len(jobs))
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
    except OSError as error:
        raise OutputError(f"cannot write to {out}: {error.strerror or error}") from None
    files = [published.listing, *paths]
    if len(files) != published.files or tree_hash(out, files) != published.sha256:
        raise OutputError(
            f"the {len(files):,} files in {out} are not those that were published ({published.files:,}, sha256 "
            f"{published.sha256[:12]}…): delete the folder and download it again"
        )
    return out


def list_names(listing: Path) -> list[str]:
    """The file names in a list of images, in its order.

    Raises:
        OutputError: A name is not a plain file name.
    """
    text = listing.read_text(encoding="utf-8", errors="replace")
    names = [line.split()[0] for line in text.splitlines() if line.strip()]
    for name in names:
        if not re.fullmatch(r"\w[\w.-]*", name):
            raise OutputError(f"{listing} lists an image {name!r}, which is not a file name")
    return list(dict.fromkeys(names))


def tree_hash(folder: Path, paths: list[str]) -> str:
    """The sha256 of the text with a line `sha256␠␠path` for each file, sorted by path."""
    lines = [f"{sha256((folder / path).read_bytes()).hexdigest()}  {path}\n" for path in sorted(paths)]
    return sha256("".join(lines).encode()).hexdigest()


def _fetch(url: str, path: Path, name: str, out: Path) -> None:
    """Download a file under a temporary name, then rename it; a partial download is continued."""
    if path.exists() and path.stat().st_size:
        return
    part = path_inside(out, path.relative_to(out).with_name(f".{path.name}.part"))
    for attempt in range(TRIES):
        try:
            _download(url, part)
            os.replace(part, path)
            return
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == 416:  # the part is longer than the file: start again
                part.unlink(missing_ok=True)
            elif error.code < 500:
                raise NetworkError(f"{url}: {error.code} {error.reason}; {suggest_alternative(name, out)}") from None
            reason = f"{error.code} {error.reason}"
        except (urllib.error.URLError, TimeoutError, ConnectionError, HTTPException, ValueError) as error:
            reason = str(getattr(error, "reason", error) or error)
        time.sleep(0.2 * attempt)
    raise NetworkError(f"cannot reach {url} ({reason}); {suggest_alternative(name, out)}")


def _download(url: str, part: Path) -> None:
    offset = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={offset}-"} if offset else {})
    with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
        with part.open("ab" if answer.status == 206 else "wb") as file:
            while block := answer.read(1 << 16):
                file.write(block)
        wanted = answer.headers.get("Content-Length")
        got = part.stat().st_size - (offset if answer.status == 206 else 0)
        if wanted is not None and got != int(wanted):
            raise ConnectionError(f"{got} of {wanted} bytes were received")


def suggest_alternative(name: str, out: Path) -> str:
    """What to do without a network."""
    return (
        f"without a network: copy the folder benchmarks/{SETS[name].folder} of {REPOSITORY} to {out}, or run becausal bench "
        "scenes, which needs no data"
    )

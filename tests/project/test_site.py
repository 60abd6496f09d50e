"""The site builds without a warning, no link in it is broken, and it loads nothing from other servers."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from libraries import need

need("mkdocs", "material", "mkdocstrings")

ROOT = Path(__file__).parents[2]
#: Attributes through which a page makes the browser fetch something.
FETCHING = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src", "video": "src"}


class Reader(HTMLParser):
    """The links, anchors and loaded resources of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value for name, value in attrs if value is not None}
        self.anchors |= {found[name] for name in ("id", "name") if name in found}
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        is_icon_or_style = tag != "link" or not {"prev", "next", "canonical"} & set(found.get("rel", "").split())
        if tag in FETCHING and FETCHING[tag] in found and is_icon_or_style:
            self.fetched.append(found[FETCHING[tag]])


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The folder of the site, and the finished mkdocs process."""
    folder = tmp_path_factory.mktemp("site") / "site"
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    return folder, done


@pytest.fixture(scope="module")
def pages(built):
    folder, _ = built
    return {path: Reader(path.read_text(encoding="utf-8")) for path in sorted(folder.rglob("*.html"))}


def test_it_builds_without_a_warning(built):
    folder, done = built
    assert done.returncode == 0, done.stderr[-3000:]
    assert not done.stdout.strip()
    assert not [line for line in done.stderr.splitlines() if line.strip() and not line.startswith("INFO")], done.stderr
    assert (folder / "index.html").exists()


def test_every_page_of_docs_is_in_it(built, pages):
    folder, _ = built
    for source in sorted((ROOT / "docs").rglob("*.md")):
        assert folder / source.relative_to(ROOT / "docs").with_suffix(".html") in pages
    for notebook in sorted((ROOT / "examples").glob("*.ipynb")):
        assert folder / "examples" / f"{notebook.stem}.html" in pages
        assert (folder / "examples" / notebook.name).exists()


def test_no_link_is_broken(built, pages):
    folder, _ = built
    broken = []
    for page, reader in pages.items():
        if page.name == "404.html":  # its links are relative to wherever it is shown
            continue
        for link in {*reader.links, *reader.fetched}:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            if target.is_dir():
                target = target / "index.html"
            if not target.is_relative_to(folder.resolve()) or not target.exists():
                broken.append(f"{page.relative_to(folder)}: {link}")
            elif parts.fragment and target.suffix == ".html" and unquote(parts.fragment) not in pages[target].anchors:
                broken.append(f"{page.relative_to(folder)}: {link} (no such anchor)")
    assert not broken, "\n".join(broken)


def test_nothing_is_fetched_from_elsewhere(built, pages):
    folder, _ = built
    outside = [
        f"{page.name}: {address}" for page, reader in pages.items() for address in reader.fetched if urlsplit(address).netloc
    ]
    styles = [path.name for path in folder.rglob("*.css") if re.search(r"url\(['\"]?(https?:)?//", path.read_text("utf-8"))]
    assert not outside
    assert not styles


def test_the_reference_has_every_public_name(built, pages):
    import becausal

    folder, _ = built
    anchors = pages[folder / "api.html"].anchors
    for name in set(becausal.__all__) - {"__version__"}:
        module = getattr(becausal, name).__module__
        assert {f"becausal.{name}", f"{module}.{name}"} & anchors, f"{name} is not in docs/api.md"


def test_no_page_names_a_machine(pages):
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert not re.search(r"(?<![\w.])/(home|root|work)/\w", text), page.name

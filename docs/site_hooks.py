"""Hooks of mkdocs: files from outside docs/ become part of the site, notebooks become pages, and links are adapted.

The pages can also be read in the repository, so they have links such as ../examples/volume.py. The files that the site
contains keep their path; a link to any other file of the repository becomes plain text.
"""

import json
import posixpath
import re
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
PAGES = ("ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "training/README.md")
COPIES = (
    "examples/*.py",
    "examples/*.ipynb",
    "examples/github-action/action.yml",
    "src/becausal/models/bundled/demo.png",
    "LICENSE",
)
LINK = re.compile(r"\]\((?![a-z]+:|#)([^)\s#]+)(#[^)\s]+)?\)")
REMOVED_LINK = re.compile(r"(?<!!)\[([^\[\]]*)\]\(REMOVED\)")
FILE = re.compile(r"^<!-- file ([\w.-]+) -->\n```(\w+)$", re.MULTILINE)  # a block that the tests write to this file


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the files from outside docs/ and a page for each notebook."""
    for name, content in generated_files():
        files.append(File.generated(config, name, content=content, inclusion=InclusionLevel.INCLUDED))
    for path in copies():
        name = path.relative_to(ROOT).as_posix()
        files.append(File.generated(config, name, abs_src_path=str(path), inclusion=InclusionLevel.INCLUDED))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Adapt links from the repository's layout to the site's, and give blocks of files a title."""
    here = page.file.src_uri
    origin = here if is_outside(here) else f"docs/{here}"

    def adapt(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(origin), link[1]))
        there = site_path(target)
        if files.get_file_from_path(there) is not None:
            return f"]({posixpath.relpath(there, posixpath.dirname(here) or '.')}{link[2] or ''})"
        is_not_in_site = not target.startswith(("docs/", "..")) and (ROOT / target).exists()
        return "](REMOVED)" if is_not_in_site else link[0]  # mkdocs reports links that are really broken

    titled = FILE.sub(r'```\2 title="\1"', markdown)
    return REMOVED_LINK.sub(r"\1", LINK.sub(adapt, titled))


def is_outside(name: str) -> bool:
    """Whether a page of the site comes from outside docs/."""
    return name in PAGES or (ROOT / name).with_suffix(".ipynb").exists()


def site_path(name: str) -> str:
    """The path in the site of a file of the repository."""
    if name.endswith(".ipynb"):
        return Path(name).with_suffix(".md").as_posix()
    return name.removeprefix("docs/")


def copies() -> Iterator[Path]:
    """Files that are copied unchanged."""
    for pattern in COPIES:
        yield from sorted(ROOT.glob(pattern))


def generated_files() -> Iterator[tuple[str, str | bytes]]:
    """Names and contents of the pages from outside docs/, and of the images in notebooks."""
    for name in PAGES:
        yield name, (ROOT / name).read_text(encoding="utf-8")
    for path in sorted((ROOT / "examples").glob("*.ipynb")):
        text, images = notebook_page(json.loads(path.read_text(encoding="utf-8")), path.stem)
        yield f"examples/{path.stem}.md", text
        for name, content in images.items():
            yield f"examples/{name}", content


def notebook_page(notebook: dict[str, Any], stem: str) -> tuple[str, dict[str, bytes]]:
    """A notebook as Markdown, and its images by name."""
    parts: list[str] = []
    images: dict[str, bytes] = {}
    for number, cell in enumerate(notebook["cells"]):
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        for index, output in enumerate(cell["outputs"]):
            data = output.get("data", {})
            if "image/png" in data:
                name = f"{stem}-{number}-{index}.png"
                images[name] = b64decode("".join(data["image/png"]))
                parts.append(f"![Output of the cell above]({name})")
            elif text := "".join(output.get("text", data.get("text/plain", ""))):
                parts.append(f"```text\n{text.rstrip()}\n```")
    parts.insert(1, f'<a href="{stem}.ipynb" download>Download this notebook</a>')
    return "\n\n".join(parts) + "\n", images

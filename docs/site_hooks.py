"""What mkdocs is told beside mkdocs.yml: files from outside of docs/, notebooks as pages, and links that lead there.

Pages are written to be read in the repository as well, so they link to ../examples/volume.py and the like. A linked file
is brought along under its own path; a link to anything that is not brought along becomes plain text.
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
COPIES = ("examples/*.py", "examples/*.ipynb", "src/becausal/scenes/bundled/demo.png", "LICENSE")
LINK = re.compile(r"\]\((?![a-z]+:|#)([^)\s#]+)(#[^)\s]+)?\)")
TITLED = re.compile(r"(?<!!)\[([^\[\]]*)\]\(GONE\)")
FILE = re.compile(r"^<!-- file ([\w.-]+) -->\n```(\w+)$", re.MULTILINE)  # a block the tests write to a file of that name


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Bring along what lies outside of docs/, and make a page of each notebook."""
    for name, content in made_pages():
        files.append(File.generated(config, name, content=content, inclusion=InclusionLevel.INCLUDED))
    for path in copies():
        name = path.relative_to(ROOT).as_posix()
        files.append(File.generated(config, name, abs_src_path=str(path), inclusion=InclusionLevel.INCLUDED))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links as the repository has them into links as the site has them, and write a file's name over its block."""
    here = page.file.src_uri
    origin = here if is_outside(here) else f"docs/{here}"

    def turn(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(origin), link[1]))
        there = site_path(target)
        if files.get_file_from_path(there) is not None:
            return f"]({posixpath.relpath(there, posixpath.dirname(here) or '.')}{link[2] or ''})"
        is_left_behind = not target.startswith(("docs/", "..")) and (ROOT / target).exists()
        return "](GONE)" if is_left_behind else link[0]  # what is really broken is left for mkdocs to complain about

    named = FILE.sub(r'```\2 title="\1"', markdown)
    return TITLED.sub(r"\1", LINK.sub(turn, named))


def is_outside(name: str) -> bool:
    """Whether a page of the site comes from outside of docs/."""
    return name in PAGES or (ROOT / name).with_suffix(".ipynb").exists()


def site_path(name: str) -> str:
    """Where a file of the repository lies in the site."""
    if name.endswith(".ipynb"):
        return Path(name).with_suffix(".md").as_posix()
    return name.removeprefix("docs/")


def copies() -> Iterator[Path]:
    """Files that are offered as they are."""
    for pattern in COPIES:
        yield from sorted(ROOT.glob(pattern))


def made_pages() -> Iterator[tuple[str, str | bytes]]:
    """Names and contents of the pages that come from elsewhere, with the images of the notebooks."""
    for name in PAGES:
        yield name, (ROOT / name).read_text(encoding="utf-8")
    for path in sorted((ROOT / "examples").glob("*.ipynb")):
        text, pictures = notebook_page(json.loads(path.read_text(encoding="utf-8")), path.stem)
        yield f"examples/{path.stem}.md", text
        for name, content in pictures.items():
            yield f"examples/{name}", content


def notebook_page(notebook: dict[str, Any], stem: str) -> tuple[str, dict[str, bytes]]:
    """A notebook as Markdown, and its images by name."""
    parts: list[str] = []
    pictures: dict[str, bytes] = {}
    for number, cell in enumerate(notebook["cells"]):
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        for place, output in enumerate(cell["outputs"]):
            data = output.get("data", {})
            if "image/png" in data:
                name = f"{stem}-{number}-{place}.png"
                pictures[name] = b64decode("".join(data["image/png"]))
                parts.append(f"![What the cell above shows]({name})")
            elif text := "".join(output.get("text", data.get("text/plain", ""))):
                parts.append(f"```text\n{text.rstrip()}\n```")
    parts.insert(1, f'<a href="{stem}.ipynb" download>Download this notebook</a>')
    return "\n\n".join(parts) + "\n", pictures

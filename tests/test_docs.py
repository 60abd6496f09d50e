"""What the documentation says to type is typed here, and every example is run.

In README.md and docs/*.md an HTML comment marks the block after it:

    <!-- run -->             the lines of a bash block that begin with `becausal`, or a whole python block, are run
    <!-- run LIBRARY -->     the same, where that library is installed
    <!-- file NAME -->       the block is written to a file of that name first

The blocks of a document run one after the other in a folder of their own. It holds scenes/ (twelve, from seed 100),
photo.jpg (one of them, larger), and the bundled classifier under another name, net.onnx with names.txt.
"""

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from PIL import Image

from becausal.cli import main
from becausal.scenes import make_scene

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
BUNDLED = ROOT / "src" / "becausal" / "scenes" / "bundled"
BLOCK = re.compile(r"^<!-- (run|file)(?: ([\w.]+))? -->\n```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?://)([^)#\s]+)?(?:#([^)\s]+))?\)")


@dataclass(frozen=True)
class Block:
    """A marked block: what to do with it (run or file), the library or the file's name, its language, text and line."""

    action: str
    name: str
    language: str
    text: str
    line: int

    @property
    def commands(self) -> list[list[str]]:
        joined = self.text.replace("\\\n", " ")
        return [shlex.split(line)[1:] for line in joined.splitlines() if line.startswith("becausal ")]


def read_blocks(document: Path) -> list[Block]:
    text = document.read_text(encoding="utf-8")
    return [Block(m[1], m[2] or "", m[3], m[4], text.count("\n", 0, m.start()) + 1) for m in BLOCK.finditer(text)]


def has(library: str) -> bool:
    return not library or importlib.util.find_spec(library) is not None


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("docs")
    assert main(["scenes", "make", "--count", "12", "--seed", "100", "--out", str(folder / "scenes")]) == 0
    Image.fromarray(make_scene(107, size=512).picture).save(folder / "photo.jpg", quality=95)
    shutil.copy(BUNDLED / "scenes.onnx", folder / "net.onnx")
    shutil.copy(BUNDLED / "labels.txt", folder / "names.txt")
    return folder


@pytest.mark.parametrize("document", [d for d in DOCUMENTS if read_blocks(d)], ids=lambda path: path.name)
def test_what_a_document_says_to_type_works(document, prepared, tmp_path, monkeypatch):
    folder = tmp_path / "here"
    shutil.copytree(prepared, folder)
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    names = {"__name__": "__docs__"}
    for block in read_blocks(document):
        place = f"{document.name}, line {block.line}"
        if block.action == "file":
            Path(block.name).write_text(block.text, encoding="utf-8")
        elif not has(block.name):
            continue
        elif block.language == "python":
            exec(compile(block.text, place, "exec"), names)
        else:
            assert block.language == "bash", place
            assert block.commands, f"{place}: no line begins with becausal"
            for command in block.commands:
                assert main(command) == 0, f"{place}: becausal {shlex.join(command)}"


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_an_example_runs(example, tmp_path):
    """In a process of its own, as a user runs it; an example checks itself what it found."""
    text = example.read_text(encoding="utf-8")
    for library in ("torch", "quantus"):
        if (f"import {library}" in text or (library == "torch" and "scenes.network" in text)) and not has(library):
            pytest.skip(f"{library} is not installed")
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(example)], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip()


@pytest.mark.parametrize("document", [*ROOT.glob("*.md"), *DOCUMENTS[1:]], ids=lambda path: path.name)
def test_links_lead_somewhere(document):
    for match in LINK.finditer(document.read_text(encoding="utf-8")):
        target = (document.parent / match[1]).resolve() if match[1] else document
        assert target.exists(), f"{document.name} links to {match[1]}, which does not exist"
        if match[2] and target.suffix == ".md":
            assert match[2] in anchors(target), f"{document.name} links to {match[0]}, and there is no such heading"


def anchors(document: Path) -> set[str]:
    """The anchors of a document's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", document.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}

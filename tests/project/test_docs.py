"""The commands and snippets of the documentation, and all examples, are run here.

In README.md and in the pages of docs/ an HTML comment marks the block that follows it:

    <!-- run -->             run a whole python block, or the lines of a bash block that start with `becausal` or `python`;
                             `# status 3` at the end of a line is the expected exit status
    <!-- run LIBRARY -->     the same, if that library is installed
    <!-- file NAME -->       write the block to a file of that name
    <!-- output -->          the block is the output of the last block that ran; words may not differ, numbers by a fifth at
                             most, seconds as they like, and a line … stands for any lines

The blocks of a page run in order in a folder of their own. It contains scenes/ (twelve, from seed 100), photo.jpg (one of
them, larger), and the bundled classifier under another name, net.onnx with names.txt. Pages that a reader follows from the
start (`FROM_NOTHING`) begin in an empty folder. Some pages are slow tests, as a whole (`LONG`) or in part (`TRAINING`).

`BECAUSAL_WRITE_DOCS=1 pytest -n 0 -m docs tests/project/test_docs.py` writes the present numbers into the pages.
"""

import importlib
import importlib.util
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from PIL import Image

from becausal.interfaces.cli.app import main
from becausal.scenes import make_scene

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FROM_NOTHING = {ROOT / "docs" / "tutorial.md", ROOT / "docs" / "theory.md", *(ROOT / "docs" / "tasks").glob("*.md")}
#: `pytest -m slow` runs these pages whole. Of those that train networks, CI runs the blocks that need no library.
TRAINING = {"tutorial.md", "release-gate.md"}
PORT = "8765"  # of a server that is started by a page
LONG = {"benchmarks.md", "shortcuts.md", "two-models.md"}  # they explain whole data sets
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
NUMBER = r"[<>]?\d[\d,.]*(?<![,.])"
SIGN = "\x01"  # in the place of a number
BUNDLED = ROOT / "src" / "becausal" / "models" / "bundled"
BLOCK = re.compile(r"^<!-- (run|file|output)(?: ([\w.]+))? -->\n```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?://)([^)#\s]+)?(?:#([^)\s]+))?\)")


@dataclass(frozen=True)
class Block:
    """A marked block: the action, the name of the library or file, its language, text and line."""

    action: str
    name: str
    language: str
    text: str
    line: int

    @property
    def commands(self) -> list[list[str]]:
        joined = self.text.replace("\\\n", " ")
        return [shlex.split(line) for line in joined.splitlines() if line.startswith(("becausal ", "python "))]


@cache
def free_port() -> str:
    """A port for the server that a page starts, in the place of the one it names (`PORT`)."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return str(taken.getsockname()[1])


def read_blocks(document: Path) -> list[Block]:
    text = document.read_text(encoding="utf-8").replace(PORT, free_port())
    return [Block(m[1], m[2] or "", m[3], m[4], text.count("\n", 0, m.start()) + 1) for m in BLOCK.finditer(text)]


def has(library: str) -> bool:
    return not library or importlib.util.find_spec(library) is not None


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("docs")
    assert main(["scenes", "make", "--count", "12", "--seed", "100", "--out", str(folder / "scenes")]) == 0
    Image.fromarray(make_scene(107, size=512).image).save(folder / "photo.jpg", quality=95)
    shutil.copy(BUNDLED / "scenes.onnx", folder / "net.onnx")
    shutil.copy(BUNDLED / "labels.txt", folder / "names.txt")
    return folder


@pytest.mark.parametrize(
    "document",
    [
        pytest.param(d, marks=[pytest.mark.smoke] if d.name == "README.md" else [])
        for d in DOCUMENTS
        if read_blocks(d) and d.name not in LONG
    ],
    ids=lambda path: path.name,
)
def test_what_a_document_says_to_type_works(document, request, prepared, tmp_path, monkeypatch, capsys):
    if document.name != "README.md":
        request.getfixturevalue("without_figures")
    run_document(document, prepared, tmp_path, monkeypatch, capsys, libraries=document.name not in TRAINING)


@pytest.mark.slow
@pytest.mark.parametrize("document", [d for d in DOCUMENTS if d.name in TRAINING | LONG], ids=lambda path: path.name)
def test_what_a_long_document_says_to_type_works(document, prepared, tmp_path, monkeypatch, capsys):
    run_document(document, prepared, tmp_path, monkeypatch, capsys)


def run_document(document, prepared, tmp_path, monkeypatch, capsys, *, libraries=True):
    """Run the blocks of a page; without `libraries` only those that need none."""
    folder = tmp_path / "here"
    if document in FROM_NOTHING:
        folder.mkdir()
    else:
        shutil.copytree(prepared, folder)
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    capsys.readouterr()
    names = {"__name__": "__docs__"}
    printed = None
    for block in read_blocks(document):
        place = f"{document.name}, line {block.line}"
        if block.action == "file":
            Path(block.name).write_text(block.text, encoding="utf-8")
        elif block.action == "output" and printed is not None:
            assert as_pattern(block.text).fullmatch(in_words(printed)), f"{place}; printed:\n{printed}"
            if os.environ.get("BECAUSAL_WRITE_DOCS"):
                write_output(document, block.text, printed)
            else:
                assert not (changed := changed_numbers(block.text, printed)), f"{place}: {changed}; printed:\n{printed}"
        elif block.action == "output":
            pass
        elif not has(block.name) or (block.name and not libraries):
            printed = None
        elif block.language == "python":
            exec(compile(block.text, place, "exec"), names)
            printed = capsys.readouterr().out
        else:
            assert block.language == "bash", place
            assert block.commands, f"{place}: no line starts with becausal or python"
            printed = "".join(run_command(command, place, capsys) for command in block.commands)


def run_command(command: list[str], place: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Run a line of a bash block and return its output; `# status 3` at its end is the expected exit status."""
    status = 0
    if command[-3:-1] == ["#", "status"]:
        command, status = command[:-3], int(command[-1])
    if command[0] == "becausal":
        assert main(command[1:]) == status, f"{place}: {shlex.join(command)}\n{capsys.readouterr().err}"
        return capsys.readouterr().out
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run(
        [sys.executable, *command[1:]], env=environment, capture_output=True, text=True, encoding="utf-8", timeout=600
    )
    assert done.returncode == 0, f"{place}: {shlex.join(command)}\n{done.stderr[-2000:]}"
    return done.stdout


def in_words(text: str) -> str:
    """The output with every number as one sign, single spaces, no empty lines, and counted nouns in the singular."""
    text = re.sub(NUMBER, SIGN, text)
    text = re.sub(r"\b(piece|pixel|removal|call|voxel|sample)s\b", r"\1", text)
    return "\n".join(" ".join(line.split()) for line in text.splitlines() if line.strip())


def as_pattern(shown: str) -> re.Pattern[str]:
    """The pattern that `in_words` of the real output must match."""
    lines = [".*" if line == "…" else re.escape(line) for line in in_words(shown).splitlines()]
    return re.compile("\n".join(lines), re.DOTALL)


def as_number(text: str) -> float:
    return float(text.strip("<>").replace(",", "")) if re.fullmatch(r"[<>]?[\d,]*\.?\d*", text) else float("nan")


def pairs_of_numbers(shown: str, printed: str) -> list[tuple[re.Match[str], str]]:
    """Each number that is shown, and the one printed in its place."""
    pattern = re.compile(as_pattern(shown).pattern.replace(re.escape(SIGN), f"({SIGN})"), re.DOTALL)
    words, there = in_words(printed), re.findall(NUMBER, printed)
    found = pattern.fullmatch(words)
    return [(own, there[words[: found.start(i)].count(SIGN)]) for i, own in enumerate(re.finditer(NUMBER, shown), 1)]


def changed_numbers(shown: str, printed: str) -> list[str]:
    """The numbers that are off by more than a fifth, without durations and hashes."""
    changed = []
    for own, other in pairs_of_numbers(shown, printed):
        line = shown[shown.rfind("\n", 0, own.start()) + 1 : own.end()]
        if re.match(r" (s|ms|min)\b", shown[own.end() :]) or "sha256" in line:
            continue
        a, b = as_number(own[0]), as_number(other)
        if abs(a - b) > 0.2 * max(a, b, 5.0):
            changed.append(f"{own[0]} is {other}")
    return changed


def write_output(document: Path, shown: str, printed: str) -> None:
    """The page with what was printed, whole or number by number where lines are left out."""
    text = document.read_text(encoding="utf-8").replace(PORT, free_port())
    new = "\n".join(line.rstrip() for line in printed.strip("\n").splitlines()) + "\n"
    if "…" in shown.splitlines():
        new, end = "", 0
        for own, other in pairs_of_numbers(shown, printed):
            new, end = new + shown[end : own.start()] + other, own.end()
        new += shown[end:]
    document.write_text(text.replace(shown, new, 1).replace(free_port(), PORT), encoding="utf-8")


def test_numbers_may_differ_by_a_fifth():
    shown, printed = "63 calls, 0.1 s\n…\nsize 1,000 px", "70 calls, 12 s\nmore 5\nsize 1,190 px\n"
    assert changed_numbers(shown, printed) == []
    assert changed_numbers(shown, printed.replace("1,190", "1,300")) == ["1,000 is 1,300"]
    assert changed_numbers(shown, printed.replace("70", "80")) == ["63 is 80"]


def test_an_output_is_compared_by_its_words():
    shown = "sailboat >0.99\n…\n  cost   63 calls, 0.1 s"
    assert as_pattern(shown).fullmatch(in_words("sailboat 0.95\nsize  1 %\n\n cost 1 call, 12.5 s\n"))
    assert not as_pattern(shown).fullmatch(in_words("mug 0.95\nsize  1 %\n\n cost 1 call, 12.5 s\n"))
    assert not as_pattern(shown).fullmatch(in_words("sailboat 0.95\nsize  1 %\n\n cost 1 call\n"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_an_example_runs(example, tmp_path):
    """In a separate process, as a user runs it; every example checks its own result."""
    text = example.read_text(encoding="utf-8")
    for library in ("torch", "quantus", "smqtk_classifier"):
        if (
            re.search(rf"^(import|from) {library}\b", text, re.MULTILINE)
            or (library == "torch" and "scenes.network" in text)
        ) and not has(library):
            pytest.skip(f"{library} is not installed")
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(example)], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip()


@pytest.mark.smoke
@pytest.mark.parametrize("document", [*ROOT.glob("*.md"), *DOCUMENTS[1:]], ids=lambda path: path.name)
def test_links_lead_somewhere(document):
    for match in LINK.finditer(document.read_text(encoding="utf-8")):
        target = (document.parent / match[1]).resolve() if match[1] else document
        assert target.exists(), f"{document.name} links to {match[1]}, which does not exist"
        if match[2] and target.suffix == ".md":
            assert match[2] in anchors(target), f"{document.name} links to {match[0]}, and there is no such heading"


def anchors(document: Path) -> set[str]:
    """The anchors of a document's headings, as on GitHub."""
    headings = re.findall(r"^#+ (.+)$", document.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_opening_image_is_described_once():
    captions = []
    for document in (ROOT / "README.md", ROOT / "docs" / "index.md"):
        title, caption = re.search(
            r"!\[(.+?)\]\(\S*hero\.png\)\n\n(\*.+?\*)\n\n", document.read_text("utf-8"), re.DOTALL
        ).groups()
        captions.append((title, caption))
    assert captions[0] == captions[1]


def test_the_glossary_has_every_term():
    terms = "view grid visible fill background grain mutant call target sufficient minimal necessary witness responsibility"
    assert set(terms.split()) <= anchors(ROOT / "docs" / "glossary.md")


NAME = re.compile(r"`(becausal(?:\.\w+)+)")


@pytest.mark.smoke
@pytest.mark.parametrize("document", [ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md", *DOCUMENTS], ids=lambda p: p.name)
def test_every_dotted_name_exists(document):
    for name in set(NAME.findall(document.read_text(encoding="utf-8"))):
        assert exists(name), f"{document.name} names {name}, which does not exist"


def exists(name: str) -> bool:
    """Whether a dotted name is a module, or an attribute of one."""
    module, _, attributes = name.partition(".")
    found = importlib.import_module(module)
    for attribute in attributes.split("."):
        module = f"{module}.{attribute}"
        if not hasattr(found, attribute):
            try:
                importlib.import_module(module)
            except ModuleNotFoundError as error:
                return error.name is not None and not error.name.startswith("becausal")  # a library that is not installed
        found = getattr(found, attribute)
    return True

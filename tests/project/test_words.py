"""The words of pages and messages: what the product did before, and what was hard to read, is not said any more."""

import inspect
import re
from dataclasses import fields
from pathlib import Path

import pytest

import becausal
from becausal.api import Request
from becausal.core.errors import TargetError
from becausal.models import load_model
from becausal.models.labels import find_label

ROOT = Path(__file__).parents[2]
HISTORY = {"research-log.md"}  # says what was tried, in the words of its time
PAGES = [path for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")] if path.name not in HISTORY]
SOURCES = [path for path in (ROOT / "src" / "becausal").rglob("*") if path.suffix in (".py", ".html", ".js", ".json")]
GONE = (
    r"three nested levels", r"with three levels", r'level "any"', r"level `any`", r"fully grey", r"filled with grey",
    r"from a score of \S+ on", r"mutants that show (a|the) pixel", r"with \d+ % confidence",
)  # fmt: skip


def test_old_words_are_gone() -> None:
    texts = {path: " ".join(path.read_text(encoding="utf-8").split()) for path in [*PAGES, *SOURCES]}
    assert not [(path.name, words) for path, text in texts.items() for words in GONE if re.search(words, text)]


def test_every_option_of_a_request_is_in_the_docstring_of_explain() -> None:
    text = inspect.getdoc(becausal.explain) or ""
    assert {field.name for field in fields(Request)} <= set(re.findall(r"^ {4}(\w+): ", text, re.MULTILINE))
    assert {"enough", "core"} <= set(re.findall(r"`(\w+)`", text))


def test_an_unknown_label_is_answered_with_the_labels_of_the_bundled_classifier() -> None:
    labels = load_model("bundled").info.labels
    assert labels is not None
    with pytest.raises(TargetError) as caught:
        find_label("zzz", labels)
    assert all(label in str(caught.value) for label in labels)

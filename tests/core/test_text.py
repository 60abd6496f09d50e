"""Text from anywhere, made safe: for one line, for files, for spreadsheets."""

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from becausal.core.contracts import UNWRITABLE, ModelInfo
from becausal.core.text import from_cell, one_line, replace_surrogates, to_cell
from becausal.lab.rows import read_table, table_text
from becausal.models.labels import read_labels, read_metadata_labels


def slow_line(text, limit):
    """The definition."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())[:limit]


@given(st.text(max_size=40), st.sampled_from([None, 5, 100]))
def test_one_line_is_what_it_was(text, limit):
    assert one_line(text, limit) == slow_line(text if limit is None else text[: 8 * limit], limit)


def test_the_line_of_a_long_text_takes_no_time():
    text = "a\n" * 20_000_000
    start = time.perf_counter()
    assert one_line(text, 300) == ("a " * 150)
    assert time.perf_counter() - start < 1


FORMULAS = ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "'=1", "''-x", '=HYPERLINK("http://x")']
HARMLESS = ["bus", "'tis", "", "a=b", "3-4", "''", " x"]


@pytest.mark.parametrize("text", FORMULAS)
def test_no_text_is_a_formula(text):
    assert to_cell(text) == f"'{text}"
    assert from_cell(to_cell(text)) == text


@pytest.mark.parametrize("value", [*HARMLESS, -0.5, -3, 1e-9, None, True])
def test_other_cells_stay_as_they_are(value):
    assert to_cell(value) is value
    assert from_cell(str(value)) == str(value)


@given(st.text())
def test_cells_give_back_any_text(text):
    assert from_cell(to_cell(text)) == text


def test_tables_of_a_bench_give_back_what_was_written(tmp_path):
    rows = [{"name": text, "value": -0.5, "count": -3} for text in FORMULAS if text.strip() == text]
    (tmp_path / "t.csv").write_text(table_text(rows))
    assert "\n=" not in table_text(rows)
    assert read_table(tmp_path / "t.csv") == rows


def test_surrogates_are_replaced_once_where_labels_are_read(tmp_path):
    assert replace_surrogates("a\ud800b\udfff é 🚌") == "a\ufffdb\ufffd é 🚌"
    (tmp_path / "names.json").write_text(json.dumps(["a\ud800", "b"]))
    for labels in (
        read_labels(tmp_path / "names.json"),
        read_metadata_labels({"names": json.dumps({0: "a\ud800", 1: "b"})}).names,
        read_metadata_labels({"names": repr({0: "a\ud800", 1: "b"})}).names,
    ):
        info = ModelInfo("x", "test", None, None, labels, "probabilities", "none", notes=("first",))
        assert info.labels == ("a\ufffd", "b")
        assert info.notes == ("first", UNWRITABLE)
    assert ModelInfo("x", "test", None, None, ("a", "b"), "probabilities", "none").notes == ()

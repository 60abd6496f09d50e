"""Options are defined once, and every interface takes them from there.

A new option that explanations have in common is one field, made with `core.options.option`:

- in `Request` (core/request.py) if it says what to explain or how to search,
- in `Loading` (models/loading.py) if it says how the model is loaded.

Besides, it goes into the signature of the front door, `becausal.explain` or `becausal.load_model`, and into the place that
uses it. The command line, the command in reports, saved explanations, batches and benches then have it: these tests add
imaginary options and look.
"""

import json
import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated

import numpy as np
import pytest
import typer

from becausal.batch.inputs import Inputs
from becausal.batch.settings import BatchJob, settings_of
from becausal.core.errors import FillError, OptionError
from becausal.core.options import as_words, list_options, option
from becausal.core.request import Request
from becausal.images.fills import FILLS, Fill, make_background
from becausal.interfaces.cli import options
from becausal.interfaces.cli.app import app
from becausal.interfaces.cli.options import add_command, make_group
from becausal.interfaces.serve import page
from becausal.models.loading import Loading
from becausal.render.report import _list_asked


@dataclass(frozen=True, kw_only=True)
class WiderRequest(Request):
    patience: int = option(3, "Imaginary number of attempts.", metavar="N")
    regions: tuple[str, ...] = option((), "Imaginary region to prefer.", metavar="NAME", flag="--region", parse=tuple)
    is_careful: bool = option(False, "Imaginary flag.", flag="--careful")


@dataclass(frozen=True, kw_only=True)
class WiderLoading(Loading):
    quantise: float | None = option(None, "Imaginary quantisation.", metavar="BITS")


def parse(*words: str) -> tuple[WiderRequest, WiderLoading]:
    """What a command gets that takes the wider records."""
    taken: list[tuple[WiderRequest, WiderLoading]] = []

    @options.expand_options
    def command(
        *,
        request: Annotated[Request, options.group_of(WiderRequest)],
        loading: Annotated[Loading, options.group_of(WiderLoading)],
    ) -> None:
        taken.append((request, loading))

    group = make_group("Imaginary commands.")
    add_command(group, "go", command)
    group(["go", *words], standalone_mode=False)
    return taken[0]


def test_the_command_line_has_a_new_option() -> None:
    assert parse() == (WiderRequest(), WiderLoading())
    words = ["--patience", "7", "--region", "sky", "--region", "sea", "--careful", "--quantise", "4.5", "--seed", "2"]
    request, loading = parse(*words)
    assert request == WiderRequest(patience=7, regions=("sky", "sea"), is_careful=True, seed=2)
    assert loading == WiderLoading(quantise=4.5)


def test_the_help_of_a_new_option_has_its_default(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(IndexError):
        parse("--help")
    shown = " ".join(capsys.readouterr().out.split())
    assert "--patience N Imaginary number of attempts. Default: 3." in shown
    assert "--careful Imaginary flag." in shown
    assert "<" not in shown


def test_records_have_a_new_option() -> None:
    request = WiderRequest(patience=7, regions=("sky",), fills=("black", "blur"), options={"parts": 3})
    record = json.loads(json.dumps(request.record()))
    assert (record["patience"], record["regions"], record["fills"]) == (7, ["sky"], ["black", "blur"])
    assert WiderRequest.from_record(record) == request
    loading = WiderLoading(quantise=4.5, labels=("a", "b"))
    record = json.loads(json.dumps(loading.record()))
    assert record == {"quantise": 4.5, "labels": ["a", "b"]}
    assert WiderLoading.from_record(record) == loading
    with pytest.raises(OptionError, match="quantise"):
        Loading.from_record(record)


def test_given_loading_options_replace_saved_ones() -> None:
    saved = WiderLoading(quantise=4.0, resize="256", endpoint=("timeout=5",))
    assert WiderLoading(quantise=8.0).over(saved) == WiderLoading(quantise=8.0, resize="256", endpoint=("timeout=5",))


def test_the_settings_of_a_batch_have_a_new_option() -> None:
    job = BatchJob(model="bundled", request=WiderRequest(patience=7), loading=WiderLoading(quantise=4.5))
    settings = settings_of(job, Inputs([]))
    assert settings["request"]["patience"] == 7
    assert settings["loading"]["quantise"] == 4.5


def flags_of(record: type) -> set[str]:
    return {each.flag for each in list_options(record)}


def offered_by(name: str) -> set[str]:
    command = typer.main.get_command(app).commands[name]  # type: ignore[attr-defined]
    return {flag for parameter in command.params for flag in parameter.opts}


@pytest.mark.parametrize("name", ["explain", "batch", "compare", "bench", "serve", "inspect", "verify"])
def test_every_command_with_a_model_offers_all_loading_options(name: str) -> None:
    assert flags_of(Loading) <= offered_by(name)


@pytest.mark.parametrize("name", ["explain", "batch"])
def test_explaining_commands_offer_all_request_options(name: str) -> None:
    assert flags_of(Request) <= offered_by(name)
    assert not {"--robust", "--complete", "--partitions"} & offered_by(name)


@pytest.mark.parametrize(
    ("name", "missing"),
    [("compare", {"--method", "--option", "--several"}), ("bench", {"--method", "--option", "--box", "--at"})],
)
def test_commands_with_several_methods_offer_all_but_those_of_one(name: str, missing: set[str]) -> None:
    assert flags_of(Request) - offered_by(name) == missing


def test_every_field_of_the_records_is_an_option() -> None:
    for record in (Request, Loading):
        assert [each.name for each in list_options(record)] == [field.name for field in fields(record)]


def test_the_documentation_has_every_option() -> None:
    tables = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")
    assert [
        flag for flag in sorted(flags_of(Request) | flags_of(Loading)) if not re.search(rf"[` ]{flag}[ `]", tables)
    ] == []


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--fill", "grey", "--fill", "blur"], WiderRequest(fills=("grey", "blur"))),
        (["--method", "lime", "--option", "samples=5"], WiderRequest(method="lime", options={"samples": "5"})),
        (["--grain", "none", "--target", "3"], WiderRequest(grain=None, target="3")),
    ],
)
def test_texts_become_values(words: list[str], expected: WiderRequest) -> None:
    assert parse(*words)[0] == expected


def test_the_command_in_a_report_has_a_new_option() -> None:
    values = {"patience": 7, "regions": ["sky", "sea"], "is_careful": True, "seed": 2, "grain": None, "confidence": 0.5}
    words = as_words(WiderRequest, WiderRequest().record() | values)
    assert parse(*words)[0] == WiderRequest(
        patience=7, regions=("sky", "sea"), is_careful=True, seed=2, grain=None, confidence=0.5
    )
    assert as_words(WiderRequest, WiderRequest().record()) == []


def test_a_new_fill_is_known_everywhere(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """It is a row of `images.fills.FILLS`."""
    monkeypatch.setitem(FILLS, "stripes", Fill(lambda view, rng: view[::-1]))
    view = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    made = make_background("stripes", view, rng=np.random.default_rng(0))
    assert (made == view[::-1]).all()
    with pytest.raises(IndexError):
        parse("--help")
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "inpaint, stripes, '#rrggbb'" in shown
    with pytest.raises(FillError, match="inpaint, stripes, #rrggbb"):
        make_background("nothing", view, rng=np.random.default_rng(0))


def test_the_report_has_a_new_option() -> None:
    rows = _list_asked(WiderRequest(patience=7, regions=("sky",), is_careful=True, seed=2))
    assert rows == [("patience", 7), ("region", ["sky"]), ("careful", "yes")]


def test_the_page_has_a_control_for_a_new_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "Request", WiderRequest)
    controls = page.plain_controls()
    assert controls["patience"] == {"kind": "number", "help": "Imaginary number of attempts."}
    assert controls["is_careful"] == {"kind": "checkbox", "help": "Imaginary flag."}

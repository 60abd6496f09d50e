"""Options given in Python are checked as on the command line: one clear sentence, never a raw error."""

import json

import numpy as np
import pytest
from PIL import Image

import becausal
from becausal.api import Request
from becausal.core.errors import FillError, OptionError
from becausal.interfaces.cli.app import main
from test_engine import Model, picture

WRONG = {
    "grain": ("x", 2.5, True, 0, -4, 10**22, [4], float("nan")),
    "seed": (-1, True, 1.5, "7", None, 10**30),
    "top": (0, True, 1.0, "3", None, -2),
    "several": (0, True, 2.5, "2", 10**9),
    "max_calls": (True, 9, -1, 50.0, "50"),
    "confidence": ("x", float("nan"), 0, -0.1, 1.1, True, float("inf"), "0.9"),
    "target": (True, 1.5, -1, [1]),
    "against": (False, 0.5, -3),
    "contrast": (1, "yes", None),
    "method": (3, None),
    "options": ("a=1", 5),
    "fills": ("grey", None, (), 5, (5,), (None,), ("grey", b"x"), b"grey", {"grey": 1}),
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in WRONG.items() for value in values])
def test_a_request_refuses_what_makes_no_sense_in_one_sentence(name, value):
    with pytest.raises(OptionError) as caught:
        Request(**{name: value})
    message = str(caught.value)
    assert name.removesuffix("s") in message
    assert "\n" not in message
    assert not message.endswith(".")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (name, value)
        for name, values in WRONG.items()
        for value in values
        if name != "fills" and (name, value) != ("grain", [4])
    ],
)
def test_the_front_door_refuses_it_too(name, value):
    with pytest.raises(OptionError):
        becausal.explain(picture(), Model(), **{name: value})


@pytest.mark.parametrize("fill", [None, True, b"grey", (1, 2, 3), object(), ("grey", 0), ()])
def test_a_fill_is_a_name_a_number_or_several_names(fill):
    with pytest.raises(OptionError):
        becausal.explain(picture(), Model(), fills=fill)


@pytest.mark.parametrize("fill", [256, -1, 0.5, 1e9, float("nan"), "256", "300,0,0", "pink"])
def test_a_number_that_does_not_fit_an_image_is_a_fill_error(fill):
    image = np.zeros((8, 8, 3), np.uint8)
    with pytest.raises(FillError, match="fill"):
        becausal.explain(image, lambda batch: np.tile([0.2, 0.8], (len(batch), 1)), fills=fill)


@pytest.mark.parametrize("fill", [0, 0.0, "0", np.float32(0), np.int64(0)])
def test_a_signal_takes_a_number_in_its_own_units(fill):
    explanation = becausal.explain(picture() + 5, Model(needed=300.0), fills=fill)
    assert (explanation.backgrounds[0] == 0).all()
    assert float(explanation.origin.request.fills[0]) == 0
    assert explanation.checks.sufficient


def test_numbers_of_numpy_are_kept_as_plain_ones():
    request = Request(seed=np.int64(3), top=np.int32(2), grain=np.uint8(4), confidence=np.float32(0.5), fills=["grey"])
    assert json.loads(json.dumps(request.record()))["seed"] == 3
    assert request == Request(seed=3, top=2, grain=4, confidence=0.5, fills=("grey",))
    assert Request.from_record(request.record()) == request


@pytest.mark.parametrize("options", [{"batch_size": 0}, {"batch_size": True}, {"batch_size": 2.0}, {"batch_size": "8"}])
def test_batch_sizes_that_make_no_sense_are_refused(options):
    with pytest.raises(OptionError, match="batch_size"):
        becausal.explain(picture(), Model(), **options)


def test_the_other_doors_check_what_they_are_given():
    with pytest.raises(OptionError, match="top"):
        becausal.classify(picture(), Model(), top=0)
    with pytest.raises(OptionError, match="Request"):
        becausal.explain_many([picture()], Model(), request={"seed": 1})


def test_a_grain_larger_than_the_view_costs_no_memory():
    explanation = becausal.explain(picture(), Model(needed=100.0), fills="black", grain=2**31 - 1)
    assert explanation.size == 1


@pytest.mark.parametrize(
    "words",
    [
        ("--seed", "-1"),
        ("--seed", str(10**30)),
        ("--grain", "0"),
        ("--grain", str(10**22)),
        ("--top", "0"),
        ("--several", "0"),
        ("--max-calls", "3"),
        ("--confidence", "nan"),
        ("--fill", "256"),
        ("--fill", "0.5"),
    ],
)
def test_the_command_line_says_the_same_in_one_line(words, tmp_path, capsys):
    Image.fromarray(np.zeros((32, 32, 3), np.uint8)).save(tmp_path / "a.png")
    assert main(["explain", str(tmp_path / "a.png"), "--model", "bundled", "--out", str(tmp_path / "out"), *words]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert "unexpected" not in lines[0]
    assert words[0].strip("-").split("-")[-1] in lines[0]

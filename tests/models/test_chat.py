"""Chat models, asked over HTTP: a small server answers questions about scenes, with faults. It is tests/chat_server.py."""

import json
import math
import os
import signal
import sqlite3
import threading
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from chat_server import LABELS, ChatServer
from hypothesis import given, settings, strategies
from PIL import Image

import becausal
from becausal.core.errors import AnswerError, FillError, ModelError, NetworkError, OptionError
from becausal.interfaces.cli.app import main
from becausal.models import load_model
from becausal.models.chat import OTHER
from becausal.models.endpoint import transport as http
from becausal.models.endpoint.answers import differ_at_once, plain, read_answer, read_scores
from becausal.models.endpoint.cache import FILE
from becausal.scenes import make_scene

ASK = "What is in the image?"
LOADING = 2  # questions when a model is loaded
SECRET = "sk-0123456789abcdef"


@pytest.fixture(scope="module")
def running():
    server = ChatServer()
    yield server
    server.stop()


@pytest.fixture
def server(running, tmp_path, monkeypatch):
    """The server as new, an empty cache, and pauses too short to notice."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(http, "FIRST_PAUSE", 0.01)
    monkeypatch.chdir(tmp_path)
    running.set()
    return running


@pytest.fixture(scope="module")
def house():
    return make_scene(112).image


def load(server, **options):
    return load_model(server.spec, **{"ask": ASK, "resize": "squash/64"} | options)


def explain(image, model, **options):
    return becausal.explain(image, model, **{"fills": "grey", "max_calls": 40} | options)


def noise(count, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (count, 64, 64, 3), np.uint8)


# What is said


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("Mug", "mug"), (" A mug.\n", "mug"), ("**The** red-brown  Mug!", "red brown mug"), ("`mug`", "mug"), ("A", "a"),
        ("The", "the"), ("B)", "b"), ("3.5 litres", "3.5 litres"), ("35.", "35"), ("-5 °C", "-5 °c"), ("1,000", "1,000"),
        ("„Tasse“", "tasse"), ("Straße", "strasse"), ("コップ。", "コップ"), ("हिन्दी", "हिन्दी"), ("👍", "👍"), ("?!", "?!"),
        ("yes, it is", "yes it is"),
        ("x\ud800y", "x\ufffdy"), ("", ""),
    ],
)  # fmt: skip
def test_answers_are_compared_in_plain_form(said, expected):
    assert plain(said) == expected
    assert plain(plain(said)) == plain(said)


@pytest.mark.parametrize(
    ("choices", "expected"),
    [
        (["cat", "dog"], True), (["bus", "butterfly"], True), (["no", "nothing"], False), (["red car", "red bus"], False),
        (["traffic light", "light"], True), (["1", "10"], False),
    ],
)  # fmt: skip
def test_choices_differ_at_once(choices, expected):
    assert differ_at_once(choices) == expected
    assert differ_at_once(choices[::-1]) == expected


CASES = {
    "one word": ([("cat", {"cat": 0.7, "dog": 0.2, "I": 0.1})], "cat", [0.7, 0.2, 0.1]),
    "another case beside it": ([("Cat", {"Cat": 0.5, "cat": 0.3, "Dog": 0.2})], "cat", [0.5, 0.2, 0.0]),
    "an article first": ([("A", {"A": 1.0}), (" cat", {" cat": 0.6, " dog": 0.4}), (".", {".": 1.0})], "cat", [0.6, 0.4, 0]),
    "white space and quotes first": ([('\n"', {'\n"': 1.0}), ("dog", {"dog": 0.9, "cat": 0.1})], "dog", [0.1, 0.9, 0.0]),
    "half a word": ([("do", {"do": 0.8, "ca": 0.2}), ("g", {"g": 1.0})], "dog", [0.2, 0.8, 0.0]),
    "an article beside it": ([("cat", {"cat": 0.6, "the": 0.4})], "cat", [0.6, 0.0, 0.0]),
    "another answer": ([("I", {"I": 0.6, "cat": 0.4}), (" see", {" see": 1.0})], "i see", [0.4, 0.0, 0.6]),
    "more than a choice": ([("cat", {"cat": 0.6, "dog": 0.4}), (" food", {" food": 1.0})], "cat food", [0, 0.4, 0.6]),
    "as likely as another": ([("dog", {"dog": 0.5, "cat": 0.5})], "dog", [0.49995, 0.5, 0.0]),
    "not the likeliest": ([("dog", {"dog": 0.3, "cat": 0.7})], "dog", None),
    "tokens of another text": ([("Hmm", {"Hmm": 1.0})], "cat", None),
    "no tokens": ([], "cat", None),
    "nothing but quotes": ([('"', {'"': 1.0})], "cat", None),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_scores_are_of_the_first_token_that_tells(name):
    tokens, text, expected = CASES[name]
    found = read_scores(tokens, text, ["cat", "dog"])
    assert found is None if expected is None else np.allclose(found, expected)
    if found is not None:  # what is said is the top label, whatever the numbers
        assert int(np.argmax(found)) == {"cat": 0, "dog": 1}.get(text, 2)


def test_a_token_that_begins_two_choices_tells_nothing():
    tokens = [("s", {"s": 0.9, "d": 0.1}), ("nake", {"nake": 1.0})]
    assert read_scores(tokens, "snake", ["snake", "ship", "dog"]) is None
    beside = [("dog", {"dog": 0.6, "s": 0.4})]
    assert np.allclose(read_scores(beside, "dog", ["snake", "ship", "dog"]), [0, 0, 0.6, 0])


def response(logprob, text="cat"):
    top = [{"token": "cat", "logprob": logprob}, {"token": "dog", "logprob": -9999}]
    return {"choices": [{"message": {"content": text}, "logprobs": {"content": [{**top[0], "top_logprobs": top}]}}]}


@pytest.mark.parametrize(
    ("logprob", "expected"),
    [(math.log(0.5), [0.5, 0, 0]), (1e-5, [1, 0, 0]), (math.nan, None), (0.5, None), ("0", None), (None, None), ([], None)],
)
def test_log_probabilities_that_are_none_are_no_scores(logprob, expected):
    found = read_answer(response(logprob), ["cat", "dog"])
    assert found.text == "cat"
    assert found.scores is None if expected is None else np.allclose(found.scores, expected)


def test_an_answer_without_end():
    with pytest.raises(AnswerError, match="sent an answer of 5,000 characters; expected a short one"):
        read_answer(response(0.0, "x" * 5000), [])


KEYS = ("choices", "message", "content", "refusal", "finish_reason", "logprobs", "token", "logprob", "top_logprobs")
LEAVES = strategies.none() | strategies.booleans() | strategies.floats() | strategies.text(max_size=6)
ANYTHING = strategies.recursive(
    LEAVES | strategies.just("cat"),
    lambda inner: strategies.lists(inner, max_size=3) | strategies.dictionaries(strategies.sampled_from(KEYS), inner),
    max_leaves=12,
)


@given(message=ANYTHING, logprobs=ANYTHING, whole=ANYTHING)
@settings(max_examples=200, deadline=None)
def test_whatever_a_server_sends_is_an_answer_or_refused(message, logprobs, whole):
    for content in ({"choices": [{"message": message, "logprobs": {"content": logprobs}}]}, {"choices": whole}):
        with suppress(AnswerError):  # and nothing else
            found = read_answer(content, ["cat", "dog"])
            assert found.text == plain(found.text)
            assert found.scores is None or (len(found.scores) == 3 and all(0 <= score <= 1 for score in found.scores))


# Answers, through the network stack


@pytest.mark.smoke
def test_choices_with_log_probabilities(server, house):
    model = load(server, labels=LABELS)
    info = model.info
    assert (info.output, info.labels, info.is_costly, info.kind) == ("probabilities", (*LABELS, OTHER), True, "chat")
    views = np.concatenate([noise(3), np.asarray(Image.fromarray(house).resize((64, 64)))[None]])
    scores = model.classify(views)
    assert scores.shape == (4, len(LABELS) + 1)
    assert scores.dtype == np.float32
    for row, view in zip(scores, views, strict=True):
        assert np.allclose(row[:-1], server.chances(png(view)), atol=1e-4)  # 1e-9 at least; ties are broken
        assert row[-1] == 0
    (asked, *_), first = [server.requests[-1]["messages"][0]["content"]], server.requests[0]
    assert asked[0]["text"] == f"{ASK}\nAnswer with one of these, and nothing else: {', '.join(LABELS)}."
    assert (first["temperature"], first["seed"], first["model"], first["top_logprobs"]) == (0, 0, "scenes-vl", 20)
    assert len(server.requests) == LOADING + 4
    explanation = explain(house, model)
    assert (explanation.label, explanation.checks.sufficient) == ("house", True)
    assert math.isclose(explanation.confidence, scores[3].max(), abs_tol=0.02)
    assert explanation.origin.loading["labels"] == LABELS  # the choices, without what stands for all others
    assert explanation.origin.loading["endpoint"] == ["model=scenes-vl"]


def png(pixels):
    from becausal.images.loading import encode_png

    return encode_png(pixels)


@pytest.mark.parametrize(
    ("settings", "options", "has_note"),
    [
        ({"logprobs": "no"}, {}, True),
        ({"logprobs": "refused"}, {}, True),
        ({"logprobs": "forbidden"}, {}, True),
        ({"refused": ["top_logprobs"]}, {}, True),
        ({}, {"endpoint": {"logprobs": "no"}}, False),
        ({}, {"labels": [*LABELS, "traffic sign"]}, True),
    ],
)
def test_labels_only_where_there_are_no_scores(settings, options, has_note, server, house):
    server.set(**settings)
    model = load(server, **{"labels": LABELS} | options)
    assert model.info.output == "labels"
    assert any("labels only" in note for note in model.info.notes) == has_note
    views = noise(3)
    expected = [int(np.argmax(server.chances(png(view)))) for view in views]
    assert model.classify(views).tolist() == expected
    assert "logprobs" not in server.requests[-1]
    explanation = explain(house, model)
    assert explanation.label == "house"
    assert math.isnan(explanation.confidence)


def test_an_answer_that_is_none_of_the_choices(server, house):
    choices = [name for name in LABELS if name != "house"]
    for behaviour, label in (({}, OTHER), ({"logprobs": "no"}, "house")):
        server.set(**behaviour)
        model = load(server, labels=choices)
        explanation = explain(house, model)
        assert explanation.label == label
    notes = explain(house, (server.set(), load(server, labels=choices))[1]).notes
    assert any(f"{OTHER!r} is any that is none of the choices" in note and "'house'" in note for note in notes)


@pytest.mark.smoke
def test_free_answers_are_names(server, house):
    server.set(form="**A** {}.", logprobs="no")
    model = load(server)
    assert (model.info.output, model.info.labels) == ("labels", None)
    explanation = explain(house, model, target="house") if explain(house, model).label == "house" else None
    assert explanation.label == "house"
    assert server.requests[-1]["messages"][0]["content"][0]["text"] == f"{ASK}\nAnswer with one word or a short phrase."
    with pytest.raises(becausal.BecausalError, match="the model does not say i see no image here, but house"):
        explain(house, model, target="i see no image")


def test_inspect_says_that_free_answers_are_names(server, capsys):
    assert main(["inspect", server.spec, "--ask", ASK]) == 0
    assert "names, as the model returns them" in capsys.readouterr().out


def test_a_free_answer_has_no_number_and_a_choice_has_one(server, house, capsys):
    Image.fromarray(house).save("house.png")
    Path("names.txt").write_text("\n".join(LABELS))
    server.set(form="{}.", logprobs="no")
    for words, said in ([], "   house\n"), (["--labels", "names.txt"], f"house ({LABELS.index('house')})\n"):
        assert main(["inspect", server.spec, "house.png", "--ask", ASK, *words]) == 0
        assert said in capsys.readouterr().out


def test_the_default_view_is_the_whole_image(server):
    wide = np.zeros((100, 200, 3), np.uint8)
    model = load(server, resize=None)
    assert str(model.info.geometry) == "letterboxed to 448x448, bilinear"
    assert any("letterboxed to 448x448" in note for note in model.info.notes)
    assert str(load(server, resize="squash/96").info.geometry) == "squashed to 96x96, bilinear"
    assert str(load(server, resize="letterbox").info.geometry) == "letterboxed to 448x448, bilinear"
    assert str(load(server, resize=96).info.geometry) == "short side to 96, bilinear, centre crop 96x96"
    assert becausal.classify(wide, model)


# Few calls, and how they are made


@pytest.mark.parametrize("parallel", [1, 3])
def test_requests_at_a_time(parallel, server):
    model = load(server, endpoint={"parallel": parallel, "cache": None}, batch_size=8)
    server.set(delay=0.05)
    model.classify(noise(8))
    assert server.most == parallel
    assert load(server).batch_size == 4


def test_the_rate_is_of_all_connections_together(server):
    model = load(server, endpoint={"rate": 20, "cache": None})
    begun = time.monotonic()
    model.classify(noise(6))
    assert time.monotonic() - begun >= 5 / 20


def test_a_connection_that_fails_at_its_first_request_is_tried_again(server):
    model = load(server, endpoint={"timeout": 0.5, "cache": None})  # one connection has answered so far
    server.set([{"sleep": 1.5}] * 4)
    assert len(model.classify(noise(4))) == 4
    assert len(server.requests) == 8


def test_equal_images_of_a_batch_are_sent_once(server):
    model = load(server, batch_size=8)
    views = noise(1).repeat(5, axis=0)
    assert len(set(model.classify(views).tolist())) == 1
    assert len(server.requests) == LOADING + 1


@pytest.mark.smoke
def test_a_run_that_is_repeated_is_free(server, house):
    first = explain(house, load(server, labels=LABELS))
    asked = len(server.requests)
    server.set()
    model = load(server, labels=LABELS, endpoint={"price": 0.5})
    again = explain(house, model)
    assert len(server.requests) == LOADING
    assert (again.calls, again.confidence, again.checks) == (first.calls, first.confidence, first.checks)
    assert np.array_equal(again.visible, first.visible)
    spent = "1.00 spent so far at 0.5 per answer: 2 answers by the server (2 of them when it was loaded)"
    assert f"{spent}, {asked - LOADING} answered from the cache" in model.info.notes
    # Another question, another model, or other answers at the beginning: nothing is taken from the cache.
    server.set()
    load(server, labels=LABELS, ask="Why?").classify(noise(1))
    load(server, labels=LABELS[:5]).classify(noise(1))
    load(server, labels=LABELS, endpoint={"cache": None}).classify(noise(1))
    assert len(server.requests) == 3 * (LOADING + 1)


def test_what_was_paid_for_is_kept_when_the_server_fails(server, house):
    whole = explain(house, load(server, labels=LABELS))
    Path("cache/becausal", FILE).unlink()
    server.set([None] * 20 + [{"status": 500}] * 200)
    found = explain(house, load(server, labels=LABELS))
    assert found.stopped_by == "failure"
    assert "refused the question: 500" in found.notes[-1]
    server.set()
    again = explain(house, load(server, labels=LABELS))
    assert np.array_equal(again.visible, whole.visible)
    assert len(server.requests) <= LOADING + whole.calls - (20 - LOADING) + 4


def test_an_answer_that_changes_is_noticed(server, house, monkeypatch):
    model, count = load(server, endpoint={"cache": None}), iter(range(10_000))
    honest = server.chances
    monkeypatch.setattr(server, "chances", lambda data: np.roll(honest(data), next(count) % 2))
    with pytest.raises((AnswerError, becausal.BecausalError)):
        explain(house, model)


def test_the_third_digit_of_a_probability_may_change(server, house):
    """A server that calculates in half precision, and answers others at the same time, as most do."""
    server.set(jitter=0.004)
    model = load(server, labels=LABELS, endpoint={"cache": None})
    explanation = explain(house, model)
    asked = np.concatenate([model.classify(explanation.view[None]) for _ in range(3)])
    assert 0.001 < np.ptp(asked, axis=0).max() < 0.05
    assert explanation.checks.sufficient
    assert not any("depend on the batch" in note for note in explanation.notes)


def test_an_answer_that_always_changes_is_noticed(server, house, monkeypatch):
    count = iter(range(10_000))
    model = load(server, endpoint={"cache": None})
    monkeypatch.setattr(server, "answer", lambda *_: (200, {"choices": [{"message": {"content": f"answer {next(count)}"}}]}))
    with pytest.raises(becausal.BecausalError, match="gave two different answers to the same image: ask for a shorter"):
        explain(house, model)


def test_an_answer_that_changes_later_is_noticed_in_plain_words(server, house, monkeypatch):
    model, honest, is_over = load(server, endpoint={"cache": None}), server.chances, []
    monkeypatch.setattr(server, "chances", lambda data: np.roll(honest(data), len(is_over) % 7))

    def end(status):
        if status.calls >= 30:
            is_over.append(True)

    with pytest.raises(becausal.BecausalError, match=r"in two ways: ask for a shorter answer, or give choices"):
        explain(house, model, progress=end)


def test_ctrl_c_waits_for_no_answer(server):
    model = load(server, endpoint={"cache": None})
    server.set(delay=8)
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        model.classify(noise(4))
    assert time.monotonic() - begun < 5
    server.set()
    assert len(model.classify(noise(4))) == 4


# The same answer without the image


def test_the_same_answer_to_everything(server, house, capsys):
    server.set(always="mug")
    with pytest.raises(FillError) as caught:
        explain(house, load(server), fills="auto")
    assert str(caught.value) == (
        "with no image at all, the model says 'mug' as well: the image is not why, and there is nothing to explain"
    )
    assert len(server.requests) <= LOADING + 4  # no other fills are tried


@pytest.mark.parametrize("labels", [None, LABELS])
def test_the_same_answer_without_an_image_is_said_first(labels, server, house, capsys, without_figures):
    server.set(blank="The HOUSE.")
    Image.fromarray(house).save("house.png")
    words = ["--labels", ",".join(labels)] if labels else []
    arguments = ["explain", "house.png", "--model", server.spec, "--ask", ASK, "--resize", "squash/64", "--max-calls", "40"]
    assert main([*arguments, *words]) == 0
    out, _ = capsys.readouterr()
    said = "house.png: With no image at all, the model says house as well: the image may not be why."
    assert " ".join(out.split()).startswith(said)
    record = json.loads(Path("becausal-out/house/explanation.json").read_text())
    assert record["notes"][0] == "with no image at all, the model says 'house' as well: the image may not be why"
    assert said.removeprefix("house.png: ").split(":")[1].strip() in Path("becausal-out/house/report.html").read_text()


def test_the_same_answer_is_no_finding_where_something_else_is_asked(server, house):
    server.set(blank="The HOUSE.")
    model = load(server, labels=LABELS)
    for options in ({"top": 2}, {"against": "mug"}):
        notes = explain(house, model, **options).notes
        assert not any("the model says" in note for note in notes)
        assert "with no image at all, the answer is 'house'" in notes  # the fact, among the others


def test_another_answer_without_an_image_is_no_finding(server, house):
    # Neither is one of the choices: that they are called the same does not make them the same.
    explanation = explain(house, load(server, labels=[name for name in LABELS if name != "house"]))
    assert explanation.label == OTHER
    assert not any("the model says" in note for note in explanation.notes)
    server.set(blank=None)
    model = load(server)
    assert model.info.blank is None
    assert any("there is no answer" in note and "an image is required" in note for note in model.info.notes)


# Faults


def test_faults_that_pass_change_nothing(server, house):
    whole = explain(house, load(server, endpoint={"cache": None}))
    faults = [None, {"status": 503}, None, {"status": 429, "headers": {"Retry-After": "0"}}, None, {"sleep": 4.0},
              {"status": 502}, {"status": 504}]  # fmt: skip
    server.set(faults)
    again = explain(house, load(server, endpoint={"cache": None, "timeout": 3.0}))
    assert np.array_equal(again.visible, whole.visible)
    assert not server.faults


LASTING = {
    "slow": ({"sleep": 0.6}, "no answer within 0.3 s"),
    "overloaded": ({"status": 429, "error": "Rate limit reached"}, "429 Too Many Requests: Rate limit reached (3 attempts)"),
    "broken": ({"status": 500, "error": "CUDA\nerror"}, "refused the question: 500 Internal Server Error: CUDA error"),
    "too large": ({"status": 413, "error": "image too large"}, "413 Request Entity Too Large: image too large"),
    "no money": ({"status": 401, "error": "no quota"}, "401 Unauthorized: no quota"),
    "filtered": ({"finish": "content_filter"}, "refused to answer: content_filter"),
    "unwilling": ({"message": {"content": None, "refusal": "I can't\nhelp"}}, "refused to answer: I can't help"),
    "silent": ({"message": {"content": " "}}, "sent an empty answer (finish_reason stop)"),
    "thinking": ({"message": {"content": ""}, "finish": "length"}, "answer (finish_reason length): it may think first"),
    "a list": ({"message": {"content": [1]}}, "sent an empty answer"),
    "no JSON": ({"body": "<html>\noops"}, "not JSON: '<html> oops'"),
    "no object": ({"body": "[1]"}, "expected an object"),
    "no choices": ({"body": '{"choices": []}'}, "sent a response without an answer"),
    "no message": ({"body": '{"choices": [{"message": "x"}]}'}, "sent a response without an answer"),
}  # fmt: skip


@pytest.mark.parametrize("moment", ["loading", "asking"])
@pytest.mark.parametrize("name", LASTING)
def test_faults_that_last_give_one_line(name, moment, server, house, capsys):
    fault, said = LASTING[name]
    Image.fromarray(house).save("house.png")
    server.set(([None] * LOADING if moment == "asking" else []) + [fault] * 40)
    words = [f"--endpoint=timeout={0.3 if name == 'slow' else 20}", "--endpoint=retries=2", "--resize=squash/64"]
    status = main(["inspect", server.spec, "house.png", "--ask", ASK, *words])
    out, err = capsys.readouterr()
    assert (status, out) == (2, "")
    assert err.startswith("becausal: error: ")
    assert err.count("\n") == 1
    assert said in err
    assert "Traceback" not in err
    assert len(err) < 400


def test_scores_that_fail_later_are_not_mixed_with_labels(server):
    server.set([None] * (LOADING + 2) + [{"token": "Hmm"}] * 9)
    model = load(server, labels=LABELS)
    model.classify(noise(2))
    with pytest.raises(AnswerError, match=r"no log-probabilities that tell the choices apart .* add --endpoint logprobs=no"):
        model.classify(noise(2, seed=1))
    server.set()  # an answer without scores is not kept: it is asked for again
    assert load(server, labels=LABELS).classify(noise(2, seed=1)).shape == (2, len(LABELS) + 1)
    assert len(server.requests) == LOADING + 2


@pytest.mark.parametrize("name", ["temperature", "seed", "max_tokens"])
def test_parameters_that_a_server_does_not_take(name, server):
    server.set(refused=[name])
    model = load(server, labels=LABELS)
    assert model.info.output == "probabilities"
    model.classify(noise(1))
    last = server.requests[-1]
    assert name not in last
    assert {"temperature", "seed"} - {name} <= set(last)
    assert ("max_completion_tokens" in last) == (name == "max_tokens")
    assert any("answers may vary" in note for note in model.info.notes) == (name == "temperature")


def test_which_model_is_asked(server):
    server.set(models=["first", "second"])
    model = load(server)
    assert server.requests[-1]["model"] == "first"
    assert any("the first of 2 models is asked, first" in note for note in model.info.notes)
    load(server, endpoint={"model": "second"})
    assert server.requests[-1]["model"] == "second"
    server.set(models=[])
    with pytest.raises(ModelError, match=r"lists no models .*--endpoint model=NAME"):
        load(server)
    with pytest.raises(ModelError, match=r"v2 lists no models \(404 Not Found: Not Found\)"):
        load_model(server.spec.replace("/v1", "/v2"), ask=ASK)
    assert load_model(f"{server.spec}/chat/completions/", ask=ASK, endpoint={"model": "second"}).info.spec == server.spec


# Keys


@pytest.mark.smoke
def test_keys_are_sent_and_kept_nowhere(server, house, monkeypatch, capsys, without_figures):
    server.set(key=f"Bearer {SECRET}", form="{} said", echo="authorization")  # even where the server repeats it
    with pytest.raises(NetworkError, match=r"refuses a request without credentials .*token_env=VARIABLE"):
        load(server)
    monkeypatch.setenv("CHAT_KEY", SECRET)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-another")  # never sent unless it is named
    Image.fromarray(house).save("house.png")
    words = ["--endpoint", "token_env=CHAT_KEY", "--resize", "squash/64", "--max-calls", "30", "--ask", ASK]
    assert main(["explain", "house.png", "--model", server.spec.replace("//", "//me:pass99@"), *words]) == 0
    out, err = capsys.readouterr()
    assert server.headers["authorization"] == f"Bearer {SECRET}"
    server.set([{"status": 400, "error": f"bad key {SECRET}"}] * 9, key=f"Bearer {SECRET}")
    assert main(["inspect", server.spec, *words[:2], "--ask", ASK]) == 2
    out, err = (a + b for a, b in zip((out, err), capsys.readouterr(), strict=True))
    assert "bad key ***" in err
    connection = sqlite3.connect(Path("cache/becausal", FILE))
    assert connection.execute("SELECT count(*) FROM answers").fetchone()[0] > 10
    connection.close()
    everything = [path.read_bytes() for path in Path().rglob("*") if path.is_file()]
    for text in (out.encode(), err.encode(), *everything):
        assert SECRET.encode() not in text
        assert b"pass99" not in text
    assert b"token_env=CHAT_KEY" in Path("becausal-out/house/explanation.json").read_bytes()


def test_a_saved_answer_is_verified_only_with_a_named_server(server, house, capsys, without_figures):
    Image.fromarray(house).save("house.png")
    words = ["--labels", ",".join(LABELS), "--resize", "squash/64", "--ask", ASK]
    assert main(["explain", "house.png", "--model", server.spec, "--max-calls", "40", *words]) == 0
    server.set()
    capsys.readouterr()
    assert main(["verify", "becausal-out/house"]) == 2
    assert "--trust" in capsys.readouterr().err
    assert not server.requests
    assert main(["verify", "becausal-out/house", "--model", server.spec]) == 0, capsys.readouterr()
    assert len(server.requests) > LOADING  # past the cache


# The command line, and options


def test_the_price_is_said_before_it_begins(server, house, capsys, without_figures):
    Image.fromarray(house).save("house.png")
    words = ["--resize", "squash/64", "--ask", ASK, "--max-calls", "30", "--endpoint", "price=0.01"]
    assert main(["explain", "house.png", "--model", server.spec, *words]) == 0
    out, err = capsys.readouterr()
    assert err == f"becausal: note: at most 30 calls to {server.spec}, which cost 0.30: set another limit with --max-calls\n"
    assert "(budget 0.30)" in out
    assert len(server.requests) <= LOADING + 30
    assert main(["explain", "house.png", "--model", server.spec, *words[:-1], "price=0.0001"]) == 0
    out, err = capsys.readouterr()
    assert "which cost 0.0030: set" in err
    assert "(budget 0.0030)" in out
    choices = ["--labels", ",".join(LABELS), "--out", "two"]
    assert main(["explain", "house.png", "--model", server.spec, *words[:-2], *choices]) == 0
    page = " ".join(Path("two/house/report.html").read_text().split())
    assert f"--labels &#39;{','.join(LABELS)}&#39;" in page  # the choices are a part of the question


def test_the_price_of_a_batch_is_said_before_it_begins_and_at_its_end_once(server, house, capsys):
    Path("photos").mkdir()
    for name, image in (("one", house), ("two", house[::-1])):
        Image.fromarray(image).save(f"photos/{name}.png")
    words = ["--resize", "squash/64", "--ask", ASK, "--max-calls", "30", "--endpoint", "price=0.01"]
    assert main(["batch", "photos", "--model", server.spec, *words, "--out", "run"]) == 0
    out, err = capsys.readouterr()
    limit = "at most 30 calls for each of 2 images to the server, which cost 0.60"
    assert err == f"becausal: note: {limit}: set another limit with --max-calls\n"
    assert out.count("spent so far") == 1
    server.set()
    assert main(["batch", "photos", "--model", server.spec, *words[:-1], "price=much", "--out", "other"]) == 2
    assert capsys.readouterr().err == "becausal: error: the endpoint option price is a number above 0, not 'much'\n"
    assert not server.requests


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"ask": None}, "is asked a question about the image: add e.g. --ask"),
        ({"ask": " "}, "is asked a question about the image: add e.g. --ask"),
        ({"labels": ["cat"]}, "choices are two names or more"),
        ({"labels": ["a cat", "Cat!"]}, "which differ by their words, not 'a cat', 'Cat!'"),
        ({"device": "cuda"}, "remove --device"),
        ({"preprocess": "tf"}, "remove --preprocess"),
        ({"returns": "logits"}, "remove --returns"),
        ({"threshold": 0.5}, "remove --threshold"),
        ({"labels": ["", "cat", "dog"]}, "two names or more, which differ by their words, not '', 'cat', 'dog'"),
        ({"labels": ["cat", "Another answer"]}, "'another answer' is the label of all answers that are none of the choices"),
        ({"ask": 5}, "ask is 5; expected a text"),
        ({"text": "a cat"}, "text is for clip: models, not for chat"),
        ({"endpoint": {"shape": "N,3,8,8"}}, "the endpoint option shape is for oip: models, not for chat: remove it"),
        ({"endpoint": {"parallel": 0}}, "parallel is an integer from 1 to 64, not '0'"),
        ({"endpoint": {"parallel": 65}}, "parallel is an integer from 1 to 64, not '65'"),
        ({"endpoint": {"logprobs": "maybe"}}, "logprobs is one of auto, no, not 'maybe'"),
        ({"endpoint": {"speed": 1}}, "unknown endpoint option 'speed'; expected key=value with one of header, token_env"),
    ],
)
def test_options_that_are_not_for_it(options, said, server):
    with pytest.raises(OptionError) as caught:
        load(server, **options)
    assert said in str(caught.value)
    assert not server.requests


def test_options_of_chat_models_are_not_for_others(server):
    with pytest.raises(OptionError, match="parallel is for chat: models, not for oip: remove it"):
        load_model("oip:http://127.0.0.1:1/v2/models/x", endpoint={"parallel": 2})
    with pytest.raises(OptionError, match="ask is for chat: models, not for bundled"):
        load_model("bundled", ask=ASK)
    for spec in (
        "chat:127.0.0.1:8000/v1",
        "chat:http://host",
        "chat:http://me:secret@host:x/v1",
        "chat:http://h/v1?key=secret",
    ):
        with pytest.raises(ModelError, match="chat:") as caught:
            load_model(spec, ask=ASK)
        assert "secret" not in str(caught.value)

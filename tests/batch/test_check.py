"""`becausal check`: what each rule measures, and when it is broken."""

import json
import math
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from batch_toys import MODEL, write_coco, write_pictures
from check_toys import make_run, square, write_pixels
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import becausal
from becausal.batch.index import folder_of
from becausal.batch.reading import BatchRun
from becausal.batch.rules import read_rules
from becausal.batch.summaries import match_runs
from becausal.core.errors import InputError, OptionError, OutputError
from becausal.core.frames import Frame
from becausal.core.intervals import wilson_interval


def outcomes(verdict):
    return {rule.name: (rule.outcome, rule.broken, rule.judged) for rule in verdict.rules}


# Intervals


@given(st.integers(1, 400), st.data(), st.sampled_from([0.5, 0.8, 0.95, 0.99]))
def test_wilson_bounds_are_where_the_normal_test_is_on_the_edge(total, data, confidence):
    """The definition: all true shares p with |share - p| at most z standard deviations of a sample from p."""
    count = data.draw(st.integers(0, total))
    z = {0.5: 0.6744897501960817, 0.8: 1.2815515655446004, 0.95: 1.959963984540054, 0.99: 2.5758293035489004}[confidence]
    low, high = wilson_interval(count, total, confidence)
    share = count / total
    assert 0 <= low <= share <= high <= 1
    for bound, extreme in ((low, 0.0), (high, 1.0)):
        if bound != extreme:
            assert abs(share - bound) == pytest.approx(z * math.sqrt(bound * (1 - bound) / total), rel=1e-6)
    assert (low == 0) == (count == 0)
    assert (high == 1) == (count == total)


def chance_to_break(total, share, limit):
    """How often a rule is broken, on this many images, where each breaks it with this probability."""
    counts = [k for k in range(total + 1) if wilson_interval(k, total)[0] > limit]
    return sum(math.comb(total, k) * share**k * (1 - share) ** (total - k) for k in counts)


def test_a_gate_finds_what_its_page_says():
    """The numbers in docs/tasks/release-gate.md."""
    for total in (50, 100, 200, 400):
        for limit in (0.05, 0.1):
            assert 0.02 < chance_to_break(total, limit, limit) < 0.045
    assert all(chance_to_break(total, 0.1, 0.05) > 0.79 for total in (200, 220, 250))
    assert all(chance_to_break(total, 0.2, 0.05) > 0.79 for total in (35, 40, 50))


# Matching


class FakeRun:
    """Rows without a folder, for `match_runs`."""

    per_image = 1

    def __init__(self, *rows):
        empty = {"box": None, "box_left": None, "box_top": None, "box_right": None, "box_bottom": None}
        self._rows = [empty | {"id": k, "image": image, "sha256": digest} for k, (image, digest) in enumerate(rows)]

    def rows(self, where="1", *values):
        return iter([row for row in self._rows if where == "1" or values[0] <= row["id"] < values[1]])


def match_by_definition(ours, theirs):
    """Same path, then same content; of duplicates the nth with the nth."""
    found, rest, others = {}, list(ours.rows()), list(theirs.rows())
    for key in ("image", "sha256"):
        for row in list(rest):
            partner = next((other for other in others if other[key] is not None and other[key] == row[key]), None)
            if partner is not None:
                found[row["id"]] = partner["id"]
                rest.remove(row)
                others.remove(partner)
    return [(row["id"], found.get(row["id"])) for row in ours.rows()]


def as_numbers(pairs):
    return [(a["id"], None if b is None else b["id"]) for a, b in pairs]


def test_images_are_matched_by_path_then_by_content():
    ours = FakeRun(("a", "1"), ("a", "1"), ("b", "2"), ("c", None))
    theirs = FakeRun(("x/b", "2"), ("a", "9"), ("a", "1"), ("d", None))
    assert as_numbers(match_runs(ours, theirs)) == [(0, 1), (1, 2), (2, 0), (3, None)]


IMAGES = st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from(["1", "2", "3", None])), max_size=8)


@settings(max_examples=60)
@given(IMAGES, IMAGES)
def test_matching_on_disk_is_the_definition(ours, theirs):
    one, two = FakeRun(*ours), FakeRun(*theirs)
    assert as_numbers(match_runs(one, two)) == match_by_definition(one, two)


# Rules


def test_a_rules_file_is_read(tmp_path):
    path = tmp_path / "rules.toml"
    path.write_text("confidence = 0.9\n[outside]\nmasks = 'm'\n[necessary]\nmin_share = 0.9\n[forbidden]\nregion=[-8,0,8,8]")
    rules = read_rules(path)
    assert list(rules.by_name) == ["outside", "forbidden", "necessary", "failures"]
    outside, forbidden, necessary, failures = rules.by_name.values()
    assert (rules.confidence, outside.masks, outside.max_share) == (0.9, str(tmp_path / "m"), 0.05)
    assert necessary.max_share == 0.1  # not 0.09999999999999998
    assert forbidden.region == (-8, 0, 8, 8)
    assert failures.max_share == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "there are no rules"),
        ("outside = 3", "outside is 3"),
        ("[inside]", "unknown rule inside"),
        ("[outside]\nmaxshare = 1", "unknown field outside.maxshare; expected below, boxes, masks, max_share"),
        ("[outside]\nmax_share = 5", "[outside]: max_share is 5, expected a share from 0 to 1"),
        ("[outside]\nbelow = nan", "outside.below is NaN, expected a number"),
        ("[outside]\nboxes = 'a.json'\nmasks = 'm'", "give one of them"),
        ("[forbidden]", "[forbidden]: give either region"),
        ("[forbidden]\nregion = [1, 2, 3]", "expected [left, top, width, height]"),
        ("[forbidden]\nregion = [0, 0, 0, 4]", "expected [left, top, width, height]"),
        ("[forbidden]\nregion = [0, 0, 1.5, 4]", "forbidden.region[2] is 1.5, expected an integer"),
        ("[size]", "size.at_most is missing"),
        ("[necessary]\nmin_share = true", "necessary.min_share is true"),
        ("confidence = 1\n[failures]", "confidence is 1"),
        ("[failures", "cannot be read"),
        ("\udcff", "cannot be read"),
    ],
)
def test_bad_rules_are_refused_in_one_line(tmp_path, text, message):
    (tmp_path / "rules.toml").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(OptionError) as caught:
        read_rules(tmp_path / "rules.toml")
    assert message in str(caught.value)
    assert "rules.toml" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_rules_that_are_no_file_are_refused(tmp_path):
    with pytest.raises(InputError, match="there is no file"):
        read_rules(tmp_path / "none.toml")
    with pytest.raises(InputError, match="a folder"):
        read_rules(tmp_path)


# What each rule counts


def test_each_rule_counts_what_it_says(tmp_path):
    rows = [
        {"inside": 0.9},
        {"inside": 0.5, "necessary": 0},
        {"inside": 0.49, "size": 0.3, "necessary": None},
        {"size": 0.2},
        {"state": "failed", "error": "too dark"},
    ]
    rules = {"outside": {}, "size": {"at_most": 0.2}, "necessary": {"min_share": 0.5}, "failures": {}}
    verdict = becausal.check(make_run(tmp_path / "run", rows), rules=rules)
    assert {name: found[1:] for name, found in outcomes(verdict).items()} == {
        "outside": (1, 3),
        "size": (1, 4),
        "necessary": (1, 3),
        "failures": (1, 5),
    }
    assert verdict.images == 5
    by_name = {rule.name: rule for rule in verdict.rules}
    assert [rule.skipped for rule in verdict.rules] == [1, 0, 1, 0]
    assert [(each.id, each.detail) for each in by_name["outside"].worst] == [(2, "49 % inside")]
    assert [(each.id, each.label, each.detail) for each in by_name["failures"].worst] == [(4, None, "too dark")]


def test_explanations_that_depend_on_the_fill_are_counted(tmp_path):
    rows = [{"backgrounds": share} for share in (1.0, 0.5, 0.49, 0.0)] + [{"backgrounds": None}]
    run = make_run(tmp_path / "run", rows)
    verdict = becausal.check(run, rules={"backgrounds": {"max_share": 0.1}}, strict=True)
    rule = verdict.rules[0]
    assert (rule.name, rule.broken, rule.judged, rule.skipped, rule.outcome) == ("backgrounds", 2, 4, 1, "broken")
    assert [(each.id, each.detail) for each in rule.worst] == [
        (3, "0 % of random backgrounds"),
        (2, "49 % of random backgrounds"),
    ]
    assert becausal.check(run, rules={"backgrounds": {"at_least": 0.0}}).holds
    for wrong, said in (("cor", "backgrounds.set is \"cor\", expected 'core' or 'enough'"), (1, "backgrounds.set is 1")):
        with pytest.raises(OptionError, match=said):
            becausal.check(run, rules={"backgrounds": {"set": wrong}})
    none = make_run(tmp_path / "none", [{"backgrounds": None}])
    assert "was evaluated on random backgrounds" in str(becausal.check(none, rules={"backgrounds": {}}))


@pytest.mark.parametrize(
    ("rule", "judged", "worst", "breach"),
    [
        ({}, 3, [(3, "0 %"), (1, "49 %")], "the explanation keeps its label on less than 50 % of random backgrounds"),
        ({"set": "enough"}, 1, [], "enough keeps its label on less than 50 % of random backgrounds"),
        ({"set": "core"}, 2, [(0, "5.0 %"), (1, "49 %")], "core keeps its label on less than 50 % of random backgrounds"),
        ({"set": "core", "at_least": 0.04}, 2, [], "core keeps its label on less than 4 % of random backgrounds"),
    ],
)
def test_the_rule_about_backgrounds_judges_the_set_that_is_named(tmp_path, rule, judged, worst, breach):
    """The core is inside the explanation, or is the explanation itself; another set is neither."""
    run = make_run(
        tmp_path / "run",
        [
            {"level": "enough", "backgrounds": 1.0, "core_backgrounds": 0.05},
            {"level": "core", "backgrounds": 0.49, "core_backgrounds": None},
            {"level": "enough", "backgrounds": None, "core_backgrounds": None},
            {"level": "label", "backgrounds": 0.0, "core_backgrounds": None},
        ],
    )
    found = becausal.check(run, rules={"backgrounds": rule}).rules[0]
    assert (found.judged, found.breach) == (judged, breach)
    assert [(each.id, each.detail) for each in found.worst] == [
        (number, f"{share} of random backgrounds") for number, share in worst
    ]


def test_a_set_that_no_image_has_cannot_be_judged(tmp_path):
    run = make_run(tmp_path / "run", [{"level": "core", "backgrounds": 0.9}])
    assert f"no set enough of {run} was evaluated on random" in str(
        becausal.check(run, rules={"backgrounds": {"set": "enough"}})
    )


@given(st.integers(1, 60), st.data())
@settings(max_examples=30, deadline=None)
def test_a_rule_is_broken_where_the_lower_bound_is_above_its_limit(tmp_path_factory, total, data):
    broken, limit = data.draw(st.integers(0, total)), data.draw(st.sampled_from([0.0, 0.05, 0.2, 0.5, 1.0]))
    rows = [{"state": "failed", "error": "no"} if k < broken else {} for k in range(total)]
    run = make_run(tmp_path_factory.mktemp("any") / "run", rows)
    (plain,) = becausal.check(run, rules={"failures": {"max_share": limit}}).rules
    (strict,) = becausal.check(run, rules={"failures": {"max_share": limit}}, strict=True).rules
    low, high = wilson_interval(broken, total)
    assert (plain.low, plain.high, plain.share) == (low, high, broken / total)
    assert (plain.outcome == "broken") == (low > limit)
    assert (strict.outcome == "broken") == (broken / total > limit)
    assert plain.is_unclear == (plain.outcome == "holds" and strict.outcome == "broken")
    assert ("too few images" in plain.found) == plain.is_unclear
    assert plain.outcome == "holds" or strict.outcome == "broken"
    assert (plain.outcome == "broken") == (broken > 0) or limit > 0  # no tolerance is no tolerance


def test_the_confidence_is_the_stated_one(tmp_path):
    run = make_run(tmp_path / "run", [{"state": "failed", "error": "no"} if k < 3 else {} for k in range(20)])
    sure, likely = (
        becausal.check(run, rules={"confidence": confidence, "failures": {"max_share": 0.06}}) for confidence in (0.99, 0.6)
    )
    assert (sure.outcome, likely.outcome) == ("holds", "broken")


def test_the_worst_images_come_first_and_are_limited(tmp_path):
    rows = [{"inside": (7 * k % 40) / 100} for k in range(40)]
    rule, _ = becausal.check(make_run(tmp_path / "run", rows), rules={"outside": {"below": 0.3}}).rules
    assert rule.broken == 30
    assert [each.value for each in rule.worst] == [k / 100 for k in range(24)]


def test_a_forbidden_region_counts_pixels_of_the_original(tmp_path):
    visible = {0: square(0, 0), 1: square(20, 20), 2: square(10, 10), 3: square(18, 20)}
    run = make_run(tmp_path / "run", [{} for _ in range(4)], visible)

    def values(**rule):
        found, _ = becausal.check(run, rules={"forbidden": rule}).rules
        assert found.judged == 4
        return {each.id: each.value for each in found.worst}

    assert values(region=[0, 0, 8, 2]) == {0: 0.5}
    assert values(region=[-4, -4, 4, 4]) == {1: 1.0, 3: 0.5}
    assert values(region=[-4, -4, 4, 4], at_most=0.5) == {1: 1.0}
    Image.fromarray(np.where(square(8, 8, 8), 255, 0).astype(np.uint8)).save(tmp_path / "mark.png")
    assert values(mask=str(tmp_path / "mark.png")) == {2: 1.0}


def test_a_region_is_on_the_original_where_the_view_is_smaller(tmp_path):
    run = make_run(tmp_path / "run", [{}])
    write_pixels(folder_of(run, 0), square(0, 0, 6, (12, 12)), Frame((48, 48), (24, 24), (6, 6), (12, 12)))
    for region, share in (([0, 0, 48, 18], 0.5), ([0, 0, 12, 12], 0.0), ([12, 12, 12, 12], 1.0)):
        rule, _ = becausal.check(run, rules={"forbidden": {"region": region}}).rules
        assert [each.value for each in rule.worst] == ([share] if share else [])


def test_masks_have_the_names_of_their_images(tmp_path):
    names = ["a/1.jpg", "b/1.jpg", "2.jpg", "3.jpg", "../4.jpg", "5.jpg"]
    run = make_run(tmp_path / "run", [{"image": name} for name in names], {k: square(0, 0) for k in range(6)})
    inside, outside = (Image.fromarray(np.where(square(*at, 8), 200, 0).astype(np.uint8)) for at in ((0, 0), (12, 12)))
    for folder in ("masks", "masks/a"):
        (tmp_path / folder).mkdir()
    inside.save(tmp_path / "masks" / "a" / "1.png")
    outside.save(tmp_path / "masks" / "1.png")
    outside.save(tmp_path / "masks" / "2.png")
    Image.new("L", (24, 24)).save(tmp_path / "masks" / "3.png")  # black: there is no object
    inside.save(tmp_path / "4.png")  # outside of the folder
    rule, _ = becausal.check(run, rules={"outside": {"masks": str(tmp_path / "masks")}}).rules
    assert (rule.judged, rule.broken, rule.skipped) == (3, 2, 3)
    assert "; 3 more could not be judged" in rule.summary
    assert [each.id for each in rule.worst] == [1, 2]
    assert "inside the object's mask" in rule.breach


def test_boxes_of_another_file_are_found_by_name(tmp_path):
    names = ["x/a/p.png", "x/b/p.png", "q.png", "r.png", "s.png"]
    run = make_run(tmp_path / "run", [{"image": name} for name in names], {k: square(0, 0) for k in range(5)})
    images = [{"id": k, "file_name": name} for k, name in enumerate(("a/p.png", "b/p.png", "q.png", "r.png", "r.png"))]
    boxes = [[0, 0, 4, 4], [12, 12, 4, 4], [0, 0, 4, 1]]
    annotations = [{"image_id": k, "category_id": 1, "bbox": box} for k, box in enumerate(boxes)]
    record = {"images": images[:4], "annotations": annotations, "categories": [{"id": 1, "name": "bus"}]}
    path = tmp_path / "boxes.json"
    path.write_text(json.dumps(record))
    rule, _ = becausal.check(run, rules={"outside": {"boxes": str(path)}}).rules
    assert (rule.judged, rule.skipped) == (3, 2)  # r has no box, s is not in the file
    assert {each.id: each.value for each in rule.worst} == {1: 0.0, 2: 0.25}
    path.write_text(json.dumps({**record, "images": images}))
    with pytest.raises(InputError, match="several images"):
        becausal.check(run, rules={"outside": {"boxes": str(path)}})


def test_a_baseline_is_compared_by_label_and_overlap(tmp_path):
    rows = [{"image": "a.png"}, {"image": "b.png", "label": "tree"}, {"image": "c.png"}, {"image": "d.png"}]
    new = make_run(tmp_path / "new", rows, {0: square(0, 0), 1: square(0, 0), 2: square(10, 10)})
    rows = [{"image": "c.png"}, {"image": "b.png"}, {"image": "a.png"}, {"image": "d.png", "state": "failed", "error": "x"}]
    old = make_run(tmp_path / "old", rows, {0: square(0, 0), 1: square(0, 0), 2: square(2, 0)})
    verdict = becausal.check(new, baseline=old, rules={"labels": {}, "overlap": {"below": 0.4}})
    labels, overlap, _ = verdict.rules
    assert [(each.id, each.baseline_id, each.detail) for each in labels.worst] == [(1, 1, "bus → tree")]
    assert [(each.id, each.baseline_id, each.value) for each in overlap.worst] == [(2, 0, 0.0), (0, 2, pytest.approx(1 / 3))]
    assert labels.judged == overlap.judged == 3
    assert labels.skipped == 1
    assert labels.skipped_because == {"not explained in the baseline": 1}


def test_it_says_why_some_images_could_not_be_judged(tmp_path):
    new = make_run(tmp_path / "new", [{"image": f"{name}.png"} for name in "abcd"])
    old = make_run(tmp_path / "old", [{"image": "a.png"}, {"image": "b.png", "state": "failed", "error": "x"}])
    labels, _ = becausal.check(new, baseline=old, rules={"labels": {"max_share": 0.5}}).rules
    assert labels.skipped == 3
    assert labels.skipped_because == {"not in the baseline": 2, "not explained in the baseline": 1}
    said = "the label is not the one of the baseline; 3 more could not be judged (2 not in the baseline, 1 not explained"
    assert labels.summary.startswith(f"0 of 1 image (0 %; 0 % to 79 %), at most 50 %: {said}")
    assert "3 more could not be judged (2 not in the baseline" in labels.found
    rows = [{"inside": 1.0}, {"note_code": "label_without_box"}, {"level": "core"}]
    rules = {"outside": {}, "backgrounds": {"set": "enough"}, "necessary": {"min_share": 0.5}}
    outside, necessary, backgrounds, _ = becausal.check(make_run(tmp_path / "run", rows), rules=rules).rules
    assert outside.left_out == "2 more could not be judged (1 no box of the label, 1 no boxes)"
    assert necessary.left_out == ""
    assert backgrounds.skipped_because == {"no set enough was found": 3}


# What cannot be judged


def test_what_cannot_be_judged_says_why(tmp_path):
    run = make_run(tmp_path / "run", [{"necessary": None}], {0: square(0, 0)})
    other = make_run(tmp_path / "other", [{"image": "else.png"}])
    (tmp_path / "masks").mkdir()
    for rules, baseline, message in (
        ({"outside": {}}, None, "has boxes of its label"),
        ({"outside": {"masks": str(tmp_path / "masks")}}, None, "has no masks of the images"),
        ({"necessary": {"min_share": 1}}, None, "checked for necessity"),
        ({"labels": {}}, other, "explained both in"),
    ):
        verdict = becausal.check(run, rules=rules, baseline=baseline)
        assert (verdict.status, verdict.holds, verdict.outcome) == (2, False, "not judged")
        assert message in str(verdict)
    assert becausal.check(run, rules={"outside": {}, "size": {"at_most": 0.0}}).status == 1  # certain, whatever the other
    empty = make_run(tmp_path / "empty", [{"state": "failed", "error": "no"}])
    assert becausal.check(empty, rules={"size": {"at_most": 0.1}, "failures": {"max_share": 1}}).status == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rules": {"labels": {}}}, "no baseline was given"),
        ({"rules": {"size": {"at_most": 1}}, "baseline": "run"}, "no rule uses it"),
        ({"rules": {"outside": {"masks": "none"}}}, "there is no folder none"),
        ({"rules": {"outside": {"boxes": "none.json"}}}, "there is no file or folder none.json"),
        ({"rules": {"outside": {"boxes": "run.txt"}}}, "is not a COCO file"),
        ({"rules": {"outside": {"boxes": "empty.json"}}}, "has no boxes"),
        ({"rules": {"forbidden": {"mask": "none.png"}}}, "there is no file none.png"),
        ({"rules": {"forbidden": {"mask": "black.png"}}}, "black everywhere"),
        ({"rules": {"forbidden": {"mask": "small.png"}}}, "has 8 x 6 pixels, the image 24 x 24"),
        ({"rules": {"forbidden": {"mask": "clear.png"}}}, "without transparency"),
        ({"rules": {"forbidden": {"region": [30, 0, 4, 4]}}}, "is not on 000000.png, which has 24 x 24 pixels"),
        ({"rules": {"failures": {}}, "out": "x"}, "give a model"),
        ({"rules": {"failures": {}}, "model": "bundled"}, "out is needed"),
    ],
)
def test_what_cannot_be_used_is_refused(tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    make_run(Path("run"), [{}], {0: square(0, 0)})
    Path("empty.json").write_text('{"images": [{"id": 1, "file_name": "a.png"}]}')
    Image.new("L", (24, 24)).save("black.png")
    Image.new("L", (8, 6), 255).save("small.png")
    Image.new("RGBA", (24, 24), (255, 0, 0, 0)).save("clear.png")
    with pytest.raises(InputError, match=message):
        becausal.check("run", **arguments)


def test_no_gate_passes_on_images_that_were_not_explained(tmp_path):
    failed = [{"state": "failed", "error": "too dark"}] * 11
    for rest, detail in ((failed, "too dark"), ([{"state": "waiting"}] * 11, "not explained yet")):
        run = make_run(tmp_path / detail, [{}, *map(dict, rest)])
        for rules in (None, {"size": {"at_most": 1}}, {"size": {"at_most": 1}, "failures": {}}):
            verdict = becausal.check(run, rules=rules)
            assert (verdict.status, verdict.images) == (1, 12)
            assert outcomes(verdict)["failures"] == ("broken", 11, 12)
            assert f"000001.png: {detail}" in str(verdict)
        assert becausal.check(run, rules={"size": {"at_most": 1}, "failures": {"max_share": 0.95}}).holds
    one = make_run(tmp_path / "one", [{} for _ in range(99)] + [{"state": "failed", "error": "x"}])
    assert becausal.check(one).status == becausal.check(one, rules={"size": {"at_most": 1}}).status == 1
    assert becausal.check(one, rules={"failures": {}}).holds  # 5 %


def test_a_run_without_boxes_is_judged_by_its_failures(tmp_path):
    verdict = becausal.check(make_run(tmp_path / "run", [{}, {}]))
    assert (verdict.status, outcomes(verdict)) == (0, {"failures": ("holds", 0, 2)})


def test_damaged_runs_are_refused(tmp_path):
    run = make_run(tmp_path / "damaged", [{}])
    assert becausal.check(run, rules={"failures": {}}).holds
    with pytest.raises(OutputError, match="holds no saved explanation"):
        becausal.check(run, rules={"forbidden": {"region": [0, 0, 1, 1]}})
    with pytest.raises(OutputError, match="not a run folder"):
        becausal.check(tmp_path, rules={"failures": {}})


# Images first


def test_images_are_explained_first_and_only_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(MODEL)
    write_pictures(Path("shots"), 4)
    write_coco(Path("shots"), 4)
    arguments = {"model": "python:net.py:predict", "out": "run", "request": becausal.Request(max_calls=60)}
    verdict = becausal.check("shots/boxes.json", **arguments)
    assert outcomes(verdict) == {"outside": ("holds", 1, 4), "failures": ("holds", 0, 4)}
    before = (folder_of(Path("run"), 0) / "arrays.npz").stat().st_mtime_ns
    assert becausal.check(["shots/boxes.json"], strict=True, **arguments).status == 1
    assert (folder_of(Path("run"), 0) / "arrays.npz").stat().st_mtime_ns == before
    assert becausal.check("run", baseline="run").holds


# Size


def peak_of(run, **arguments):
    tracemalloc.start()
    try:
        becausal.check(run, **arguments)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_memory_does_not_grow_with_the_run(tmp_path):
    rules = {"outside": {}, "size": {"at_most": 0.05}, "failures": {}, "labels": {}}
    runs = [make_run(tmp_path / f"{n}", [{"inside": k % 7 / 7} for k in range(n)]) for n in (100, 1000)]
    becausal.check(runs[0], rules=rules, baseline=runs[0])  # what is loaded once
    small, large = (peak_of(run, rules=rules, baseline=run) for run in runs)
    assert large < small + 100_000  # 900 rows more; a row alone takes 3 kB


def test_rows_of_a_run_are_closed(tmp_path):
    with BatchRun(make_run(tmp_path / "run", [{}])) as run:
        assert len(list(match_runs(run, run))) == 1

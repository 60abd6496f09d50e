"""Object detectors in ONNX files: graphs made here, whose outputs are known numbers plus others times the brightness."""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from becausal.core.boxes import MAX_BOXES, overlaps, read_boxes
from becausal.core.contracts import Geometry
from becausal.core.errors import AnswerError, ModelError, OptionError
from becausal.models import box_layouts, load_model
from becausal.models.box_layouts import LOWEST, BoxReader, DetrTensors, SeparateTensors, YoloTensor, suppress

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

SIDE = 32
BOXES = np.array([[2, 3, 12, 13], [20, 4, 30, 28], [0, 0, 8, 8], [5, 5, 5, 9]], np.float32)  # the last without an area
SCORES, BRIGHT = np.array([0.2, 0.9, 0.05, 0.9], np.float32), np.array([0.6, -0.5, 0.0, 0.0], np.float32)
LABELS = np.array([1, 0, 2, 0], np.int64)


def save(path, outputs, *, batch="N", sides=(SIDE, SIDE), axes=4, metadata=None, has_batch=True, only_first=False):
    """A network whose output `name` is `base + slope · brightness`, for outputs {name: (base, slope)}; no slope: constant.

    has_batch: whether outputs have a batch axis; axes: of the input. only_first: every row is that of the first image.
    """
    entry = [batch, 3, *sides] if axes == 4 else [3, *sides]
    tables = [numpy_helper.from_array(np.array([-3, -2, -1], np.int64), "all")]
    nodes = [helper.make_node("ReduceMean", ["x", "all"], ["mean"], keepdims=0)]
    mean = "mean"
    if only_first:
        tables.append(numpy_helper.from_array(np.array([0], np.int64), "zero"))
        nodes += [helper.make_node("Gather", ["mean", "zero"], ["one"]), helper.make_node("Sub", ["mean", "mean"], ["none"])]
        nodes.append(helper.make_node("Add", ["one", "none"], ["first"]))
        mean = "first"
    made = []
    for name, (base, slope) in outputs.items():
        base = np.asarray(base)
        shape = [-1, *[1] * base.ndim] if has_batch else [1] * base.ndim
        slope = np.zeros(base.shape) if slope is None else slope
        tables += [
            numpy_helper.from_array(base.astype(np.float32), f"{name}_base"),
            numpy_helper.from_array(np.asarray(slope, np.float32), f"{name}_slope"),
            numpy_helper.from_array(np.array(shape, np.int64), f"{name}_shape"),
        ]
        kind = TensorProto.INT64 if base.dtype.kind == "i" else TensorProto.FLOAT
        nodes += [
            helper.make_node("Reshape", [mean, f"{name}_shape"], [f"{name}_mean"]),
            helper.make_node("Mul", [f"{name}_mean", f"{name}_slope"], [f"{name}_change"]),
            helper.make_node("Add", [f"{name}_change", f"{name}_base"], [f"{name}_sum"]),
            helper.make_node("Cast", [f"{name}_sum"], [name], to=kind),
        ]
        sides_out = [batch, *base.shape] if has_batch else list(base.shape)
        made.append(helper.make_tensor_value_info(name, kind, sides_out))
    entry = helper.make_tensor_value_info("x", TensorProto.FLOAT, entry)
    graph = helper.make_graph(nodes, "g", [entry], made, tables)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    helper.set_model_props(model, metadata or {})
    onnx.save(model, path)
    return f"detect:{path}"


def three(names=("boxes", "scores", "labels"), *, boxes=BOXES, labels=LABELS):
    return {names[0]: (boxes, None), names[1]: (SCORES, BRIGHT), names[2]: (labels, None)}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "net.onnx"


def images(*levels, side=SIDE):
    return np.stack([np.full((side, side, 3), level, np.uint8) for level in levels])


def found(answer):
    return [
        [(tuple(np.round(one.box, 3).tolist()), round(one.score, 3), one.label_id) for one in read_boxes(row)]
        for row in answer
    ]


def expected(brightness, *, scale=1.0):
    """What `three` gives, by hand."""
    scores = SCORES + BRIGHT * np.float32(brightness)
    rows = [(tuple((BOXES[i] * scale).tolist()), round(float(scores[i]), 3), int(LABELS[i])) for i in range(3)]
    return sorted(rows, key=lambda row: -row[1])


UNIT = {"preprocess": "unit", "threads": 1}


def test_boxes_scores_and_labels(path):
    model = load_model(save(path, three()), **UNIT)
    info = model.info
    assert (info.output, info.kind, info.spec) == ("boxes", "detect:onnx", f"detect:onnx:{path}")
    assert info.geometry == Geometry((SIDE, SIDE), "squash")
    assert info.threshold == 0.5
    assert info.notes == (
        "images are squashed to the input size; to keep their aspect ratio use --resize letterbox",
        "a box counts as found if its score is at least 0.5 (assumed; set --threshold)",
    )
    answer = model.classify(images(0, 255, 51))
    assert answer.shape == (3, MAX_BOXES, 6)
    assert answer.dtype == np.float32
    assert found(answer) == [expected(0.0), expected(1.0), expected(0.2)]


def test_asking_is_classifying_composed_pixels_whatever_the_batch(path):
    model = load_model(save(path, three()), **UNIT)
    rng = np.random.default_rng(0)
    view, background = rng.integers(0, 256, (2, SIDE, SIDE, 3)).astype(np.uint8)
    visible = rng.random((9, SIDE, SIDE)) < 0.5
    staged, which = [model.stage(view, background)], np.zeros(9, np.intp)
    together = model.ask(staged, which, visible)
    assert np.array_equal(together, model.classify(np.where(visible[..., None], view, background)))
    alone = [model.ask(staged, which[:1], visible[i : i + 1]) for i in range(9)]
    assert np.allclose(together, np.concatenate(alone), atol=1e-5)


@pytest.mark.parametrize("batch", [1, 4])
def test_a_fixed_batch(path, batch):
    model = load_model(save(path, three(), batch=batch), **UNIT)
    assert (model.batch_size, model.fixed_sizes) == (batch, (batch,))
    assert found(model.classify(images(0, 255, 51))) == [expected(0.0), expected(1.0), expected(0.2)]


@pytest.mark.parametrize("axes", [3, 4])
def test_outputs_without_a_batch_axis(path, axes):
    model = load_model(save(path, three(), batch=1, has_batch=False, axes=axes), **UNIT)
    assert model.fixed_sizes == (1,)
    assert found(model.classify(images(0, 255))) == [expected(0.0), expected(1.0)]


def test_outputs_without_a_batch_axis_though_the_input_has_one(path):
    """As torchvision exports: any batch is taken, but the boxes are those of one image."""
    model = load_model(save(path, {k: v for k, v in three().items() if k != "labels"}, batch=1, has_batch=False), **UNIT)
    assert any("no output with labels: all boxes are of class 0" in note for note in model.info.notes)


def test_a_network_that_is_wrong_in_batches_gets_one_image_at_a_time(path):
    model = load_model(save(path, three(), only_first=True), **UNIT)
    assert model.fixed_sizes == (1,)
    assert any("not return the same boxes for batches" in note for note in model.info.notes)
    assert found(model.classify(images(0, 255))) == [expected(0.0), expected(1.0)]


@pytest.mark.parametrize(
    "names",
    [
        ("det_boxes", "det_scores", "det_classes"),
        ("bboxes", "confidences", "class_ids"),
        ("Boxes:0", "Scores:0", "Labels:0"),
    ],
)
def test_other_names(path, names):
    model = load_model(save(path, three(names)), **UNIT)
    assert found(model.classify(images(255))) == [expected(1.0)]
    assert not any("is read as" in note for note in model.info.notes)


@pytest.mark.parametrize("labels", [LABELS, LABELS.astype(np.float32)])
@pytest.mark.parametrize("order", [("p", "q", "r"), ("r", "p", "q")])
def test_outputs_without_names_are_told_by_shape_and_values(path, labels, order):
    given = dict(zip(("p", "q", "r"), three(labels=labels).values(), strict=True))
    model = load_model(save(path, {name: given[name] for name in order}), **UNIT)
    assert found(model.classify(images(255))) == [expected(1.0)]
    notes = " ".join(model.info.notes)
    assert "the output p is read as boxes, by its shape" in notes
    assert "the output q is read as scores" in notes
    assert "the output r is read as labels" in notes


def test_a_fifth_column_with_scores(path):
    table = np.concatenate([BOXES, SCORES[:, None]], axis=1)
    slope = np.concatenate([np.zeros_like(BOXES), BRIGHT[:, None]], axis=1)
    model = load_model(save(path, {"dets": (table, slope), "labels": (LABELS, None)}), **UNIT)
    assert found(model.classify(images(0, 255))) == [expected(0.0), expected(1.0)]


def test_boxes_as_tensorflow_writes_them(path):
    names = ("detection_boxes", "detection_scores", "detection_classes")
    turned = (BOXES / SIDE)[:, [1, 0, 3, 2]]
    given = three(names, boxes=turned, labels=LABELS.astype(np.float32)) | {"num_detections": (np.float32(4), None)}
    model = load_model(save(path, given), **UNIT)
    assert found(model.classify(images(255))) == [expected(1.0)]
    notes = " ".join(model.info.notes)
    assert "top, left, bottom, right" in notes
    assert "read as fractions of the image" in notes


def test_fractions_are_scaled_by_width_and_height(path):
    model = load_model(save(path, three(boxes=BOXES / [64, 32, 64, 32]), sides=(32, 64)), **UNIT)
    assert found(model.classify(np.full((1, 32, 64, 3), 255, np.uint8))) == [expected(1.0)]


def test_without_a_box_in_the_probe_images_each_image_decides():
    layout = SeparateTensors("b", "s", "l")
    boxes = np.array([[[0.25, 0.5, 0.5, 1.0]], [[4, 5, 9, 12]]], np.float32)
    outputs = {"b": boxes, "s": np.full((2, 1), 0.5), "l": np.zeros((2, 1))}
    answer = BoxReader(layout, (20, 40), None)(outputs, 2)
    assert answer[:, 0, :4].tolist() == [[10, 10, 20, 20], [4, 5, 9, 12]]


def test_empty_outputs(path):
    given = {"boxes": (np.zeros((0, 4), np.float32), None), "scores": (np.zeros(0, np.float32), None)}
    model = load_model(save(path, {**given, "labels": (np.zeros(0, np.int64), None)}), **UNIT)
    assert found(model.classify(images(0))) == [[]]
    assert any("no boxes in the probe images" in note for note in model.info.notes)


# ---- DETR

#: centre x, centre y, width, height of four queries in 0..1, and their logits of two classes and "no object"
QUERIES = np.array([[0.25, 0.25, 0.25, 0.5], [0.5, 0.5, 1, 1], [0.75, 0.5, 0.5, 0.25], [0.5, 0.5, 0.1, 0.1]], np.float32)
LOGITS = np.array([[3, 0, 0], [0, 2, 1], [-2, -1, 4], [-3, -3, 5]], np.float32)


def detr(logits=LOGITS, names=("logits", "pred_boxes")):
    return {names[0]: (logits, None), names[1]: (QUERIES, None), "last_hidden_state": (np.zeros((4, 8)), None)}


def corners(queries):
    """In pixels of the view, by hand."""
    x, y, w, h = queries.astype(np.float64).T * SIDE
    return np.stack([x - w / 2, y - h / 2, x + w / 2, y + h / 2], axis=1)


def best_first(rows):
    """(box, score, label) of the boxes that are looked at, as `found` gives them."""
    kept = [(tuple(np.round(box, 3).tolist()), round(float(score), 3), int(label)) for box, score, label in rows]
    return sorted((row for row in kept if row[1] >= LOWEST), key=lambda row: -row[1])


@pytest.mark.parametrize("names", [("logits", "pred_boxes"), ("pred_logits", "pred_boxes")])
def test_queries_with_a_class_for_no_object(path, names):
    model = load_model(save(path, detr(names=names)), labels=["cat", "dog"], **UNIT)
    powers = np.exp(LOGITS.astype(np.float64))
    scores = powers[:, :2] / powers.sum(axis=1, keepdims=True)
    expected = best_first(zip(corners(QUERIES), scores.max(axis=1), scores.argmax(axis=1), strict=True))
    assert found(model.classify(images(0, 9))) == [expected] * 2
    assert model.info.labels == ("cat", "dog")
    assert model.info.threshold == 0.5
    assert (
        f'the output {names[0]} is read as logits of 2 classes: softmax, the last logit is "no object", as in DETR '
        "(there are 2 class names)"
    ) in model.info.notes


def test_queries_with_independent_scores(path):
    """A query may have several labels."""
    model = load_model(save(path, detr()), labels=["cat", "dog", "fox"], **UNIT)
    scores = 1 / (1 + np.exp(-LOGITS.astype(np.float64)))
    rows = [(corners(QUERIES)[i], scores[i, k], k) for i in range(4) for k in range(3)]
    (answer,) = found(model.classify(images(0)))
    assert answer == best_first(rows)
    assert len(answer) == 12
    note = "the output logits is read as logits of 3 classes: sigmoid, as in RT-DETR (there are 3 class names)"
    assert note in model.info.notes


def test_without_names_the_probe_images_tell_whether_there_is_a_class_for_no_object(path):
    mostly_nothing = np.concatenate([LOGITS[:1], LOGITS[3:], LOGITS[2:]])
    model = load_model(save(path, detr(mostly_nothing)), **UNIT)
    assert any("logits of 2 classes: softmax" in note and "highest in most queries" in note for note in model.info.notes)
    model = load_model(save(path, detr(LOGITS[:, ::-1])), **UNIT)
    assert any("logits of 3 classes: sigmoid" in note and "give --labels" in note for note in model.info.notes)


def test_names_that_fit_neither_number_of_classes_are_refused(path):
    with pytest.raises(ModelError, match="there are 7 labels but the model has 3 classes"):
        load_model(save(path, detr()), labels=list("abcdefg"), **UNIT)


@pytest.mark.parametrize("sides", [["n", 64, 64], ["n", "h", "w"]])
def test_an_input_for_padding_gets_a_mask_without_any(path, sides):
    """Its mean is added to the score of the first box: 1 if all of it is 1."""
    save(path, detr())
    model = onnx.load(path)
    model.graph.input.append(helper.make_tensor_value_info("pixel_mask", TensorProto.INT64, sides))
    model.graph.node.extend(
        [
            helper.make_node("Cast", ["pixel_mask"], ["mask"], to=TensorProto.FLOAT),
            helper.make_node("ReduceMin", ["mask"], ["least"], keepdims=0),
            helper.make_node("Mul", ["logits", "least"], ["pred_logits"]),
        ]
    )
    model.graph.output[0].name = "pred_logits"
    onnx.save(model, path)
    loaded = load_model(f"detect:{path}", labels=["cat", "dog"], **UNIT)
    plain = load_model(save(path, detr()), labels=["cat", "dog"], **UNIT)
    assert found(loaded.classify(images(0, 9))) == found(plain.classify(images(0, 9)))


def test_logits_that_are_no_numbers_are_refused(path):
    with pytest.raises(ModelError, match="returned logits that are NaN or infinite"):
        load_model(save(path, detr(LOGITS * np.nan)), labels=["cat", "dog"], **UNIT)


@settings(max_examples=40)
@given(st.integers(0, 10_000), st.booleans())
def test_queries_are_read_as_by_a_slow_twin(seed, has_no_object):
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 3, (2, 6, 4)).astype(np.float32)
    boxes = rng.uniform(0.1, 0.9, (2, 6, 4)).astype(np.float32)
    layout = DetrTensors("logits", "pred_boxes", 4 - has_no_object, has_no_object)
    answer = BoxReader(layout, (20, 40), is_fraction=True)({"logits": logits, "pred_boxes": boxes}, 2)
    for image, row in enumerate(answer):
        expected = []
        for query in range(6):
            values = [float(value) for value in logits[image, query]]
            x, y, w, h = (float(value) for value in boxes[image, query])
            box = [(x - w / 2) * 40, (y - h / 2) * 20, (x + w / 2) * 40, (y + h / 2) * 20]
            if has_no_object:
                total = sum(math.exp(value) for value in values)
                scores = [math.exp(value) / total for value in values[:-1]]
                label = scores.index(max(scores))
                expected += [[*box, scores[label], label]] if scores[label] >= LOWEST else []
            else:
                scores = [1 / (1 + math.exp(-value)) for value in values]
                expected += [[*box, score, label] for label, score in enumerate(scores) if score >= LOWEST]
        expected.sort(key=lambda one: -one[4])
        got = [[*one.box, one.score, one.label_id] for one in read_boxes(row)]
        assert np.allclose(got, expected, atol=1e-4)


# ---- YOLO

#: centre x, centre y, width, height, and the scores of three classes, of five candidates
CANDIDATES = np.array(
    [
        [10, 10, 8, 8, 0.9, 0.1, 0.0],
        [10, 11, 8, 8, 0.8, 0.1, 0.0],  # overlaps the first by 56/72, of the same class
        [10, 10, 8, 8, 0.1, 0.7, 0.0],  # the same box, of another class
        [10, 14, 8, 8, 0.6, 0.0, 0.0],  # overlaps the first by a third
        [20, 20, 4, 6, 0.0, 0.0, 0.005],  # below what is looked at
    ],
    np.float32,
)
KEPT = [((6.0, 6.0, 14.0, 14.0), 0.9, 0), ((6.0, 6.0, 14.0, 14.0), 0.7, 1), ((6.0, 10.0, 14.0, 18.0), 0.6, 0)]
NAMES = {"names": "{0: 'cat', 1: 'dog', 2: 'red fox'}", "author": "Ultralytics"}


def many(table, count=40):
    """The candidates, with more that are of no interest."""
    rest = np.tile(np.array([[16, 16, 2, 2, *[0.0] * (table.shape[1] - 4)]], np.float32), (count - len(table), 1))
    return np.concatenate([table, rest])


def with_objectness(table):
    """The same scores as objectness times class scores."""
    return np.concatenate([table[:, :4], np.full((len(table), 1), 0.95, np.float32), table[:, 4:] / 0.95], axis=1)


def test_yolo_8(path):
    model = load_model(save(path, {"output0": (many(CANDIDATES).T, None)}, metadata=NAMES))
    assert found(model.classify(images(0, 9))) == [KEPT, KEPT]
    info = model.info
    assert info.labels == ("cat", "dog", "red fox")
    assert info.threshold == 0.25
    assert info.normalisation.startswith("unit")
    assert info.notes == (
        "images are squashed to the input size; to keep their aspect ratio use --resize letterbox",
        "the model does not state its normalisation: unit assumed, as for YOLO; set it with --preprocess",
        "the output output0 is read as box, 3 class scores, as in YOLOv8; non-maximum suppression within each class at an "
        "overlap of 0.7",
        "a box counts as found if its score is at least 0.25 (assumed; set --threshold)",
        "class names read from the file's metadata, 'names'",
    )


def test_yolo_5(path):
    table = with_objectness(many(CANDIDATES))
    model = load_model(save(path, {"output0": (table, None)}))
    assert found(model.classify(images(0))) == [KEPT]
    assert any("box, objectness and 3 class scores, as in YOLOv5" in note for note in model.info.notes)


def test_yolo_with_the_number_of_names(path):
    """[N,40,7] is three classes without objectness, or two with it: the names decide."""
    table = many(CANDIDATES)
    assert found(load_model(save(path, {"o": (table, None)}, metadata=NAMES)).classify(images(0))) == [KEPT]
    assert found(load_model(f"detect:{path}", labels=["a", "b", "c"]).classify(images(0))) == [KEPT]
    two = load_model(f"detect:{path}", labels=["a", "b"])
    assert any("objectness and 2 class scores" in note for note in two.info.notes)
    with pytest.raises(ModelError, match="there are 9 labels but the model has 2 classes"):
        load_model(f"detect:{path}", labels=list("abcdefghi"))


def test_more_numbers_than_candidates(path):
    """A small input has few candidates, and a model many classes."""
    wide = np.zeros((5, 44), np.float32)
    wide[:, :7] = CANDIDATES
    names = {"names": str([f"n{i}" for i in range(40)])}
    assert found(load_model(save(path, {"o": (wide.T, None)}, metadata=names)).classify(images(0))) == [KEPT]


def test_boxes_end_to_end(path):
    table = np.zeros((300, 6), np.float32)
    for row, (box, score, label) in zip(table, KEPT, strict=False):
        row[:] = (*box, score, label)
    model = load_model(save(path, {"output0": (table, None)}))
    assert found(model.classify(images(0))) == [KEPT]
    assert model.info.threshold == 0.25


def test_one_class_with_objectness_is_no_list_of_boxes(path):
    table = with_objectness(many(CANDIDATES[:, :5]))
    model = load_model(save(path, {"output0": (table, None)}))
    assert any("objectness and 1 class scores" in note for note in model.info.notes)
    assert found(model.classify(images(0)))[0][0] == KEPT[0]


def test_fractions_of_yolo(path):
    table = many(CANDIDATES) / np.array([SIDE] * 4 + [1] * 3, np.float32)
    assert found(load_model(save(path, {"o": (table.T, None)})).classify(images(0))) == [KEPT]


def test_names_that_do_not_fit_are_not_used(path):
    model = load_model(save(path, {"o": (many(CANDIDATES).T, None)}, metadata={"names": "['a', 'b']"}))
    assert model.info.labels is None
    assert any("2 names, but the model has 3 classes" in note for note in model.info.notes)


def test_another_output_is_chosen_by_name(path):
    first, second = many(CANDIDATES), many(CANDIDATES[:1])
    save(path, {"a": (first.T, None), "b": (second.T, None)})
    with pytest.raises(
        ModelError, match="are not read as boxes; expected boxes, scores and labels, logits and pred_boxes of DETR, or one"
    ):
        load_model(f"detect:{path}")
    path.with_suffix(".toml").write_text('output_name = "b"')
    assert found(load_model(f"detect:{path}").classify(images(0))) == [KEPT[:1]]
    path.with_suffix(".toml").write_text('output_name = "c"')
    with pytest.raises(ModelError, match="no output 'c'; it has a, b"):
        load_model(f"detect:{path}")


def slow_suppress(boxes, labels, most):
    """From the definition: a box is kept if no kept box of its label before it overlaps it by more than `most`."""
    kept = []
    for i, (box, label) in enumerate(zip(boxes, labels, strict=True)):
        if all(labels[j] != label or iou(boxes[j], box) <= most for j in kept):
            kept.append(i)
    return kept[:MAX_BOXES]


def iou(a, b):
    width, height = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    shared = max(width, 0) * max(height, 0)
    return shared / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - shared)


box = st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(1, 6), st.integers(1, 6)).map(
    lambda n: (n[0], n[1], n[0] + n[2], n[1] + n[3])
)


@given(st.lists(st.tuples(box, st.integers(0, 2)), max_size=40), st.sampled_from([0.0, 0.3, 0.45, 0.7, 1.0]))
def test_suppression_is_that_of_the_definition(items, most):
    boxes = np.array([one for one, _ in items], np.float64).reshape(-1, 4)
    labels = np.array([label for _, label in items], np.intp)
    assert suppress(boxes, labels, most).tolist() == slow_suppress(boxes.tolist(), labels.tolist(), most)


def test_suppression_stops_when_there_are_enough():
    boxes = np.array([[3 * i, 0, 3 * i + 2, 2] for i in range(300)], np.float64)
    assert suppress(boxes, np.zeros(300, np.intp), 0.5).tolist() == list(range(MAX_BOXES))


@settings(max_examples=30)
@given(st.integers(0, 2**32 - 1))
def test_a_yolo_output_is_read_as_by_a_slow_twin(seed):
    rng = np.random.default_rng(seed)
    table = np.concatenate(
        [rng.uniform(0, 20, (30, 2)), rng.uniform(1, 9, (30, 2)), rng.uniform(0, 1, (30, 3)) ** 6], axis=1
    )
    layout = YoloTensor("o", 3, columns_last=True, has_objectness=False, max_overlap=0.45)
    ((boxes, scores, labels),) = layout.read({"o": table.T[None]}, 1)
    rows = [(float(row[4:].max()), i) for i, row in enumerate(table)]
    order = [i for score, i in sorted(rows, key=lambda item: (-item[0], item[1])) if score >= 0.01]
    corners = [(x - w / 2, y - h / 2, x + w / 2, y + h / 2) for x, y, w, h in table[order, :4]]
    names = table[order, 4:].argmax(axis=1).tolist()
    kept = slow_suppress(corners, names, 0.45)
    assert np.allclose(boxes, [corners[i] for i in kept])
    assert scores.tolist() == [rows[order[i]][0] for i in kept]
    assert labels.tolist() == [names[i] for i in kept]
    same = labels[:, None] == labels
    shared = np.array([overlaps(boxes, tuple(one)) for one in boxes])
    assert (shared[same & ~np.eye(len(boxes), dtype=bool)] <= 0.45).all()


def test_ten_thousand_candidates():
    table = np.tile(np.array([[8, 8, 4, 4, 0.5]]), (10_000, 1))
    table[:, 0] = np.arange(10_000) * 9
    layout = YoloTensor("o", 1, columns_last=False, has_objectness=False, max_overlap=0.45)
    ((boxes, _, _),) = layout.read({"o": table[None]}, 1)
    assert len(boxes) == MAX_BOXES
    assert boxes[0].tolist() == [-2, 6, 2, 10]


# ---- options


def test_threshold(path):
    spec = save(path, three(), metadata={"threshold": "0.4", "labels": "['a', 'b', 'c']"})
    stated = load_model(spec, **UNIT).info
    assert stated.threshold == 0.4
    assert stated.labels == ("a", "b", "c")
    assert not any("threshold" in note for note in stated.notes)
    path.with_suffix(".toml").write_text("threshold = 0.3")
    assert load_model(spec, **UNIT).info.threshold == 0.3
    given = load_model(spec, threshold=0.6, **UNIT).info
    assert given.threshold == 0.6
    assert given.loading["threshold"] == 0.6
    for wrong in (0, 1.5, -0.1, float("nan"), True, "half"):
        with pytest.raises(OptionError, match=r"a score above 0 and up to 1, e\.g\. 0\.5"):
            load_model(spec, threshold=wrong)
    path.with_suffix(".toml").write_text('threshold = "high"')
    with pytest.raises(ModelError, match=r"net\.toml: the threshold is a score"):
        load_model(spec, **UNIT)


def test_a_threshold_in_metadata_that_is_none(path):
    info = load_model(save(path, three(), metadata={"threshold": "a lot"}), **UNIT).info
    assert info.threshold == 0.5
    assert "the threshold in the file's metadata is not used" in info.notes[0]


def test_sizes(path):
    spec = save(path, three(), sides=("h", "w"))
    free = load_model(spec, **UNIT).info
    assert free.geometry == Geometry((640, 640), "squash")
    assert any("640x640 assumed; set it with e.g. --resize squash/320" in note for note in free.notes)
    assert load_model(spec, resize="squash/48x64", **UNIT).info.geometry == Geometry((48, 64), "squash")
    boxed = load_model(spec, resize="letterbox/48", **UNIT).info
    assert boxed.geometry == Geometry((48, 48), "letterbox")
    assert str(boxed.geometry) == "letterboxed to 48x48, bilinear"
    assert not any("squashed" in note for note in boxed.notes)
    assert load_model(spec, resize=40, **UNIT).info.geometry == Geometry((40, 40), 40)


def test_an_option_that_is_for_classifiers(path):
    with pytest.raises(OptionError, match="a detector returns boxes: remove returns"):
        load_model(save(path, three()), returns="logits")


# ---- bad input


def test_a_classifier_is_no_detector(path):
    scores = {"probs": (np.array([0.2, 0.3, 0.1, 0.4], np.float32), None)}
    with pytest.raises(ModelError, match=r"returns scores per class, not boxes .* load it without detect:"):
        load_model(save(path, scores))


@pytest.mark.parametrize(
    "outputs",
    [
        three(),
        {"dets": (np.zeros((3, 5)), None), "labels": (np.zeros(3, np.int64), None)},
        {"output0": (many(CANDIDATES).T, None)},
        detr(),
    ],
)
def test_a_detector_is_no_classifier(path, outputs):
    save(path, outputs)
    with pytest.raises(ModelError, match=r"looks like an object detector: use detect:.*net\.onnx"):
        load_model(path)


@pytest.mark.parametrize(
    ("outputs", "words"),
    [
        (three(boxes=np.where(BOXES == 30, np.nan, BOXES)), "NaN or infinite"),
        ({**three(), "scores": (SCORES * 9, None)}, "box scores from 0.45 to 8.1; expected 0 to 1"),
        ({**three(), "labels": (LABELS + 0.25, None)}, "the label id 1.25; expected whole numbers"),
        ({"o": (many(CANDIDATES).T * np.nan, None)}, "NaN or infinite"),
        ({"o": (many(CANDIDATES).T * 9, None)}, "box scores from .* expected 0 to 1"),
        ({"maps": (np.zeros((255, 4, 4)), None)}, "are not read as boxes"),
        ({"boxes": (BOXES, None)}, "are not read as boxes|returns scores per class"),
        ({"boxes": (BOXES, None), "scores": (SCORES[:3], None)}, "are not read as boxes|returns scores per class"),
    ],
)
def test_outputs_that_are_no_boxes(path, outputs, words):
    with pytest.raises(ModelError, match=words) as caught:
        load_model(save(path, outputs), **UNIT)
    assert "\n" not in str(caught.value)


def test_an_answer_that_changes_its_shape():
    reader = BoxReader(SeparateTensors("boxes", "scores", "labels"), (8, 8), is_fraction=False)
    good = {"boxes": np.zeros((2, 3, 4)), "scores": np.zeros((2, 3)), "labels": np.zeros((2, 3))}
    assert reader(good, 2).shape == (2, MAX_BOXES, 6)
    for changed, words in [
        ({"boxes": np.zeros((2, 4))}, r"boxes of shape \(2, 4\)"),
        ({"boxes": np.zeros((1, 3, 4))}, "for 2 images"),
        ({"scores": np.zeros((2, 4))}, r"shapes \(3, 4\), \(4,\), \(3,\)"),
    ]:
        with pytest.raises(AnswerError, match=words):
            reader({**good, **changed}, 2)
    with pytest.raises(AnswerError, match="no output 'labels', only boxes, scores"):
        reader({key: good[key] for key in ("boxes", "scores")}, 2)
    with pytest.raises(AnswerError, match="expected 5 numbers per candidate"):
        list(YoloTensor("o", 1, True, False, 0.7).read({"o": np.zeros((1, 6, 9))}, 1))


@dataclass(frozen=True)
class Diagonals:
    """An imaginary layout: an output (n, 3, k) of squares: centre on the diagonal, half a side, score; all of class 0."""

    has_batch_axis: bool = True
    classes: int | None = 1
    threshold: ClassVar[float] = 0.125
    are_fractions: ClassVar[bool | None] = False

    @staticmethod
    def find(probes):
        return (Diagonals(), ("read as diagonals",)) if "diagonals" in probes.first else None

    def corners(self, outputs, rows):
        centre, half, _ = np.moveaxis(outputs["diagonals"], 1, 0)
        return np.stack([centre - half, centre - half, centre + half, centre + half], axis=2)

    def read(self, outputs, rows):
        scores = outputs["diagonals"][:, 2]
        return zip(self.corners(outputs, rows), scores, np.zeros(scores.shape), strict=True)


def test_another_layout_is_one_row_of_the_table(path, monkeypatch):
    save(path, {"diagonals": (np.array([[4.0, 5.0], [2.0, 1.0], [0.75, 0.5]], np.float32), None)})
    with pytest.raises(ModelError, match="are not read as boxes"):
        load_model(f"detect:{path}")
    monkeypatch.setattr(box_layouts, "LAYOUTS", (*box_layouts.LAYOUTS[:1], Diagonals, *box_layouts.LAYOUTS[1:]))
    model = load_model(f"detect:{path}")
    assert "read as diagonals" in model.info.notes
    assert model.info.threshold == 0.125
    boxes = read_boxes(model.classify(np.zeros((1, SIDE, SIDE, 3), np.uint8))[0])
    assert [(box.box, box.score, box.label_id) for box in boxes] == [((2, 2, 6, 6), 0.75, 0), ((4, 4, 6, 6), 0.5, 0)]


def test_a_file_of_the_package_is_loaded_under_its_own_name(path):
    """As `bundled:detector` is: labels and threshold are in the file, the rest is stated."""
    from becausal.models.loading import ModelSettings
    from becausal.models.onnx_file import load
    from becausal.models.preprocess import PRESETS

    save(path, three(), metadata={"threshold": "0.35", "labels": '["a", "b", "c"]'})
    stated = ModelSettings(normalisation=PRESETS["unit"], resize="squash", question="detect")
    info = load(str(path), stated, spec="bundled:detector").info
    assert (info.spec, info.threshold, info.labels) == ("bundled:detector", 0.35, ("a", "b", "c"))
    assert info.notes == ("class names read from the file's metadata, 'labels'",)

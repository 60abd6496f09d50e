"""A torch module asked without waiting, as on a GPU but on the CPU; and searches in processes of their own."""

import gc

import numpy as np
import pytest

from becausal.api import Failure, Request, explain_numbered
from becausal.engine.pool import default_count
from becausal.models import as_classifier
from becausal.models.preprocess import PRESETS
from becausal.scenes import make_scene

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from becausal.models.torch_device import (  # noqa: E402
    DeviceComposer,
    DeviceRunner,
    TensorPool,
)
from becausal.models.torch_module import TorchClassifier  # noqa: E402


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def small():
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 6, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 4)]
    return nn.Sequential(*layers)


def beside(plain, sizes=(2, 4, 8)):
    """The classifier as it is on a GPU, on the CPU."""
    composer = DeviceComposer(PRESETS[plain.info.normalisation.partition(":")[0]], "cpu")
    made = TorchClassifier(plain.module, plain.info, composer, plain._output, batch_size=sizes[-1])
    made._runner = DeviceRunner(made._network, plain._output.decode, composer, sizes, "cpu")
    return made


def pixels(n=5, h=12, w=10, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (n, h, w, 3)).astype(np.uint8)


@pytest.mark.parametrize("rows", [1, 2, 3, 8, 9, 21])
@pytest.mark.parametrize("pictures", [1, 3])
def test_what_is_submitted_is_what_is_asked(rows, pictures):
    plain = as_classifier(small(), preprocess="imagenet", resize="12/12x10")
    device = beside(plain)
    rng = np.random.default_rng(rows)
    visible, which = rng.random((rows, 12, 10)) < 0.5, rng.integers(0, pictures, rows)
    views, grounds = pixels(pictures), pixels(pictures, seed=1)

    def answers(classifier):
        staged = [classifier.stage(v, g) for v, g in zip(views, grounds, strict=True)]
        return classifier.ask(staged, which, visible)

    assert np.allclose(answers(device), answers(plain), atol=1e-6)
    assert np.allclose(device.classify(views), plain.classify(views), atol=1e-6)


def test_batches_under_way_do_not_disturb_each_other():
    device = beside(as_classifier(small(), preprocess="tf", resize="12/12x10"))
    staged = [device.stage(*pixels(2, seed=i)) for i in range(3)]
    waves = [np.random.default_rng(i).random((3, 12, 10)) < 0.5 for i in range(6)]
    packed = [np.packbits(wave.reshape(3, -1), axis=1) for wave in waves]
    which = np.array([0, 1, 2])
    promises = [device.submit(staged, which, bits, (12, 10)) for bits in packed]
    for wave, promise in zip(waves, promises, strict=True):
        assert promise.is_ready()
        assert np.array_equal(promise.collect(), device.ask(staged, which, wave))
        assert promise.seconds > 0


def test_places_of_pictures_are_used_again():
    composer = DeviceComposer(PRESETS["tf"], "cpu")
    held = [composer.stage(*pixels(2, seed=i)) for i in range(5)]
    (pool,) = composer._pools.values()
    assert isinstance(pool, TensorPool)
    assert len(pool.pairs) == 8
    assert len({pair.index for pair in held}) == 5
    kept = pool.pairs[held[4].index].clone()
    del held[:4]
    gc.collect()
    for i in range(100):
        composer.stage(*pixels(2, seed=i))
    assert len(pool.pairs) == 8
    assert torch.equal(pool.pairs[held[0].index], kept)


def test_a_device_whose_memory_runs_out_goes_on_with_smaller_batches():
    module = small()
    plain = as_classifier(module, preprocess="tf", resize="12/12x10")
    device = beside(plain)
    visible = np.random.default_rng(0).random((8, 12, 10)) < 0.5
    staged, which = [device.stage(*pixels(2))], np.zeros(8, np.intp)
    expected = device.ask(staged, which, visible)
    device = beside(plain)
    sizes = []

    def refuse(_, inputs):
        sizes.append(len(inputs[0]))
        if sizes[-1] > 2:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    hook = module.register_forward_pre_hook(refuse)
    again = device.ask([device.stage(*pixels(2))], which, visible)
    hook.remove()
    assert np.allclose(again, expected, atol=1e-6)
    assert max(sizes[3:]) == 2


def bundled():
    from becausal.scenes.network import load_network

    return as_classifier(load_network(), preprocess="tf", resize=128)


def answers(pictures, model, **options):
    request = Request(max_calls=options.pop("max_calls", 60), options=options.pop("options", None))
    found = dict(explain_numbered(pictures, model, request=request, **options))
    return {i: str(e.error) if isinstance(e, Failure) else (e.label, e.visible.tobytes(), e.calls) for i, e in found.items()}


def test_processes_give_the_same():
    pictures = [make_scene(seed).image for seed in range(5)]
    pictures[2] = np.zeros((0, 4, 3), np.uint8)
    alone = answers(pictures, beside(bundled(), (8, 16)), workers=0)
    assert isinstance(alone[2], str)
    heard = set()
    found = answers(pictures, beside(bundled(), (8, 16)), workers=2, progress=lambda status: heard.add(status.index))
    assert found == alone
    assert heard <= {0, 1, 3, 4}
    assert heard
    # A process of before; and rows that do not fit into the first batch, while nobody has anything more to say.
    again = answers(pictures[:2], beside(bundled(), (5, 16)), workers=1)
    assert again == {i: alone[i] for i in (0, 1)}


@pytest.mark.process
def test_processes_are_told_to_stop_and_give_their_best():
    pressed = []

    def stop(status):
        if status.size < 1 and not pressed:
            pressed.append(status)
            raise KeyboardInterrupt

    request = Request(max_calls=2000)
    device = beside(bundled(), (8, 16))
    pictures = (make_scene(seed).image for seed in range(1000))
    found = list(explain_numbered(pictures, device, request=request, workers=2, width=4, progress=stop))
    assert 1 <= len(found) < 20
    given = [e for _, e in found if not isinstance(e, Failure)]  # a scene of nothing cannot be explained
    assert given
    assert all(e.stopped_by == "interrupt" and e.checks.sufficient for e in given)


@pytest.mark.process
def test_a_model_that_breaks_in_front_of_processes_fails_its_picture_alone():
    device = beside(bundled(), (8, 16))
    inner = device._runner.submit

    def refuse(staged, which, packed, grid):
        places = {pair.index for pair in staged}
        if bad & places:
            raise RuntimeError("cannot read this one")
        return inner(staged, which, packed, grid)

    bad: set[int] = set()
    stage = device.stage

    def noticing(view, background):
        pair = stage(view, background)
        bad.discard(pair.index)
        if (view == 77).all():
            bad.add(pair.index)
        return pair

    device._runner.submit = refuse
    device.stage = noticing
    pictures = [make_scene(seed).image for seed in range(3)]
    pictures.insert(1, np.full((128, 128, 3), 77, np.uint8))
    found = answers(pictures, device, workers=2)
    assert "cannot read this one" in found[1]
    wanted = answers([pictures[0], *pictures[2:]], bundled())
    assert [found[i] for i in (0, 2, 3)] == [wanted[i] for i in range(3)]


def test_the_natural_number_of_processes_leaves_cores_for_others():
    assert 0 <= default_count() <= 8


def test_a_process_never_uses_a_key_twice():
    """A pair of the last task that is let go late must not take one of this task with it."""
    from becausal.engine.pool import RemoteClassifier, Task

    class Line:
        def __init__(self):
            self.sent = []

        def send(self, word):
            self.sent.append(word)

    line = Line()
    task = Task(bundled().info, None, 8, 1, False)
    first = RemoteClassifier(task, line, None).stage(np.zeros(1), np.zeros(1))
    second = RemoteClassifier(task, line, None).stage(np.zeros(1), np.zeros(1))
    assert [word[:2] for word in line.sent] == [("stage", first.key), ("stage", second.key)]
    assert first.key != second.key
    del first
    assert line.sent[-1] != ("drop", second.key)

"""The interfaces for captum (attribute) and Quantus (explain_func)."""

import runpy
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from becausal.core.contracts import Finding
from becausal.core.errors import MissingExtraError, OptionError, TargetError
from becausal.core.problem import Problem
from becausal.core.targets import Target
from becausal.scenes import Scene, make_scene
from becausal.testing import MaskClassifier

torch = pytest.importorskip("torch", reason="torch is not installed")
from becausal.interfaces.captum import CausalAttribution  # noqa: E402
from becausal.interfaces.maps import find_map, keep_rank  # noqa: E402
from becausal.interfaces.quantus import explain_func  # noqa: E402
from becausal.scenes.network import load_network, to_input  # noqa: E402

EXAMPLES = Path(__file__).parents[2] / "examples"
QUICK: dict[str, Any] = {"method": "dc-causal", "options": {"partitions": 4}}
needs_quantus = pytest.mark.skipif(find_spec("quantus") is None, reason="Quantus is not installed")


@pytest.fixture(autouse=True)
def _one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@cache
def scene() -> Scene:
    return make_scene(50_000_017, cut=True)


def bright(batch: Any) -> Any:
    """Logits of (n, 1, 8, 8): class 1 where the corner is bright."""
    corner = batch[:, 0, :3, :3].mean((1, 2))
    return torch.stack([1 - corner, corner], 1) * 8


def corner_image() -> Any:
    image = torch.zeros(1, 1, 8, 8)
    image[..., :3, :3] = 1.0
    return image


def test_attribute_gives_what_captum_users_expect() -> None:
    inputs = to_input(scene().image[None])
    maps = CausalAttribution(load_network(), method="dc-causal", options={"partitions": 6}).attribute(
        inputs, target=scene().label_index
    )
    assert maps.shape == inputs.shape
    assert maps.dtype == inputs.dtype
    assert not maps.requires_grad
    assert torch.equal(maps[:, 0], maps[:, 2])
    assert maps.sum() > 0


@pytest.mark.parametrize("method", ["causal", "dc-causal"])
def test_attribute_finds_the_corner_by_a_plain_function(method: str) -> None:
    options = {"partitions": 10} if method == "dc-causal" else None
    maps = CausalAttribution(bright, method=method, options=options).attribute(corner_image(), target=1)[0, 0]
    assert maps[:3, :3].mean() > 3 * maps[4:, 4:].mean()


def test_a_method_knows_the_limit_on_calls() -> None:
    seen: list[Problem] = []

    class Watching:
        name, needs = "watching", "labels"

        def search(self, problem: Problem, rng: Any) -> Any:
            seen.append(problem)
            answers = yield np.ones((1, 8, 8), bool)
            return Finding(np.full((8, 8), answers.confidence[0]))

    model = MaskClassifier(lambda visible: 0.8 * visible[:, :3, :3].mean((1, 2)))
    view = np.ones((8, 8, 1), np.float32)
    saliency = find_map(model, view, 0 * view, Target(1), Watching(), seed=0, max_calls=60)  # type: ignore[arg-type]
    assert np.allclose(saliency, 0.8)
    assert seen[0].budget == 60
    with pytest.raises(TargetError, match="does not hold on the whole view"):
        find_map(model, view, 0 * view, Target(0), Watching(), seed=0, max_calls=60)  # type: ignore[arg-type]


def test_a_label_keeps_its_rank_and_the_last_one_half_of_its_confidence() -> None:
    scores = np.array([0.2, 0.4, 0.4, 0.1])
    assert [keep_rank(scores, label).top for label in range(4)] == [3, 1, 2, 4]
    assert [keep_rank(scores, label).floor for label in range(4)] == [0, 0, 0, 0.05]
    assert all(keep_rank(scores, label).judge(scores[None]).holds[0] for label in range(4))


def test_the_second_of_two_classes_has_a_map_of_its_own() -> None:
    def torn(batch: Any) -> Any:
        """Class 1 by the corner, class 0 a little more."""
        corner = batch[:, 0, :3, :3].mean((1, 2))
        return torch.stack([torch.full_like(corner, 1.2), corner], 1)

    maps = CausalAttribution(torn, method="occlusion").attribute(corner_image(), target=1)[0, 0]
    assert maps[:3, :3].mean() > 3 * maps[4:, 4:].abs().mean()
    maps = CausalAttribution(torn).attribute(corner_image(), target=1)[0, 0]
    assert maps[:3, :3].mean() > maps[4:, 4:].mean()


def test_a_target_that_the_baseline_keeps_has_a_map_too() -> None:
    image = corner_image().repeat_interleave(8, 2).repeat_interleave(8, 3)  # (1, 1, 64, 64), its corner 24 wide
    assert CausalAttribution(bright).attribute(image, target=0).isfinite().all()  # black is of this class too


def test_several_inputs_and_targets() -> None:
    attribution = CausalAttribution(bright, **QUICK)
    both = torch.cat([corner_image(), 1 - corner_image()])
    together = attribution.attribute(both, target=torch.tensor([1, 0]), baselines=0.0)
    apart = [attribution.attribute(both[i : i + 1], target=label) for i, label in enumerate((1, 0))]
    assert torch.equal(together, torch.cat(apart))
    assert torch.equal(attribution.attribute(both), attribution.attribute(both, target=[1, 0]))


def test_signals_have_maps_too() -> None:
    def loud(batch: Any) -> Any:
        return torch.stack([0.5 - batch[:, 0, 10:14].mean(1), batch[:, 0, 10:14].mean(1)], 1) * 9

    signal = torch.zeros(1, 2, 32)
    signal[0, 0, 10:14] = 1.0
    maps = CausalAttribution(loud, **QUICK).attribute(signal, target=1)
    assert maps.shape == signal.shape
    assert 10 <= int(maps[0, 0].argmax()) < 14


def test_further_arguments_reach_the_function() -> None:
    def scaled(batch: Any, factor: Any, name: str) -> Any:
        assert name == "here"
        return bright(batch) * factor.reshape(-1, 1)

    attribution = CausalAttribution(scaled, **QUICK)
    maps = attribution.attribute(corner_image(), 1, additional_forward_args=(torch.tensor([2.0]), "here"))
    assert torch.equal(maps, CausalAttribution(bright, **QUICK).attribute(corner_image(), 1))


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(OptionError, match="needs gradients: use captum"):
        CausalAttribution(bright, method="ig")
    attribution = CausalAttribution(bright, **QUICK)
    with pytest.raises(TargetError, match="not a class of the model, which has 2 classes"):
        attribution.attribute(corner_image(), target=7)
    with pytest.raises(TargetError, match="one label id for all 1 inputs"):
        attribution.attribute(corner_image(), target=[0, 1, 1])
    with pytest.raises(OptionError, match="one tensor"):
        attribution.attribute(np.zeros((1, 1, 8, 8)))
    with pytest.raises(OptionError, match=r"expected \(n, classes\)"):
        CausalAttribution(lambda batch: batch, **QUICK).attribute(corner_image())


def test_without_torch_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    attribution = CausalAttribution(bright, **QUICK)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtraError, match=r"pip install .*\[torch\]"):
        attribution.attribute(corner_image())


def test_explain_func_has_the_shape_quantus_wants() -> None:
    inputs = to_input(scene().image[None]).numpy()
    maps = explain_func(
        load_network(), inputs, np.array([scene().label_index]), **QUICK, nr_channels=3, img_size=128, seed=1
    )
    assert maps.shape == (1, 1, 128, 128)
    assert maps.dtype == np.float32


@needs_quantus
@pytest.mark.filterwarnings("ignore")
def test_quantus_calls_it() -> None:
    import quantus

    metric = quantus.RelevanceRankAccuracy(disable_warnings=True)
    (score,) = metric(
        model=load_network(),
        x_batch=to_input(scene().image[None]).numpy(),
        y_batch=np.array([scene().label_index]),
        s_batch=scene().visible[None, None],
        explain_func=explain_func,
        explain_func_kwargs=QUICK,
    )
    assert 0 <= score <= 1


def test_captum_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / "captum_attribution.py"), run_name="__main__")
    assert "of the responsibility is on its visible part" in capsys.readouterr().out

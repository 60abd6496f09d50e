"""The house stays as ARCHITECTURE.md draws it: who imports whom, what `import becausal` loads, which names are public."""

import ast
import json
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import becausal

ROOT = Path(becausal.__file__).parent


def name_of(path):
    """The module behind a file, without the package's own name; "" is the package itself."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {name_of(path): path for path in sorted(ROOT.rglob("*.py"))}
#: Modules of the first floor: "causal" stands for all of causal/.
FLOORS = {name.split(".")[0] for name in FILES} - {""}


@cache
def tree(name):
    return ast.parse(FILES[name].read_text(encoding="utf-8"))


@cache
def imports(name):
    """All modules a module imports, anywhere in it, by their full names; import_module("literal") counts."""
    found = set()
    for node in ast.walk(tree(name)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name} has a relative import"
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) == "import_module":
            found |= {a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)}
    return frozenset(found)


def own_floors(name):
    """The floors of ours that a module imports from, its own left out; the package itself is "becausal"."""
    found = set()
    for module in imports(name):
        if module == "becausal" or module.startswith("becausal."):
            inner = module.removeprefix("becausal").removeprefix(".")
            floor = inner.split(".")[0]
            found.add(floor if floor in FLOORS else "becausal")
    if any(module == "becausal" for module in imports(name)):
        # `from becausal import x` names the package; what it takes may be a floor.
        taken = {m.split(".")[1] for m in imports(name) if m.startswith("becausal.")}
        found |= taken & FLOORS
    return found - {name.split(".")[0]}


def modules(*floors):
    chosen = [name for name in FILES if name.split(".")[0] in floors]
    assert chosen, f"there is nothing in {floors}"
    return chosen


BASE = {"contracts", "errors"}
PURE = BASE | {"targets", "regions", "patches", "fills", "searches", "arrays", "frames", "images"}
#: What knows questions and regions, but no engine, no classifier, no files and no images.
ASKING = {"causal", "extract", "minimise", "verify", "pipeline", "explainers"}
QUESTIONS = BASE | {"targets", "regions", "patches", "searches"} | ASKING


@pytest.mark.parametrize("name", modules("contracts", "errors"))
def test_contracts_and_errors_import_nothing_of_ours(name):
    assert own_floors(name) == set()


@pytest.mark.parametrize("name", modules("regions", "patches", "fills", "targets", "searches"))
def test_the_pure_parts_import_the_base_alone(name):
    assert own_floors(name) <= BASE


@pytest.mark.parametrize("name", modules("arrays", "frames", "images"))
def test_pictures_know_the_base_and_each_other(name):
    assert own_floors(name) <= PURE


@pytest.mark.parametrize("name", modules(*ASKING))
def test_methods_know_questions_and_no_model_no_file_no_picture(name):
    loads = {m for m in imports(name) if m.startswith(("becausal.scenes", "becausal.models"))}
    if name == "explainers.gradients":  # the torch form of the bundled classifier, and the numbers it takes
        assert loads == {"becausal.scenes.network", "becausal.models.preprocess"}
    else:
        assert not loads
    assert own_floors(name) <= QUESTIONS | {"scenes", "classifiers"}
    assert not {m for m in imports(name) if m.split(".")[0] in ("PIL", "onnxruntime", "pathlib", "os", "io")}


@pytest.mark.parametrize("name", modules("causal"))
def test_the_causal_core_needs_numpy_and_nothing_else(name):
    assert {m.split(".")[0] for m in imports(name)} - sys.stdlib_module_names <= {"numpy", "becausal"}
    assert "explainers" not in own_floors(name)


def test_the_engine_knows_the_protocol_and_no_kind_of_model():
    assert own_floors("engine") <= BASE | {"searches", "drives", "interrupts"}
    assert own_floors("drives") <= BASE | {"targets"}
    assert own_floors("interrupts") == set()


@pytest.mark.parametrize("name", modules("classifiers"))
def test_classifiers_know_no_search(name):
    assert own_floors(name) <= BASE | {"images", "arrays", "frames"}


@pytest.mark.parametrize("name", modules("render"))
def test_render_knows_the_explanation(name):
    pages_of_runs = {"batch"} if name in ("render.run_page", "render.diff_page") else set()
    assert own_floors(name) <= BASE | {"explanation", "compare", "metrics"} | pages_of_runs


@pytest.mark.parametrize("name", modules("batch"))
def test_runs_know_the_front_door_and_no_algorithm(name):
    assert own_floors(name) <= BASE | {"api", "classifiers", "explanation", "frames", "images", "scenes"}


@pytest.mark.parametrize("name", modules("scenes"))
def test_scenes_know_nothing_of_ours(name):
    assert own_floors(name) == set()


def test_nothing_imports_the_command_line_or_the_page():
    for name in FILES:
        floor = name.split(".")[0]
        if floor.startswith("cli") or floor in ("web", "__main__"):
            continue
        outer = {f for f in own_floors(name) if f.startswith("cli") or f in ("web", "__main__")}
        assert not outer, f"{name} imports {outer}"


def test_only_the_answer_and_the_outer_parts_draw():
    # Explanation draws itself, when asked: inside its methods.
    for name in FILES:
        if "render" in own_floors(name):
            floor = name.split(".")[0]
            assert floor in ("explanation", "compare", "bench") or floor.startswith(("cli", "web")), f"{name} imports render"


def test_nothing_but_the_command_line_imports_the_benches():
    for name in FILES:
        if "bench" in own_floors(name):
            assert name.startswith(("cli", "web")), f"{name} imports the benches"


#: The only files that may import a heavy or optional library, wherever in them.
NAMED = {
    "torch": {
        "captum", "quantus", "scenes.network", "classifiers.torch_module", "classifiers.torch_compose",
        "classifiers.torch_device",
        "explainers.deeplift", "explainers.extremal", "explainers.gbp", "explainers.gradients", "explainers.lrp",
        "explainers.lrp_rules", "explainers.relative", "explainers.smooth_masks", "explainers.torch_layers",
    },
    "captum": {"captum", "explainers.deeplift", "explainers.gradients", "explainers.lrp_rules"},
    "shap": {"explainers.shap_partition"},
    "quantus": set(),
    "matplotlib": {
        "explanation", "render.figures", "render.painting", "render.signals", "render.comparison",
        "bench.figures",
    },
    "onnxruntime": {"classifiers.onnx_file", "classifiers.onnx_binding"},
    "transformers": {"classifiers.huggingface"},
    "timm": {"classifiers.timm_hub"},
    "torchvision": {"classifiers.torchvision_hub"},
    "keras": {"classifiers.keras_file"},
    "cv2": {"fills"},
    "ray": {"batch.ray"},
    "pyarrow": {"batch.export"},
    "gradio": {"web.layout", "web.page", "web.server"},
    "fastapi": {"web.server"},
    "uvicorn": {"web.server"},
    "typer": {name for name in FILES if name.startswith("cli")},
    "rich": {name for name in FILES if name.startswith("cli")},
    "PIL": {
        "images", "render.painting", "render.thumbnails", "scenes.dataset", "bench.planting", "bench.shapes", "web.pictures",
    },
}  # fmt: skip


@pytest.mark.parametrize("library", NAMED)
def test_a_heavy_library_is_imported_in_named_files_only(library):
    importers = {name for name in FILES if library in {m.split(".")[0] for m in imports(name)}}
    assert importers <= NAMED[library]


def test_no_other_library_has_crept_in():
    known = {*NAMED, "numpy", "becausal"} | sys.stdlib_module_names
    for name in FILES:
        assert {m.split(".")[0] for m in imports(name)} <= known, name


HEAVY = ["torch", "ray", "matplotlib", "gradio", "captum", "shap", "transformers", "timm", "torchvision", "keras", "cv2"]
LOADED = "import json, sys; print(json.dumps(sorted({name.split('.')[0] for name in sys.modules})))"


def loaded_after(code):
    """The first-floor modules a fresh interpreter holds after some code."""
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{LOADED}"],
        capture_output=True, text=True, timeout=120, check=False, env={"PYTHONPATH": str(ROOT.parent)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_import_loads_nothing_heavy():
    assert not loaded_after("import becausal") & {*HEAVY, "onnxruntime", "onnx", "scipy", "typer", "rich"}


def test_explaining_a_function_loads_nothing_heavy():
    code = """
import numpy as np, becausal
bright = lambda batch: np.stack([255 - batch[:, 0, 0, 0], batch[:, 0, 0, 0]], axis=1) / 255.0
for method in ("causal", "dc-causal"):
    assert becausal.explain(np.full((8, 8, 3), 250, np.uint8), bright, method=method, fill="black").pixels == 1
"""
    assert not loaded_after(code) & {*HEAVY, "onnxruntime", "typer", "rich"}


def test_the_public_names():
    assert sorted(becausal.__all__) == [
        "BecausalError", "Checks", "Claim", "Explanation", "Failure", "Request", "Status", "__version__", "classify",
        "explain", "explain_many", "load_model", "verify",
    ]  # fmt: skip
    assert all(hasattr(becausal, name) for name in becausal.__all__)


def test_every_module_says_what_it_is_and_is_named_after_something():
    for name, path in FILES.items():
        text = ast.get_docstring(tree(name))
        assert text, f"{path} has no docstring"
        assert text.split("\n\n")[0].rstrip().endswith((".", ":", "?")), f"{path} begins with no sentence"
        assert not set(name.split(".")) & {"utils", "util", "helpers", "common", "manager", "misc"}


def test_library_code_neither_prints_nor_exits():
    for name in FILES:
        if name.startswith(("cli", "__main__", "web")):
            continue
        calls = {ast.unparse(node.func) for node in ast.walk(tree(name)) if isinstance(node, ast.Call)}
        assert not calls & {"print", "exit", "quit", "sys.exit", "os._exit"}, name
        bare = [n for n in ast.walk(tree(name)) if isinstance(n, ast.ExceptHandler) and n.type is None]
        assert not bare, f"{name} has a bare except"


def test_every_error_is_in_the_tree_of_the_docstring():
    from becausal.core import errors

    kinds = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, Exception)]
    drawn = [line for line in errors.__doc__.splitlines() if "Error" in line]
    for kind in kinds:
        assert issubclass(kind, becausal.BecausalError)
        assert any(kind.__name__ in line for line in drawn), f"{kind.__name__} is not drawn"

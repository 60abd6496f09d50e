"""The code stays as ARCHITECTURE.md draws it: who imports whom, what `import becausal` loads, sizes, public names."""

import ast
import json
import re
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import becausal

ROOT = Path(becausal.__file__).parent
PAGE = (ROOT.parent.parent / "ARCHITECTURE.md").read_text(encoding="utf-8")


def name_of(path):
    """The module behind a file, without the package's own name; "__init__" is the package itself."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


FILES = {name_of(path): path for path in sorted(ROOT.rglob("*.py"))}


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


@cache
def own_imports(name):
    """The modules of ours that a module imports: of `from package import x` the module x, or else the package."""
    found = set()
    for node in ast.walk(tree(name)):
        if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] == "becausal":
            base = node.module.removeprefix("becausal").removeprefix(".")
            for alias in node.names:
                inner = f"{base}.{alias.name}".removeprefix(".")
                found.add(inner if inner in FILES else base or "__init__")
    for module in imports(name):
        inner = module.removeprefix("becausal").removeprefix(".")
        if module.startswith("becausal.") and inner in FILES:
            found.add(inner)
        elif module == "becausal" and "__init__" not in found and not found:
            found.add("__init__")
    return frozenset(found - {name})


def room(name):
    return name.split(".")[0]


def allowed_edges():
    """The table of ARCHITECTURE.md."""
    block = PAGE.split("## Who may import whom")[1].split("\n    ", 1)[1].split("\n\n")[0]
    lines = [line.split() for line in block.splitlines()]
    return {words[0]: set(words[1:]) for words in lines}


def test_there_are_at_most_fifteen_entries_and_the_page_names_each():
    entries = {
        path.stem for path in ROOT.iterdir() if path.suffix == ".py" or (path.is_dir() and path.name != "__pycache__")
    }
    assert len(entries) <= 15
    assert entries == set(allowed_edges())


def test_rooms_import_only_what_the_page_allows():
    allowed = allowed_edges()
    for name in FILES:
        wanted = {room(other) for other in own_imports(name)} - {room(name)}
        assert wanted <= allowed[room(name)], f"{name} imports {wanted}"


def test_every_allowed_edge_is_used():
    used = {(room(name), room(other)) for name in FILES for other in own_imports(name) if room(name) != room(other)}
    for start, ends in allowed_edges().items():
        for end in ends:
            assert (start, end) in used, f"nothing in {start} imports {end}"


def test_no_modules_import_each_other_in_a_circle():
    state = {}

    def visit(name, path):
        state[name] = "open"
        for other in sorted(own_imports(name)):
            assert state.get(other) != "open", " -> ".join([*path, name, other])
            if other not in state:
                visit(other, [*path, name])
        state[name] = "done"

    for name in FILES:
        if name not in state:
            visit(name, [])


#: core.files reads and writes on behalf of all; everything else in core computes.
PURE = [name for name in FILES if name.startswith(("core.", "search.")) and name != "core.files"]


def test_the_core_the_searches_and_the_causal_methods_are_pure():
    for name in (*PURE, *(name for name in FILES if name.startswith("methods.causal"))):
        used = {module.split(".")[0] for module in imports(name)}
        assert used - sys.stdlib_module_names <= {"numpy", "becausal"}, name
        assert name not in PURE or not used & {"PIL", "onnxruntime", "pathlib", "os", "io", "tempfile", "socket"}, name


def test_files_and_functions_are_of_a_size_that_can_be_read():
    for name, path in FILES.items():
        assert len(path.read_text(encoding="utf-8").splitlines()) <= 500, path
        for node in ast.walk(tree(name)):
            if isinstance(node, ast.FunctionDef):
                assert node.end_lineno - node.lineno < 60 or (name, node.name) in LONG, f"{name}.{node.name} is too long"
                arguments = node.args.posonlyargs + node.args.args + node.args.kwonlyargs
                own = [a for a in arguments if a.arg not in ("self", "cls")]
                assert len(own) <= 12 or (name, node.name) in LONG, f"{name}.{node.name} has {len(own)} parameters"


#: The front door says every option by name, and documents each.
LONG = {("api", "explain"), ("models", "load_model"), ("models", "as_classifier")}


def test_the_way_of_one_image_has_at_most_sixteen_steps_that_exist():
    block = PAGE.split("## One image")[1].split("\n\n")[1]
    steps = re.findall(r"(?:^|\s{2,})(\d+) ([\w.]+)", block, flags=re.M)
    assert sorted(int(number) for number, _ in steps) == list(range(1, len(steps) + 1))
    assert len(steps) <= 16
    defined = {n.name for name in FILES for n in ast.walk(tree(name)) if isinstance(n, (ast.FunctionDef, ast.ClassDef))}
    for _, path in steps:
        for word in path.split("."):
            assert word in defined or any(word in name.split(".") for name in FILES), f"there is no {path}"


#: The only files that may import a heavy or optional library, wherever in them.
NAMED = {
    "torch": {
        "interfaces.captum", "interfaces.quantus", "models.bundled.network", "models.torch_module", "models.torch_device",
        "methods.extremal", "methods.gradient_maps", "methods.gradients",
        "methods.lrp_rules", "methods.relative", "methods.torch_layers", "lab.sanity",
    },
    "captum": {"interfaces.captum", "methods.gradient_maps", "methods.gradients", "methods.lrp_rules"},
    "shap": {"methods.shap_partition"},
    "quantus": set(),
    "xaitk_saliency": {"interfaces.xaitk"},
    "matplotlib": {
        "api.explanation", "render.figures", "render.painting", "render.comparison", "lab.page",
    },
    "onnxruntime": {"models.onnx_file"},
    "transformers": {"models.hubs"},
    "timm": {"models.hubs"},
    "torchvision": {"models.hubs"},
    "keras": {"models.keras_file"},
    "cv2": {"images.fills"},
    "ray": {"batch.ray"},
    "pyarrow": {"batch.export"},
    "starlette": {
        "interfaces.serve.app", "interfaces.serve.api", "interfaces.serve.page", "interfaces.serve.service",
    },
    "uvicorn": {"interfaces.serve.app"},
    "python_multipart": {"interfaces.serve.bodies"},
    "prometheus_client": {"interfaces.serve.service"},
    "typer": {name for name in FILES if name.startswith("interfaces.cli")},
    "jinja2": {"render.pages", "interfaces.serve.rendering"},
    "markupsafe": {"render.pages"},
    "httpx": {"models.endpoint.transport"},
    "rich": {name for name in FILES if name.startswith("interfaces.cli")},
    "PIL": {
        "images.loading", "render.painting", "scenes.dataset", "interfaces.serve.images",
    },
}  # fmt: skip


def test_a_heavy_library_is_imported_in_named_files_only():
    for library, named in NAMED.items():
        importers = {name for name in FILES if library in {m.split(".")[0] for m in imports(name)}}
        assert importers <= named, f"{library} is imported in {importers - named}"
        assert named <= set(FILES), f"there is no {named - set(FILES)}"


def test_no_other_library_has_crept_in():
    known = {*NAMED, "numpy", "becausal"} | sys.stdlib_module_names
    for name in FILES:
        assert {m.split(".")[0] for m in imports(name)} <= known, name


#: Names on a package index where they differ from the module's.
INDEX_NAMES = {
    "PIL": "pillow",
    "cv2": "opencv-python-headless",
    "python_multipart": "python-multipart",
    "prometheus_client": "prometheus-client",
    "markupsafe": "jinja2",
    "xaitk_saliency": "xaitk-saliency",
}


def test_every_library_is_declared():
    project = tomllib.loads((ROOT.parent.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = [*project["dependencies"], *(name for extra in project["optional-dependencies"].values() for name in extra)]
    names = {re.split(r"[<>=\[;]", line)[0].strip() for line in declared}
    for library in {*NAMED, "numpy"} - {"quantus"}:  # quantus calls us
        assert INDEX_NAMES.get(library, library) in names, f"{library} is imported and not declared"


def test_no_two_classes_share_a_name():
    names = [n.name for name in FILES for n in ast.walk(tree(name)) if isinstance(n, ast.ClassDef) and n.name[0] != "_"]
    assert sorted(names) == sorted(set(names))


HEAVY = ["torch", "ray", "matplotlib", "starlette", "captum", "shap", "transformers", "timm", "torchvision", "keras", "cv2"]
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
    assert becausal.explain(np.full((8, 8, 3), 250, np.uint8), bright, method=method, fills="black").pixels == 1
"""
    assert not loaded_after(code) & {*HEAVY, "onnxruntime", "typer", "rich"}


def test_the_public_names():
    assert sorted(becausal.__all__) == [
        "BecausalError", "Checks", "Claim", "DetectedBox", "Explanation", "Failure", "Request", "Status", "__version__",
        "check", "classify", "detect", "explain", "explain_boxes", "explain_many", "load_model", "similar", "verify",
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
        if name.startswith(("interfaces", "__main__")):
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

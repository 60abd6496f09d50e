"""What a release consists of: the package as pip gets it, how it is installed, the Dockerfile, the action for GitHub."""

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from batch_toys import MODEL, QUICK, write_pictures

from becausal.interfaces.cli.app import main

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
ACTION = ROOT / "examples" / "github-action" / "action.yml"


@pytest.mark.process
def test_the_release_is_built_and_its_wheel_runs_from_an_empty_folder(tmp_path):
    for name in ("build", "hatchling", "twine"):
        pytest.importorskip(name, reason=f'{name} is not installed: pip install -e ".[dev]"')

    def call(*words, **options):
        done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False, **options)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    call("-m", "build", "--no-isolation", "--outdir", tmp_path / "dist", ROOT)  # the wheel from the sdist
    (wheel,), (sdist,) = (list((tmp_path / "dist").glob(f"*{ending}")) for ending in (".whl", ".tar.gz"))
    call("-m", "twine", "check", "--strict", wheel, sdist)
    zipfile.ZipFile(wheel).extractall(tmp_path / "installed")
    (tmp_path / "empty").mkdir()
    place = {"cwd": tmp_path / "empty", "env": {**os.environ, "PYTHONPATH": str(tmp_path / "installed")}}
    assert call("-c", "import becausal; print(becausal.__file__)", **place).startswith(str(tmp_path))
    call("-m", "becausal", "demo", **place)
    assert (tmp_path / "empty" / "becausal-out" / "demo" / "report.html").is_file()


def test_nothing_says_that_pip_finds_it_on_an_index():
    paths = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.*")]
    for path in [*paths, *(ROOT / "src").rglob("*.py"), *(ROOT / "tests").glob("*.py")]:
        found = re.search(r"pip install ['\"]?becausal|(?<!/)becausal\[\w+\]", path.read_text(encoding="utf-8"))
        assert found is None, (path, found)


def test_the_dockerfile_names_what_there_is():
    text = (ROOT / "Dockerfile").read_text()
    for line in re.findall(r"^COPY (.+) \S+$", text, re.MULTILINE):
        assert all((ROOT / name).exists() for name in line.split()), line
    copied = {name for line in re.findall(r"^COPY (.+) \S+$", text, re.MULTILINE) for name in line.split()}
    assert {"pyproject.toml", PROJECT["readme"], *PROJECT["license-files"], "src"} == copied  # what a build needs
    extras = re.search(r"whl\)\[(.+?)\]", text)[1].split(",")
    assert set(extras) <= set(PROJECT["optional-dependencies"])
    for version in re.findall(r"^FROM python:([\d.]+)", text, re.MULTILINE):
        assert f"Programming Language :: Python :: {version}" in PROJECT["classifiers"]


def test_the_image_does_not_run_as_root():
    last = (ROOT / "Dockerfile").read_text().rpartition("\nFROM ")[2]
    users = re.findall(r"^USER (\S+)$", last, re.MULTILINE)
    assert users
    assert users[-1].isdecimal()  # a cluster checks numbers only
    assert int(users[-1]) > 0
    assert last.index("\nUSER ") < last.index("\nENTRYPOINT ")


@pytest.fixture(scope="module")
def action():
    return pytest.importorskip("yaml").safe_load(ACTION.read_text())


def test_the_action_is_composite_and_puts_no_input_into_a_script(action):
    assert {"name", "description", "inputs", "runs"} == set(action)
    assert action["runs"]["using"] == "composite"
    used = set()
    for step in action["runs"]["steps"]:
        assert ("run" in step) != ("uses" in step)
        if "run" in step:
            assert step["shell"] == "bash"
            assert "${{" not in step["run"]
            used |= {re.fullmatch(r"\$\{\{ inputs\.(\w+) \}\}", value)[1] for value in step.get("env", {}).values()}
            for name in re.findall(r"\$\{?([A-Z]+)\b", step["run"]):
                assert name in step.get("env", {}) or name.startswith("GITHUB"), name
    assert used == set(action["inputs"])
    assert action["inputs"]["package"]["required"]  # there is no distribution on an index that could be the default
    for each in action["inputs"].values():
        assert each["required"] != ("default" in each)


@pytest.mark.process
@pytest.mark.parametrize(("share", "status"), [(1.0, 0), (0.0, 1)])
def test_the_steps_of_the_action_run(action, tmp_path, share, status):
    (tmp_path / "net.py").write_text(MODEL)
    write_pictures(tmp_path / "shots", 2)
    (tmp_path / "rules.toml").write_text(f"[size]\nat_most = 0.001\nmax_share = {share}\n")
    command = f"{sys.executable} -m becausal"
    given = {
        "inputs.images": "shots", "inputs.model": "python:net.py:predict", "inputs.rules": "rules.toml",
        "inputs.options": " ".join(("--max-calls", "60", *QUICK)),
    }  # fmt: skip
    statuses = []
    for step in action["runs"]["steps"]:
        if "run" not in step or "pip" in step["run"]:
            continue
        env = {name: given[value.strip("${ }")] for name, value in step.get("env", {}).items()}
        script = f'becausal() {{ {command} "$@"; }}\n{step["run"]}'
        env = {**os.environ, **env, "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md")}
        words = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]  # as GitHub runs them
        statuses.append(subprocess.run(words, cwd=tmp_path, env=env, check=False).returncode)
    assert statuses == [status, 0]
    assert "size" in (tmp_path / "summary.md").read_text()
    assert (tmp_path / "check.html").is_file()


def test_the_action_uses_options_that_exist(action, capsys):
    script = next(step["run"] for step in action["runs"]["steps"] if "becausal check" in step.get("run", ""))
    main(["check", "--help"])
    known = capsys.readouterr().out
    for name in re.findall(r"--[a-z]+", script):
        assert name in known

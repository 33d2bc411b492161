"""Contents of both wheels."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import venv
import zipfile
from email.message import Message
from email.parser import Parser
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from cli_models import LETTERS, Output, letter_tokenizer, run
from runtime import graphs, translators

ROOT = Path(__file__).parents[1]
FOLDERS = {"t2r_export": ROOT, "t2r_runtime": ROOT / "runtimes" / "python"}
PACKAGING = ("pyproject.toml", "README.md", "LICENSE", "NOTICE")
BUILT = shutil.ignore_patterns("__pycache__", "*.pyc")
DATA = {"t2r_export": {"py.typed"}, "t2r_runtime": {"py.typed", "serve/page.html"}}  # files that are no modules


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, zipfile.ZipFile]:
    """Wheels by package; built from copies, so that the source tree stays clean."""
    made = {}
    for package, folder in FOLDERS.items():
        place = tmp_path_factory.mktemp(package)
        # files that must not end up in a wheel
        for name in ("tests", "benchmarks", "models", "docs"):
            (place / "source" / name).mkdir(parents=True)
            (place / "source" / name / "__init__.py").touch()
        shutil.copytree(folder / package, place / "source" / package, ignore=BUILT)
        for name in PACKAGING:
            if (folder / name).exists():
                shutil.copy(folder / name, place / "source")
        options = ["--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", place]
        command = [sys.executable, "-m", "pip", "wheel", *map(str, options), str(place / "source")]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        [wheel] = place.glob("*.whl")
        made[package] = zipfile.ZipFile(wheel)
    return made


@pytest.mark.slow
@pytest.mark.parametrize("package", FOLDERS)
def test_wheel_contents(package: str, wheels: dict[str, zipfile.ZipFile]) -> None:
    source = FOLDERS[package] / package
    modules = {f"{package}/{path.relative_to(source)}" for path in source.rglob("*.py")}
    found = {name for name in wheels[package].namelist() if ".dist-info/" not in name}
    assert found == modules | {f"{package}/{name}" for name in DATA[package]}


@pytest.mark.parametrize("package", FOLDERS)
def test_source_and_wheel_agree(package: str) -> None:
    top = FOLDERS[package] / package
    files = {str(path.relative_to(top)) for path in top.rglob("*") if path.is_file()}
    assert {name for name in files if not name.endswith((".py", ".pyc"))} == DATA[package]


def metadata(wheel: zipfile.ZipFile) -> Message:
    [name] = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    return Parser().parsestr(wheel.read(name).decode())


def test_runtime_dependencies(wheels: dict[str, zipfile.ZipFile]) -> None:
    needed = metadata(wheels["t2r_runtime"]).get_all("Requires-Dist") or []
    extra = [text for text in needed if "extra ==" in text]
    assert {text.partition(">")[0] for text in needed if text not in extra} == {"numpy", "onnxruntime", "tokenizers"}
    assert [text.partition(">")[0] for text in extra] == [
        *("jinja2", "faiss-cpu", "jinja2", "click"),  # chat, retrieval, run
        *("jinja2", "click", "starlette", "uvicorn", "llguidance"),  # serve, structured
    ]


def commands(wheel: zipfile.ZipFile) -> list[str]:
    [name] = [name for name in wheel.namelist() if name.endswith(".dist-info/entry_points.txt")]
    return [line for line in wheel.read(name).decode().split("\n") if "=" in line]


def test_commands_and_extras(wheels: dict[str, zipfile.ZipFile]) -> None:
    assert commands(wheels["t2r_runtime"]) == ["t2r-run = t2r_runtime.__main__:main"]
    assert commands(wheels["t2r_export"]) == [
        "t2r = t2r_export.__main__:t2r",
        "t2r-export = t2r_export.__main__:export",
    ]
    assert metadata(wheels["t2r_runtime"]).get_all("Provides-Extra") == [
        "chat",
        "retrieval",
        "run",
        "serve",
        "structured",
    ]
    assert metadata(wheels["t2r_export"]).get_all("Provides-Extra") == [
        "bleu",
        "peers",
        "docs",
        "gguf",
        "fla",
        "parquet",
        "plot",
        "release",
        "test",
        "dev",
    ]
    versions = {package: metadata(wheel)["Version"] for package, wheel in wheels.items()}
    assert versions == {package: __import__(package).__version__ for package in FOLDERS}


def needed(packages: list[str]) -> set[str]:
    """These distributions and their dependencies, as pip would install them."""
    found: set[str] = set()
    left = list(packages)
    while left:
        name = left.pop()
        if name not in found:
            found.add(name)
            wanted = [Requirement(text) for text in distribution(name).requires or []]
            left += [one.name for one in wanted if one.marker is None or one.marker.evaluate({"extra": ""})]
    return found


@pytest.fixture(scope="module")
def alone(wheels: dict[str, zipfile.ZipFile], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment with only the runtime's wheel and its extra's dependencies."""
    folder = tmp_path_factory.mktemp("alone")
    venv.create(folder, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    wheel = wheels["t2r_runtime"]
    asked = [Requirement(text) for text in metadata(wheel).get_all("Requires-Dist") or []]
    for name in needed([one.name for one in asked if one.marker is None or one.marker.evaluate({"extra": "run"})]):
        for top in {file.parts[0] for file in distribution(name).files or [] if file.parts[0] != ".."}:
            if not (site / top).exists():
                (site / top).symlink_to(distribution(name).locate_file(top))
    options = ["--python", folder / "bin" / "python", "install", "--no-deps", "--no-index", str(wheel.filename)]
    done = subprocess.run([sys.executable, "-m", "pip", *map(str, options)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "bin"


def started(program: Path, *arguments: object, said: str = "") -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    command = [str(program), *map(str, arguments)]
    return subprocess.run(command, input=said, capture_output=True, text=True, env=environment, cwd=program.parent)


@pytest.mark.slow
def test_graphs_run_without_toolchain(
    alone: Path, tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`t2r-run` gives the output of `t2r`."""
    for package in ("torch", "onnx", "t2r_export", "transformers"):
        assert f"No module named '{package}'" in started(alone / "python", "-c", f"import {package}").stderr
    letters = LETTERS[: graphs.VOCABULARY]
    chat = {"template": "{{ messages[-1].content }}", "tokens": {}}
    graph = graphs.save(tmp_path / "g.onnx", tokenizer=letter_tokenizer(letters), chat_template=chat)
    tokenizers = {"tokenizer": letter_tokenizer(), "source_tokenizer": letter_tokenizer(LETTERS[: translators.SOURCE])}
    translator = translators.save(tmp_path / "t", 1, **tokenizers)
    (tmp_path / "text").write_text("abadcafe")
    greedy = ["--temperature", 0, "--max-tokens", 7]
    for said, command in (
        ("", ["generate", graph, "--prompt", "abc", *greedy]),
        ("bad\ncab\n", ["chat", graph, *greedy]),
        ("", ["score", graph, tmp_path / "text"]),
        ("bad\n\ncab\n", ["translate", translator, "--max-tokens", 7]),
    ):
        done = started(alone / "t2r-run", *command, said=said)
        assert done.returncode == 0, done.stderr
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(said.encode())))
        verb, *rest = command
        assert done.stdout == run(capsys, {"score": "evaluate"}.get(str(verb), verb), *rest)[0] != ""
    done = started(alone / "t2r-run", "serve", graph)
    missing = "expected the package starlette; received a Python without it"
    assert (done.returncode, done.stderr) == (2, f"t2r-run: {missing}; pip install starlette uvicorn\n")
    done = started(alone / "t2r-run", "generate", tmp_path / "none.onnx")
    assert (done.returncode, done.stderr.count("\n"), done.stderr[:9]) == (2, 1, "t2r-run: ")


def test_missing_click_is_one_line(alone: Path, tmp_path: Path) -> None:
    hidden = tmp_path / "click.py"
    hidden.write_text("raise ModuleNotFoundError(\"No module named 'click'\", name='click')")
    program = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from t2r_runtime.__main__ import main; sys.exit(main())"
    )
    done = started(alone / "python", "-c", program)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "t2r-run: expected click; received none; pip install click jinja2\n"

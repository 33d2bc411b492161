"""The translator comparison: order, rows, and available engines."""

from __future__ import annotations

import json
import sys
import types
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import small
import texts
from checkpoints.hub.test_translator import ours
from comparison import decode, translate, translators
from comparison.engines import Files, parse
from comparison.tables import tables
from comparison.translate import TranslatePlan, bench_translate, chosen
from comparison.translator_runners import T2R, CTranslate2, Tokens, Transformers
from comparison.translators import ENGINES, Models, make
from t2r_export.checkpoints import checkpoint
from t2r_export.config.mixers import LinearConfig
from t2r_export.convert import convert
from t2r_export.errors import CheckFailed
from t2r_export.quality.translations import translate as greedy
from t2r_runtime.errors import UserError
from test_build_pairs import PAIRS

pytestmark = pytest.mark.slow

WORDS = ("bad", "dab", "fed", "cab", "gag", "bee", "egg", "ace", "add", "had")
END = 6
CONFIG = ours("pegasus", start_tokens=(3,), banned_tokens=(), eos_tokens=(END,), vocab_size=11)
SEED = 29  # seed of a model whose translations end, some of them late
SOURCES: list[Tokens] = [[1, 0, 3], [2, 4], [5, 5, 0, 1, 6], [7]]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a teacher, a student, a recipe and its pairs."""
    folder = tmp_path_factory.mktemp("translate")
    teacher = small.model(CONFIG, SEED)
    student = convert(teacher, LinearConfig(4), cross=LinearConfig(5))
    for name, model in (("teacher", teacher), ("student", student)):
        checkpoint.save(folder / f"{name}.pt", model, texts.tokenizer(), {})
    (folder / "recipe.toml").write_text(PAIRS)
    with zipfile.ZipFile(folder / "pairs.zip", "w") as archive:
        archive.writestr("deu.txt", "".join(f"{word[::-1]}s\t{word}\n" for word in WORDS))
    return folder


@pytest.fixture
def options(place: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Options of a plan that runs in a moment."""
    monkeypatch.setenv("T2R_DATA", str(place))
    monkeypatch.setattr(decode, "SETTLE", 0)
    files = {"recipe": "recipe.toml", "teacher": "teacher.pt", "student": "student.pt"}
    counts = {"sentences": 4, "checked": 5, "batches": (1, 3), "threads": (1,), "rounds": 2}
    short = {"lengths": (9,), "length_rounds": 1, "starts": 1}
    return {**{name: str(place / file) for name, file in files.items()}, **counts, **short}


class Player:
    """A Worker without a process: 0.1 s per sentence; translations are one token longer than the source."""

    log: list[tuple[Any, ...]] = []
    broken: set[tuple[str, int]] = set()  # (engine, beam) that fails
    wrong: set[tuple[str, str]] = set()  # (engine, compute type) with wrong translations

    def __init__(self, engine: str, path: Path, threads: int, options: Mapping[str, Any] | None = None) -> None:
        self.name = (engine, str((options or {}).get("form")))
        self.log.append((*self.name, "start", threads))

    def __enter__(self) -> Player:
        return self

    def __exit__(self, *_: object) -> None:
        self.log.append((*self.name, "close"))

    def open(self) -> None: ...

    def translate(
        self, sources: Sequence[Tokens], width: int, batch: int, length: int | None = None
    ) -> tuple[float, list[Tokens]]:
        self.log.append((*self.name, "translate", len(sources), width, batch, length))
        if (self.name[0], width) in self.broken:
            raise UserError("an engine to translate", "out of memory", "leave it out")
        last = 8 if self.name in self.wrong else 2
        return 0.1 * len(sources), [[*source, last] if length is None else [4] * length for source in sources]

    def memory(self) -> dict[str, int]:
        return {"resident": 7_000_000, "peak": 9_000_000}


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> type[Player]:
    for name in ("log", "broken", "wrong"):
        monkeypatch.setattr(Player, name, type(getattr(Player, name))())
    monkeypatch.setattr(translate, "Worker", Player)
    monkeypatch.setattr(translate, "require_installed", lambda candidates, engines: None)
    monkeypatch.setattr(translate, "make", lambda c, models, folder: Files(folder, 5, options={"form": c.form}))
    return Player


PLAYED = ("t2r:w4", "t2r:int8", "t2r:float32:model=teacher", "transformers:float32", "ctranslate2:int8")


def test_rates_ratios_memory_and_counts(options: dict[str, Any], played: type[Player]) -> None:
    result = bench_translate(TranslatePlan(engines=PLAYED, **options))
    assert json.loads(json.dumps(result)) == result
    row = next(row for row in result["speeds"] if (row["name"], row["beam"], row["batch"]) == ("t2r:w4", 4, 3))
    assert (row["median"], row["ratio"], row["count"]) == (pytest.approx(10), 1.0, 2)
    assert row["tokens_per_second"] == pytest.approx(10 * row["tokens"] / 4)
    assert row["tokens"] == 4 * (len(WORDS[0]) + 1)
    assert (row["resident"], row["peak"]) == (7_000_000, 9_000_000)
    long = next(row for row in result["lengths"])
    assert (long["length"], long["tokens"], long["median"]) == (9, 9, pytest.approx(100 / 9))
    assert [row["count"] for row in result["starts"]] == [1] * 5
    assert {row["name"] for row in result["parity"]} == set(PLAYED[2:])


def test_speeds_per_thread_count(options: dict[str, Any], played: type[Player]) -> None:
    result = bench_translate(TranslatePlan(engines=("t2r:w4",), **{**options, "threads": (1, 2)}))
    shown = {kind: [row["threads"] for row in result[kind]] for kind in ("speeds", "lengths", "starts")}
    assert shown == {"speeds": [1] * 4 + [2] * 4, "lengths": [1], "starts": [1]}
    assert {"sentences-1", "sentences-2", "lengths-1"} <= tables(result).keys()


def test_turns_after_warm_up(options: dict[str, Any], played: type[Player]) -> None:
    bench_translate(TranslatePlan(engines=PLAYED[2:], **{**options, "batches": (1,), "lengths": (), "starts": 0}))
    greedy_ = [call for call in played.log if call[2:] == ("translate", 4, 1, 1, None)]
    first, *rounds = [[call[0] for call in greedy_[i : i + 3]] for i in range(0, len(greedy_), 3)]
    assert first == ["t2r", "transformers", "ctranslate2"]
    assert len(rounds) == 2 and all(sorted(turn) == sorted(first) for turn in rounds)
    starts = [call for call in played.log if call[2] == "start"]
    assert len(starts) == len([call for call in played.log if call[2] == "close"])


def test_failed_engine_has_reason_in_row(options: dict[str, Any], played: type[Player]) -> None:
    played.broken.add(("t2r", 4))
    result = bench_translate(TranslatePlan(engines=("t2r:w4",), **options))
    assert [("error" in row, row["beam"]) for row in result["speeds"]] == [(False, 1)] * 2 + [(True, 4)] * 2


def test_different_translations_have_no_speed(options: dict[str, Any], played: type[Player]) -> None:
    played.wrong |= {("ctranslate2", "int8")}
    parity = bench_translate(TranslatePlan(engines=PLAYED, **options))["parity"]
    assert {row["name"]: row["differ"] for row in parity if row["beam"] == 1} == {
        "t2r:float32:model=teacher": 0,
        "transformers:float32": 0,
        "ctranslate2:int8": 5,  # rounding: differences are counted
    }
    played.wrong.add(("transformers", "float32"))
    played.log.clear()
    with pytest.raises(CheckFailed, match="5 of 5 greedy translations of transformers:float32 are not those of t2r:fl"):
        bench_translate(TranslatePlan(engines=PLAYED, **options))
    assert {call[4:] for call in played.log if call[2] == "translate"} == {(1, 32, None), (4, 32, None)}


def test_tables(options: dict[str, Any], played: type[Player]) -> None:
    played.broken.add(("transformers", 4))
    plan = TranslatePlan(engines=("t2r:w4", "ctranslate2:int8"), **options)
    made = tables(bench_translate(plan))
    names = ("sentences", "tokens", "ratios", "memory", "lengths", "starts")
    assert list(made) == ["parity", *(f"{name}-1" for name in names)]
    assert made["sentences-1"].head == ["", *(f"beam {b}, batch {n}" for b in (1, 4) for n in (1, 3))]
    assert made["sentences-1"].rows[0] == ["t2r:w4", *["10.0 (10.0-10.0)"] * 4]
    assert made["tokens-1"].rows[1] == ["ctranslate2:int8", *["40"] * 4]
    assert made["memory-1"].rows[0] == ["t2r:w4", *["7.0"] * 4]
    assert made["lengths-1"].rows[0] == ["t2r:w4", "11.11 (11.11-11.11)"]
    assert made["starts-1"].head[1] == "process start to first translation, s"
    assert (
        not {"lengths-1", "starts-1"}
        & tables(bench_translate(TranslatePlan(engines=PLAYED[:1], **{**options, "lengths": (), "starts": 0}))).keys()
    )
    assert made["parity"].rows == [["ctranslate2:int8", "0 of 5", "0 of 5"]]


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"engines": ("genai:int4",)}, "an engine of t2r, transformers, ctranslate2; received 'genai:int4'"),
        ({"engines": ("t2r:w4", "t2r:w4")}, "engines, each once"),
        ({"engines": ()}, "engines, each once; received none"),
        ({"rounds": 0}, "counts from 1 to"),
        ({"threads": ()}, "counts from 1 to"),
        (
            {"teacher": "none.pt"},
            "a checkpoint at none.pt; received nothing; t2r build .*recipe.toml --work",
        ),
        ({"recipe": "none.toml"}, "a recipe in none.toml"),
    ],
)
def test_invalid_plan_is_refused(changes: dict[str, Any], message: str, options: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=message):
        TranslatePlan(**{**options, "engines": ("t2r:w4",), **changes})


def test_chosen_sentences_are_spread() -> None:
    numbers = [[i] for i in range(10)]
    assert chosen(numbers, 3) == [[0], [3], [6]]
    assert chosen(numbers, 99) == numbers


def test_real_processes(options: dict[str, Any]) -> None:
    """Graphs of both models: parity, then measurements."""
    engines = ("t2r:float32", "t2r:float32:model=teacher")
    result = bench_translate(TranslatePlan(engines=engines, **{**options, "batches": (2,), "starts": 0}))
    assert all(row["median"] > 0 and row["resident"] > 1 << 20 for row in result["speeds"])
    assert [row["name"] for row in result["speeds"]] == [*engines] * 2
    assert [row["tokens"] for row in result["lengths"]] == [9, 9]
    assert [(row["name"], row["differ"]) for row in result["parity"]] == [(engines[1], 0)] * 2


def test_invalid_files_are_refused(place: Path, tmp_path: Path) -> None:
    models = Models.load(place / "teacher.pt", place / "student.pt", 30)
    with pytest.raises(UserError, match="model of student, teacher; received 'pupil'"):
        make(parse("t2r:float32:model=pupil", ENGINES), models, tmp_path)


def test_models_with_two_tokenizers_are_refused(place: Path, tmp_path: Path) -> None:
    checkpoint.save(tmp_path / "other.pt", small.model(CONFIG), None, {})
    with pytest.raises(UserError, match="two translators with one tokenizer"):
        Models.load(place / "teacher.pt", tmp_path / "other.pt", 30)


def test_t2r_and_transformers_translations_agree(place: Path, tmp_path: Path) -> None:
    models = Models.load(place / "teacher.pt", place / "student.pt", 2000)
    made = {name: parse(text, ENGINES) for name, text in (("a", "t2r:float32:model=teacher"), ("b", PLAYED[3]))}
    for name in made:
        (tmp_path / name).mkdir()
    graph, folder = (make(candidate, models, tmp_path / name).path for name, candidate in made.items())
    assert json.loads((folder / "config.json").read_text())["max_position_embeddings"] == 2000
    mine, theirs = T2R(graph, 1, {}), Transformers(folder, 1, {})
    for width in (1, 4):
        found = mine.translate(SOURCES, width, 3, None)
        assert theirs.translate(SOURCES, width, 3, None) == found
        assert len(set(map(len, found))) > 1
        assert [tokens[-1] for tokens in found] == [END] * len(SOURCES)
    said = greedy(models.teacher.model, SOURCES, 256)
    assert mine.translate(SOURCES, 1, 1, None) == [[*tokens, END] for tokens in said]
    for runner in (mine, theirs):
        assert [len(tokens) for tokens in runner.translate(SOURCES, 1, 2, 7)] == [7] * 4


def test_ctranslate2_gets_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CTranslate2's converter runs as a process; its translator takes and returns token strings."""
    commands: list[list[str]] = []

    class Translator:
        def __init__(self, path: str, **options: Any) -> None:
            assert (path, options) == (str(tmp_path), {"compute_type": "int8", "intra_threads": 2, "inter_threads": 1})

        def translate_batch(self, sources: list[list[str]], **options: Any) -> list[Any]:
            assert (options["beam_size"], options["max_batch_size"], options["return_end_token"]) == (4, 3, True)
            self.limits = options["min_decoding_length"], options["max_decoding_length"]
            return [types.SimpleNamespace(hypotheses=[source[::-1]]) for source in sources]

    module = types.ModuleType("ctranslate2")
    module.Translator = Translator  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ctranslate2", module)
    (tmp_path / "shared_vocabulary.json").write_text(json.dumps(list("abc")))
    runner = CTranslate2(tmp_path, 2, {"compute_type": "int8"})
    for length, limits in ((None, (1, 256)), (7, (7, 7))):
        assert runner.translate([[0, 1], [2]], 4, 3, length) == [[1, 0], [2]]
        assert runner._translator.limits == limits

    def converted(command: list[str]) -> None:
        commands.append(command)
        Path(command[command.index("--output_dir") + 1]).mkdir()

    monkeypatch.setattr(translators.timing, "run", converted)
    model = checkpoint.made(small.model(CONFIG), texts.tokenizer(), {})
    files = make(parse("ctranslate2:int8", ENGINES), Models(model, model, 30), tmp_path)
    assert (files.path, files.options) == (tmp_path / "model", {"compute_type": "int8"})
    (command,) = commands
    assert command[command.index("--model") + 1 :: 2] == [str(tmp_path / "source"), str(files.path), "int8"]

"""Builds of recipes, end to end."""

import json
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

import folders
import small
from cli_models import letter_tokenizer
from t2r_export.build import build
from t2r_export.checkpoints import checkpoint
from t2r_export.cli import main
from t2r_export.config.export import ExportConfig
from t2r_export.config.mixers import LinearConfig
from t2r_export.config.plain import to_plain
from t2r_export.config.recipe import read_recipe
from t2r_export.export import export
from t2r_export.model.initialize import initialize
from t2r_export.verify import verify
from t2r_runtime.errors import UserError
from t2r_runtime.files import locked

STORY = "Once there was a small red hen. She ran to the hill, and the hill was far.\n<|endoftext|>\n"
RECIPE = """
text = "text.txt"

[tokenizer]
vocab_size = 270

[model]
vocab_size = 270
width = 12
attention = { heads = 2, kv_heads = 2, head_size = 6 }
ffn_size = 20
layers = [{ kind = "softmax" }, { kind = "softmax" }]
position = "sinusoidal"
bos_token = 0
eos_tokens = [0]

[teacher]
steps = "4"
batch = 2
length = 16

[[student]]
name = "one"
convert = { feature_size = 5, guard = { kind = "add", eps = 1e-3 } }
finetune = { stages = "transfer,distill", steps = "2,3", batch = 2, length = 16 }

[[student]]
name = "two"
convert = { feature_size = 7, layers = "0" }
finetune = { stages = "distill", steps = "3", batch = 2, length = 16 }
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "text.txt").write_text(STORY * 40)
    (tmp_path / "recipe.toml").write_text(RECIPE)
    return tmp_path


def test_recipe_builds_students_once(place: Path) -> None:
    work = place / "work"
    students = build(place / "recipe.toml", work, place)
    assert [s.name for s in students] == ["one", "two"]
    one = checkpoint.load(students[0].path)
    assert one.tokenizer is not None
    mixer = small.mixers(one.config)[1]
    assert isinstance(mixer, LinearConfig) and mixer.guard.kind == "add"
    assert [mixer.kind for mixer in small.mixers(checkpoint.load(students[1].path).config)] == ["linear", "softmax"]
    results = json.loads((work / "results.json").read_text())
    assert [row["name"] for row in results] == ["one", "two"]
    assert results[0]["student_nats"] == students[0].student_nats
    assert 0 < results[0]["student_error"] == students[0].student_error < 1
    assert students[0].tokens == 5 * 2 * 16
    before = {path: path.stat().st_mtime_ns for path in work.glob("*.pt")}
    assert build(place / "recipe.toml", work, place) == students
    assert {path: path.stat().st_mtime_ns for path in work.glob("*.pt")} == before


def test_student_of_another_shape(place: Path) -> None:
    """The student's file records its shape: a file of another shape is refused."""
    one = 'convert = { feature_size = 5, guard = { kind = "add", eps = 1e-3 } }'
    own = 'model = { rk2 = true, layers = [{ kind = "s4d", state_size = 4 }, { kind = "lstm" }] }\nseed = 3'
    recipe = RECIPE[: RECIPE.rindex("[[student]]")].replace(one, own).replace('"transfer,distill"', '"distill"')
    recipe = recipe.replace('"2,3"', '"3"')
    (place / "recipe.toml").write_text(recipe)
    made = checkpoint.load(build(place / "recipe.toml", place / "work", place)[0].path)
    assert [layer.parts[0].kind for layer in made.config.layers] == ["s4d", "lstm"] and made.config.layers[0].rk2
    (place / "recipe.toml").write_text(recipe.replace("state_size = 4", "state_size = 6"))
    with pytest.raises(UserError, match=r"one made of \[convert\] model.layers.0.state_size 4, \[model\] layers"):
        build(place / "recipe.toml", place / "work", place)


PRUNED = """
[[student]]
name = "three"
of = "one"
prune = { state = 0.4, ffn = 0.3 }
finetune = { stages = "distill", steps = "3", batch = 2, length = 16 }
"""


@pytest.mark.slow
def test_recipe_prunes_a_student(place: Path) -> None:
    two = RECIPE.index('[[student]]\nname = "two"')
    story = RECIPE[:two].replace('text = "text.txt"', 'text = "text.txt"\nvalid_share = 0.2')
    (place / "recipe.toml").write_text(story + PRUNED)
    built = build(place / "recipe.toml", place / "work", place)
    one, three = (checkpoint.load(student.path) for student in built)
    sizes = [[to_plain(mixer)["feature_size"] for mixer in small.mixers(made.config)] for made in (one, three)]
    assert sum(sizes[1]) <= 0.6 * sum(sizes[0])
    assert three.provenance["prune"][0]["shares"] == {"ffn": 0.3, "state": 0.4}
    assert three.provenance["prune"][0]["source_sha256"] == one.sha256
    assert built[1].teacher_nats == built[0].teacher_nats
    (place / "recipe.toml").write_text(story + PRUNED.replace("0.4", "0.5"))
    with pytest.raises(UserError, match=r"made of \[convert\] prune.* 0.4;"):
        build(place / "recipe.toml", place / "work", place)
    (place / "recipe.toml").write_text((story + PRUNED).replace('"2,3"', '"2,4"'))
    with pytest.raises(UserError, match=r"one.pt as this recipe makes it; .* of \[finetune\] stages.1.steps 3;"):
        build(place / "recipe.toml", place / "work", place)


def test_recipe_trains_model_with_alibi(place: Path) -> None:
    changes = {
        'position = "sinusoidal"': 'position = "alibi"',
        'feature_size = 5, guard = { kind = "add", eps = 1e-3 }': 'kind = "hybrid", window = 5, feature_size = 4',
        'feature_size = 7, layers = "0"': 'feature_size = 7, positions = "drop", layers = "0"',
    }
    recipe = RECIPE
    for old, new in changes.items():
        assert old in recipe
        recipe = recipe.replace(old, new)
    (place / "recipe.toml").write_text(recipe)
    built = [checkpoint.load(student.path) for student in build(place / "recipe.toml", place / "work", place)]
    assert [made.config.positions_summary for made in built] == ["alibi", "alibi"]
    kinds = [[mixer.kind for mixer in small.mixers(made.config)] for made in built]
    assert kinds == [["hybrid", "hybrid"], ["linear", "softmax"]]
    export(built[0], place / "g.onnx", ExportConfig(prefill=True))
    assert verify(built[0], place / "g.onnx", steps=60).passed  # far past its training length of 16 tokens


CHANGES = {  # per section: old text, new text, refused file, and message
    "[teacher]": ('steps = "4"', 'steps = "5"', "teacher.pt", r"made of \[teacher\] stages.0.steps 4;"),
    "[model]": ("ffn_size = 20", "ffn_size = 22", "teacher.pt", r"made of \[model\] ffn_size 20"),
    "[convert]": ("feature_size = 7", "feature_size = 8", "two.pt", r"made of \[convert\] feature_size 7"),
    "[finetune]": ('"2,3"', '"2,4"', "one.pt", r"made of \[finetune\] stages.1.steps 3;"),
    "shares": ("\n[tokenizer]", "test_share = 0.2\n[tokenizer]", "teacher.pt", r"made of \[top\] test_share 0.05"),
}


@pytest.fixture
def built(place: Path) -> Path:
    build(place / "recipe.toml", place / "work", place)
    return place


def contents(work: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in work.iterdir()}


@pytest.mark.slow
@pytest.mark.parametrize("section", CHANGES)
def test_files_of_another_recipe_are_refused(section: str, built: Path) -> None:
    """The file is refused without side effects; with `anew`, it and all files that depend on it are made again."""
    old, new, refused, said = CHANGES[section]
    assert RECIPE.count(old) == 1
    (built / "recipe.toml").write_text(RECIPE.replace(old, new))
    before = contents(built / "work")
    with pytest.raises(UserError, match=f"expected .*/{refused} as this recipe makes it; received one {said}"):
        build(built / "recipe.toml", built / "work", built)
    assert contents(built / "work") == before
    students = build(built / "recipe.toml", built / "work", built, anew=True)
    elsewhere = build(built / "recipe.toml", built / "elsewhere", built)
    assert [s.student_nats for s in students] == [s.student_nats for s in elsewhere]
    after, fresh = contents(built / "work"), contents(built / "elsewhere")
    assert {name: after[name] for name in after if name.endswith((".pt", "made.json"))} == {
        name: fresh[name] for name in fresh if name.endswith((".pt", "made.json"))
    }
    kept = [name for name in before if before[name] == after[name] and name.endswith(".pt")]
    assert ("teacher.pt" in kept) == (refused != "teacher.pt")
    assert ("one.pt" in kept) == (refused == "two.pt")


def test_lost_figures_are_read_from_the_student(built: Path) -> None:
    """A kill between the end of a training and its figures does not train again."""
    work = built / "work"
    (work / "one.json").unlink()
    log, student = (work / "one.pt.jsonl").read_text(), (work / "one.pt").read_bytes()
    before = json.loads((work / "results.json").read_text())
    build(built / "recipe.toml", work, built)
    after = json.loads((work / "results.json").read_text())
    assert [{**row, "seconds": 0} for row in after] == [{**row, "seconds": 0} for row in before]
    assert ((work / "one.pt.jsonl").read_text(), (work / "one.pt").read_bytes()) == (log, student)


def test_options_without_effect_on_the_result_may_change(built: Path) -> None:
    before = contents(built / "work")
    (built / "recipe.toml").write_text(RECIPE.replace("length = 16 }", "length = 16, checkpoint_every = 1 }"))
    build(built / "recipe.toml", built / "work", built)
    assert contents(built / "work") == before


def test_files_of_another_text_are_refused(built: Path) -> None:
    (built / "text.txt").write_text(STORY.replace("hen", "cat") * 40)
    with pytest.raises(UserError, match="received one made of another text; name another folder, or pass --anew"):
        build(built / "recipe.toml", built / "work", built)


def test_files_of_another_version_are_refused(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("t2r_export.checkpoints.build_record.__version__", "9.9")
    with pytest.raises(UserError, match="made of another version of t2r-export"):
        build(built / "recipe.toml", built / "work", built)


@pytest.mark.parametrize("record", [None, "", "[]", '{"teacher.pt": 3}'])
def test_folder_without_record_is_refused(built: Path, record: str | None) -> None:
    path = built / "work" / "made.json"
    path.unlink()
    if record is not None:
        path.write_text(record)
    with pytest.raises(UserError, match="received one made of something that made.json does not say"):
        build(built / "recipe.toml", built / "work", built)


@pytest.mark.slow
def test_record_has_what_the_recipe_changes(built: Path) -> None:
    """Options added later, with defaults, do not invalidate existing folders."""
    model = json.loads((built / "work" / "made.json").read_text())["teacher.pt"]["[model]"]
    plan = read_recipe(built / "recipe.toml")
    assert plan.model is not None
    assert model == json.loads(json.dumps(to_plain(plan.model, short=True)))
    assert model.keys() < to_plain(plan.model).keys()


def test_files_of_another_teacher_are_refused(place: Path) -> None:
    source = folders.write_llama(place / "llama")
    (source / "tokenizer.json").write_text(letter_tokenizer())
    (place / "recipe.toml").write_text('text = "text.txt"\nsource = "llama"\n' + RECIPE[RECIPE.index("[[student]]") :])
    build(place / "recipe.toml", place / "work", place)
    (source / "config.json").write_text((source / "config.json").read_text() + "\n")
    with pytest.raises(UserError, match=r"one.pt as this recipe makes it; received one made of another teacher"):
        build(place / "recipe.toml", place / "work", place)


def test_concurrent_builds_are_refused(built: Path) -> None:
    with locked(built / "work" / "made.json", wait=False), pytest.raises(UserError, match="exclusive access to"):
        build(built / "recipe.toml", built / "work", built)


def test_text_from_several_files(place: Path) -> None:
    """Files are joined in order; the tokenizer does not see the last documents of the last file."""
    stories = [STORY.replace("hen", name).partition("\n")[0] for name in ("dog", "cat", "cow", "pig") * 10]
    for name, part in (("text.txt", stories[:20]), ("more.txt", [*stories[20:36], "zz" * 40, "zz" * 40])):
        (place / name).write_text("\n--\n".join(part))
    files = 'text = ["text.txt", "more.txt"]\nseparator = "--"'
    (place / "recipe.toml").write_text(RECIPE.replace('text = "text.txt"', files))
    build(place / "recipe.toml", place / "work", place)
    made = checkpoint.load(place / "work" / "one.pt")
    done = made.provenance["finetune"][-1]
    assert done["files"] == ["text.txt", "more.txt"]
    assert made.tokenizer is not None
    assert not any("zz" in token for token in Tokenizer.from_str(made.tokenizer).get_vocab())


def test_random_student_keeps_no_weights(place: Path) -> None:
    """Training starts from fresh weights, without any teacher weights or their products."""
    random = RECIPE.replace('name = "one"', 'name = "one"\nweights = "random"')
    (place / "recipe.toml").write_text(random)
    build(place / "recipe.toml", place / "work", place)
    start = checkpoint.load(place / "work" / "one.converted.pt").model
    expected = initialize(start.config, 0).state_dict()
    assert all(torch.equal(weight, expected[name]) for name, weight in start.state_dict().items())


def test_student_from_random_weights(place: Path) -> None:
    (place / "recipe.toml").write_text(RECIPE.replace('name = "two"', 'name = "two"\nweights = "random"'))
    build(place / "recipe.toml", place / "work", place)
    teacher = checkpoint.load(place / "work" / "teacher.pt").model.state_dict()
    swapped = {name: checkpoint.load(place / "work" / f"{name}.converted.pt").model for name in ("one", "two")}
    assert torch.equal(swapped["one"].embedding.weight, teacher["embedding.weight"])
    assert not torch.equal(swapped["two"].embedding.weight, teacher["embedding.weight"])


def test_invalid_build_is_refused(place: Path) -> None:
    (place / "recipe.toml").write_text("text = ")
    with pytest.raises(UserError, match="expected a recipe in "):
        build(place / "recipe.toml", place / "work", place)
    (place / "recipe.toml").write_text(RECIPE.replace("text.txt", "none.txt"))
    with pytest.raises(UserError, match="expected a text or a .npy to read; received .*none.txt, which does not exist"):
        build(place / "recipe.toml", place / "work", place)
    (place / "recipe.toml").write_text(RECIPE)
    with pytest.raises(UserError, match="expected to be able to write .*text.txt/work"):
        build(place / "recipe.toml", place / "text.txt" / "work", place)
    assert sorted(path.name for path in place.iterdir()) == ["recipe.toml", "text.txt"]


def test_texts_are_beside_the_recipe_by_default(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("T2R_DATA", raising=False)
    (place / "text.txt").unlink()
    arguments = ["build", str(place / "recipe.toml"), "--work", str(place / "work")]
    for folder in (place, place / "public", place / "given"):
        assert main(arguments) == 2
        assert f"received {folder / 'text.txt'}, which does not exist" in capsys.readouterr().err
        monkeypatch.setenv("T2R_DATA", str(place / "public"))
        arguments += ["--data", str(place / "given")] if folder.name == "public" else []


def test_build_reports_import_notes(place: Path) -> None:
    source = folders.write_llama(place / "llama", favourite_colour="blue")
    (source / "tokenizer.json").write_text(letter_tokenizer())
    (place / "recipe.toml").write_text('text = "text.txt"\nsource = "llama"\n' + RECIPE[RECIPE.index("[[student]]") :])
    said: list[str] = []
    build(place / "recipe.toml", place / "work", place, said.append)
    assert said[0] == "note: keys of config.json that are not used: favourite_colour"


def test_tokenizer_from_single_document(place: Path) -> None:
    """The last tenth of the document is held out."""
    text = STORY.replace("<|endoftext|>\n", "") * 40
    (place / "text.txt").write_text(text + "zzzz" * 20)
    build(place / "recipe.toml", place / "work", place)
    tokenizer = checkpoint.load(place / "work" / "teacher.pt").tokenizer
    assert tokenizer is not None
    vocabulary = Tokenizer.from_str(tokenizer).get_vocab()
    assert len(vocabulary) == 270
    assert not any("zz" in token for token in vocabulary)

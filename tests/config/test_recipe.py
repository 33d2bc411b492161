"""A recipe is read completely, or refused with file and key; it names no path outside its folders."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from t2r_export.config.finetune import SEPARATOR, FinetuneConfig, Shares
from t2r_export.config.recipe import read_recipe
from t2r_export.config.recipe_students import TRAINING
from t2r_runtime.errors import UserError

MODELS = Path(__file__).parents[2] / "models"
SOURCE = """
text = "text/stories.txt"
source = "checkpoints/small"

[[student]]
name = "one"
convert = { feature_size = 5, guard = { kind = "add", eps = 1e-3 }, layers = "0,2", seed = 3 }
finetune = { stages = "transfer,distill", steps = "2,3", lr = "1e-2,1e-3", batch = 2, hidden = 5, lora = true }

[[student]]
name = "two"
weights = "random"
convert = { kind = "window", window = 4 }
finetune = { stages = "task" }
"""
TEACHER = """
text = "t"

[tokenizer]
vocab_size = 270

[model]
vocab_size = 270
width = 12
attention = { heads = 2, kv_heads = 2, head_size = 6 }
ffn_size = 20
layers = [{ kind = "softmax" }]
position = "sinusoidal"
residual_gate = { bias = 0.5 }
repeats = 2

[teacher]
steps = "4"

[[student]]
name = "one"
convert = { feature_size = 7 }
finetune = { stages = "distill" }
"""


def read(text: str, folder: Path) -> object:
    (folder / "r.toml").write_text(text)
    return read_recipe(folder / "r.toml")


def test_a_recipe_with_a_source(tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text(SOURCE)
    recipe = read_recipe(tmp_path / "r.toml")
    assert (recipe.texts, recipe.source, recipe.model) == (("text/stories.txt",), "checkpoints/small", None)
    assert (recipe.separator, recipe.shares) == (SEPARATOR, Shares())
    one, two = recipe.students
    assert (one.name, one.random, one.layers, one.seed) == ("one", False, "0,2", 3)
    assert one.kind == "linear" and one.options == {"feature_size": 5, "guard": {"kind": "add", "eps": 1e-3}}
    assert [(p.stage, p.steps, p.learning_rate) for p in one.training.plan] == [
        ("transfer", 2, 1e-2),
        ("distill", 3, 1e-3),
    ]
    assert one.training.options == {"batch": 2, "hidden": 5, "lora": True}
    assert (two.random, two.kind, two.layers) == (True, "window", "all")


def test_a_recipe_with_a_teacher(tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text(TEACHER)
    recipe = read_recipe(tmp_path / "r.toml")
    assert (recipe.source, recipe.vocab_size) == (None, 270)
    assert recipe.model is not None and recipe.model.width == 12
    assert recipe.teacher is not None and [(p.stage, p.steps) for p in recipe.teacher.plan] == [("task", 4)]
    assert recipe.students[0].options == {"feature_size": 7}


MODEL = TEACHER[TEACHER.index("[model]") : TEACHER.index("[teacher]")].replace("residual_gate = { bias = 0.5 }", "")
WINDOW = 'convert = { kind = "window", window = 4 }'
RESHAPED = SOURCE.replace(WINDOW, "model = { rezero = true, ffn_size = 31 }") + MODEL


def test_students_of_their_own_shape(tmp_path: Path) -> None:
    """A student is [model] with its changes, whether [model] is the teacher's or accompanies a source."""
    (tmp_path / "r.toml").write_text(RESHAPED.replace('"random"', '"teacher"\nseed = 5'))
    recipe = read_recipe(tmp_path / "r.toml")
    one, two = recipe.students
    assert one.model is None and recipe.model is not None and (recipe.vocab_size, recipe.teacher) == (None, None)
    assert two.model == dataclasses.replace(recipe.model, rezero=True, ffn_size=31)
    assert (two.seed, two.random, two.convert) == (5, False, {"model": {"rezero": True, "ffn_size": 31}, "seed": 5})


def test_a_recipe_of_several_texts_cut_otherwise(tmp_path: Path) -> None:
    files = 'text = ["a.txt", "b/c.txt"]\nseparator = "--"\ntest_share = 0.2'
    (tmp_path / "r.toml").write_text(SOURCE.replace('text = "text/stories.txt"', files))
    recipe = read_recipe(tmp_path / "r.toml")
    assert (recipe.texts, recipe.separator) == (("a.txt", "b/c.txt"), "--")
    assert recipe.shares == Shares(test=0.2)
    for name in ("a.txt", "b"):
        (tmp_path / name).touch() if name == "a.txt" else (tmp_path / name).mkdir()
    with pytest.raises(UserError, match="a text or a .npy to read; received .*c.txt, which does not exist"):
        recipe.check_files(tmp_path)


REFUSED = [  # recipe, replaced text, replacement, message
    (SOURCE, 'text = "text/stories.txt"', "", "in .*r.toml the key text; received none"),
    (SOURCE, 'text = "text/stories.txt"', "text = []", "in text in .*r.toml a text or a list of texts; received"),
    (SOURCE, 'text = "text/stories.txt"', "text = [5]", "in text in .*r.toml a text or a list of texts; received"),
    (
        SOURCE,
        'text = "text/stories.txt"',
        'text = ["a", "../b"]',
        "the name of a file in the data folder; received '../b'",
    ),
    (SOURCE, 'text = "text/stories.txt"', 'text = "a"\ntest_share = 0.96', "shares of valid and test below 1 together"),
    (SOURCE, 'text = "text/stories.txt"', 'text = "a"\nvalid_share = true', "valid_share to be a number"),
    (SOURCE, "[[student]]", "[[students]]", "in .*r.toml the keys .*; received the key students"),
    (SOURCE, "text = ", "tex = ", "received the key tex"),
    (SOURCE, "text/stories.txt", "../secret.txt", "in text in .*r.toml the name of a file in the data folder"),
    (SOURCE, "text/stories.txt", "/etc/passwd", "received '/etc/passwd'"),
    (SOURCE, "checkpoints/small", "a/../../b", "in source in .* the name of a file in the data folder"),
    (SOURCE, 'source = "checkpoints/small"', "source = 5", "source to be a text; received 5"),
    (SOURCE, 'source = "checkpoints/small"', "", "the key tokenizer; received none"),
    (SOURCE, '"one"', '"../../evil"', "in \\[\\[student\\]\\] 1 of .*r.toml a name of letters, digits"),
    (SOURCE, '"one"', '"/tmp/evil"', "received '/tmp/evil'"),
    (SOURCE, '"one"', '".hidden"', "received '.hidden'"),
    (SOURCE, '"one"', '"two"', "unique student names"),
    (SOURCE, '"one"', '"teacher"', "other than teacher, start, results, train, valid, test; received teacher"),
    (TEACHER, 'text = "t"', 'text = "t"\npairs = { file = "p", member = "m" }', "a text, or pairs; received both"),
    (TEACHER, 'text = "t"', 'pairs = { file = "../p", member = "m" }', "the name of a file in the data folder"),
    (TEACHER, 'text = "t"', 'pairs = { file = "p" }', "in \\[pairs\\] of .* the key member; received none"),
    (TEACHER, 'text = "t"', 'pairs = { file = "p", member = "m", source = -1 }', "source to be an integer from 0"),
    *(
        (TEACHER, 'text = "t"', f'pairs = {{ file = "p", member = "m", {rest} }}', message)
        for rest, message in (
            ('held_out = "../x.tsv"', "the name of a file beside the recipe as held_out; received '../x.tsv'"),
            ('held_out = ".."', "the name of a file beside the recipe as held_out"),
            ("more = [5]", "in more in .*pairs.* of .* a list of tables; received 5"),
            ('more = [{ file = "../p" }]', "the name of a file in the data folder"),
            ('more = [{ file = "p", without = ["a"] }]', "the column `label` for `without`"),
            ('more = [{ file = "p", label = 2, without = [5] }]', "a text or a list of texts"),
            ('more = [{ file = "p", label = -2 }]', "label to be an integer from 0"),
            ('more = [{ name = "p" }]', "received the key name"),
        )
    ),
    (TEACHER, "{ feature_size = 7 }", "{ feature_size = 7, cross = { kind = 'gru' } }", "in convert in .*1 of .*"),
    (SOURCE, '"random"', '"random"\nsequence_beam = 4', "pairs, whose sources a teacher translates; received a sequ"),
    (SOURCE, '"random"', '"random"\nsequence_beam = 0.5', "sequence_beam to be a whole number"),
    (SOURCE, '"random"', '"random"\nsequence_beam = -1', "sequence_beam to be an integer from 0"),
    (SOURCE, '"one"', '["one"]', "name to be a text; received \\['one'\\]"),
    (SOURCE, '"random"', '"none"', "weights of teacher or random; received 'none'"),
    *(
        (
            SOURCE,
            '[[student]]\nname = "one"',
            f'[[student]]\nname = "p"\nfinetune = {{}}\n{keys}\n[[student]]\nname = "one"',
            message,
        )
        for keys, message in (
            ("prune = { ffn = 1.0 }", "in prune in .*1 of .* ffn to be a number above 0 and below 1; received 1.0"),
            (
                "prune = { fnn = 0.5 }",
                "in prune in .*1 of .* the keys layers, heads, ffn, state, rank; received the key fnn",
            ),
            ("prune = {}", "in prune in .*1 of .* a share of layers, heads, ffn, state"),
            ("prune = { ffn = 0.5 }\nconvert = {}", "convert .*or prune .*; received convert, finetune, name, prune"),
            ('prune = { ffn = 0.5 }\nof = "one"', "in p of .* a student above it as `of`; received one"),
            ('of = "one"', "or prune .*; received finetune, name, of"),
            ("", "or prune .*; received finetune, name"),
            ('prune = { ffn = 0.5 }\nweights = "random"', "prune, or weights; received both"),
        )
    ),
    (
        TEACHER.replace("convert = { feature_size = 7 }", "prune = { ffn = 0.5 }"),
        'text = "t"',
        'pairs = { file = "p", member = "m" }',
        "a text, by which students are pruned; received pairs",
    ),
    (SOURCE, "convert = { kind", "swap = { kind", "2 of .* the keys .*; received the key swap"),
    (SOURCE, "feature_size = 5", "feature_siz = 5", "in convert in .*1 of .*; received feature_siz; "),
    (SOURCE, "feature_size = 5", "feature_size = [5]", "feature_size to be an integer"),
    (SOURCE, '{ kind = "add", eps = 1e-3 }', "[1]", "guard to be a JSON object"),
    (SOURCE, 'layers = "0,2"', "layers = [0, 2]", "layers to be a text"),
    (SOURCE, 'layers = "0,2"', 'layers = "some"', "layers as all, softmax, none, every:N or 0,2,5"),
    (SOURCE, "seed = 3", "seed = -3", "seed to be an integer from 0"),
    (SOURCE, "batch = 2", "bach = 2", "in finetune in .* the keys .*; received the key bach; did you mean batch"),
    (SOURCE, "batch = 2", "batch = [2]", "batch to be a whole number"),
    (SOURCE, "batch = 2", "batch = true", "batch to be a whole number; received True"),
    (SOURCE, "batch = 2", "batch = { a = 1 }", "batch to be a whole number"),
    (SOURCE, "batch = 2", "batch = 0", "batch to be an integer from 1"),
    (SOURCE, "lora = true", "lora = 1", "lora to be true or false"),
    (SOURCE, 'steps = "2,3"', 'steps = "2,x"', "steps as numbers"),
    (SOURCE, "hidden = 5", "hidden = inf", "hidden to be a number"),
    (SOURCE, 'finetune = { stages = "task" }', 'finetune = "task"', "finetune to be a table"),
    (TEACHER, "vocab_size = 270\n\n[model]", "vocab = 270\n\n[model]", "in \\[tokenizer\\] of .* the key vocab"),
    (TEACHER, "vocab_size = 270\n\n[model]", "vocab_size = 'x'\n\n[model]", "vocab_size to be a whole number"),
    (TEACHER, "vocab_size = 270\n\n[model]", "vocab_size = 256\n\n[model]", "vocab_size to be an integer from 257"),
    (
        TEACHER,
        "vocab_size = 270\n\n[model]",
        "vocab_size = 271\n\n[model]",
        "in \\[model\\] of .* a vocab_size of at least 271 as in \\[tokenizer\\]; received 270",
    ),
    (TEACHER, "width = 12", "width = [12]", "in \\[model\\] of .*r.toml "),
    (TEACHER, "width = 12", "widht = 12", "in \\[model\\] of .*r.toml "),
    (TEACHER, 'layers = [{ kind = "softmax" }]', "layers = 5", "in \\[model\\] of .*r.toml "),
    (TEACHER, "attention = { heads = 2", 'attention = { heads = "2"', "in \\[model\\] of .*r.toml "),
    (TEACHER, "attention = { heads = 2, kv_heads = 2, head_size = 6 }", "attention = 4", "in \\[model\\] of .*r.toml "),
    (TEACHER, 'steps = "4"', "steps = 4", "in \\[teacher\\] of .* steps to be a text"),
    (TEACHER, 'text = "t"', 'text = "t"\nsource = "s"', "a source, or a tokenizer, a model and a teacher"),
    (
        SOURCE,
        WINDOW,
        "model = { rezero = true }",
        "the table \\[model\\], whose keys a student's model changes; received none",
    ),
    (
        SOURCE,
        WINDOW,
        "seed = 2",
        "convert \\(with its seed inside\\), or model, or prune .*; received finetune, name, seed, weights",
    ),
    (SOURCE, WINDOW, f"{WINDOW}\nseed = 2", "convert \\(with its seed inside\\), or model"),
    (RESHAPED, "model = {", f"{WINDOW}\nmodel = {{", "convert \\(with its seed inside\\), or model"),
    (RESHAPED, "rezero = true", "rezero = 3", "in model in \\[\\[student\\]\\] 2 of .* rezero to be"),
    (RESHAPED, "model = {", "seed = -1\nmodel = {", "seed to be an integer from 0"),
    (
        RESHAPED,
        "[model]",
        "[tokenizer]\nvocab_size = 270\n\n[model]",
        "a source, or a tokenizer, a model and a teacher",
    ),
    (TEACHER, "[[student]]", "[student]", "student to be a list of tables"),
    (TEACHER, "convert = { feature_size = 7 }", "convert = {", "a recipe in .*r.toml; received "),
]


@pytest.mark.parametrize("recipe, what, by, message", REFUSED)
def test_invalid_recipe(recipe: str, what: str, by: str, message: str, tmp_path: Path) -> None:
    assert recipe.count(what) >= 1
    with pytest.raises(UserError, match=message):
        read(recipe.replace(what, by, 1), tmp_path)


@pytest.mark.parametrize("content", [b"a = 1\na = 2", b"a = " + b"[" * 20000, b"\0"])
def test_what_is_no_toml(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_bytes(content)
    with pytest.raises(UserError, match="expected a recipe in .*r.toml"):
        read_recipe(tmp_path / "r.toml")
    with pytest.raises(UserError, match="expected a recipe in "):
        read_recipe(tmp_path)


def test_what_is_read_has_to_be_there(tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text(SOURCE)
    recipe = read_recipe(tmp_path / "r.toml")
    with pytest.raises(UserError, match="a text or a .npy to read; received .*stories.txt, which does not exist"):
        recipe.check_files(tmp_path)
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "stories.txt").touch()
    with pytest.raises(UserError, match="a checkpoint at .*small; received nothing"):
        recipe.check_files(tmp_path)
    (tmp_path / "checkpoints" / "small").mkdir(parents=True)
    recipe.check_files(tmp_path)


def test_training_has_the_options_of_a_run() -> None:
    """Except those that a recipe does not set: files, and how a run resumes."""
    others = {"model", "output", "data", "pairs", "valid", "test", "plan", "teacher", "resume", "log", "force"}
    others |= {"rounding"}  # a separate run, on a finished student
    others |= {"separator", "valid_share", "test_share", "split_by", "text_field"}  # set once per recipe
    words = set(TRAINING) - {"stages", "steps", "lr"}
    assert words == set(FinetuneConfig.__dataclass_fields__) - others


@pytest.mark.parametrize("path", sorted(MODELS.glob("**/*.toml")), ids=lambda path: path.stem)
def test_the_recipes_that_are_kept_can_be_read(path: Path) -> None:
    assert read_recipe(path).students


def test_a_device_is_no_recipe() -> None:
    """Reading it would not end."""
    with pytest.raises(UserError, match="a recipe in /dev/zero; received /dev/zero, which is not a file"):
        read_recipe(Path("/dev/zero"))

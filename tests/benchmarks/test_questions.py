"""Questions to chat models: the scoring rules and the tables."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

import questions
from questions import Question
from runtime import graphs
from t2r_runtime import Tokenizer
from t2r_runtime.errors import UserError
from texts import letter_tokenizer

SET = Path(__file__).parents[2] / "models" / "smollm2-135m" / "questions.tsv"
LETTERS = "abcdefghijklmnopqrstuvwxyz"
CHAT = {"template": "{{ messages[-1].content }}", "tokens": {}}


def test_the_set_has_twenty_questions_of_five_kinds() -> None:
    asked = questions.read_questions(SET)
    assert set(Counter(question.kind for question in asked).values()) == {20} and len(asked) == 100
    assert len({question.message for question in asked}) == 100
    assert all(question.right(f"It is {answer}.") for question in asked for answer in question.answers)
    assert not any(question.right(f"1{question.answers[0]}x") for question in asked)


@pytest.mark.parametrize(
    "answer, right", [("Twelve.", True), ("7 + 5 = 12", True), ("112", False), ("12th", False), ("", False)]
)
def test_an_answer_is_right_by_whole_words(answer: str, right: bool) -> None:
    assert Question("7 + 5?", ("12", "twelve"), "sums").right(answer) is right


def test_shares_are_of_what_the_first_graph_knows() -> None:
    asked = [Question(str(number), ("yes",), "few" if number < 2 else "more") for number in range(5)]
    answers = [["yes", "no", "yes", "yes", "no"], ["yes", "yes", "no", "yes", "no"]]
    table = questions.counted("t", [Path("teacher.onnx"), Path("student.onnx")], asked, answers)
    assert table.head == ["", "questions", "teacher", "student", "as the teacher"]
    assert table.rows == [
        ["few", "2", "1", "2", "1 of 1"],
        ["more", "3", "2", "1", "1 of 2"],
        ["all", "5", "3", "3", "2 of 3"],
    ]


def test_needle_stands_before_the_question() -> None:
    tokenizer = Tokenizer(letter_tokenizer(LETTERS), len(LETTERS))
    asked = list(questions.needles("abc" * 500, tokenizer, [3, 1200], 4))
    assert [question.kind for question in asked] == ["3"] * 4 + ["1,200"] * 4
    for question in asked:
        needle, between, _ = question.message.split("\n")
        assert question.answers[0] in needle and len(between) == int(question.kind.replace(",", ""))


def test_graphs_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    graph = graphs.save(
        tmp_path / "g.onnx", tokenizer=letter_tokenizer(LETTERS[: graphs.VOCABULARY]), chat_template=CHAT
    )
    (tmp_path / "set.tsv").write_text("abc\ta\tfew\nbad\tb/c\tfew\n")
    (tmp_path / "text").write_text("abadcafe")
    options = ["--needles", str(tmp_path / "text"), "--lengths", "3", "--answers", str(tmp_path / "out.tsv")]
    questions.main([str(tmp_path / "set.tsv"), str(graph), str(graph), *options])
    printed = capsys.readouterr().out
    assert "| few | 2 |" in printed and f"| 3 | {questions.NEEDLES} |" in printed
    rows = [line.split("\t") for line in (tmp_path / "out.tsv").read_text().splitlines()]
    assert len(rows) == 2 + questions.NEEDLES and all(row[1] == row[2] for row in rows)


def test_a_line_without_a_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "set.tsv").write_text("a\tb\n")
    with pytest.raises(UserError, match="a question, answers and a kind in each line"):
        questions.read_questions(tmp_path / "set.tsv")

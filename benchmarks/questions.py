"""Short questions and needles, asked of graphs of chat models: the tables of models/smollm2-135m/README.md.

    python benchmarks/questions.py models/smollm2-135m/questions.tsv TEACHER.onnx GRAPH.onnx … [--needles TEXT]
        [--lengths 16,64,128,256,512] [--answers ANSWERS.tsv]

A line of questions has a question, the right answers separated by / and a kind. Answers are greedy, of at most 40
tokens, each in a conversation of its own. One is right if it has a right answer as whole words, in any case. `as the
teacher` is the share right of those that the first graph answers right.

A needle is a sentence with a number of four digits before some tokens of TEXT, then a question for the number; both
within one message. It is found if the answer has the number. A length counts the tokens between needle and question.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from comparison.tables import Table
from t2r_runtime import Decoder, Sampling, Tokenizer
from t2r_runtime.cli.chat import Conversation
from t2r_runtime.errors import UserError

TOKENS = 40
NEEDLES, LENGTHS = 20, "16,64,128,256,512"  # per length; tokens
NAMES = ("Amber", "Birch", "Cedar", "Delta", "Ember", "Falcon", "Garnet", "Harbor", "Indigo", "Juniper")


@dataclass(frozen=True)
class Question:
    """A message, its right answers, and the row of the table that counts it."""

    message: str
    answers: tuple[str, ...]
    kind: str

    def right(self, answer: str) -> bool:
        return any(re.search(rf"(?<!\w){re.escape(each)}(?!\w)", answer, re.IGNORECASE) for each in self.answers)


def read_questions(path: Path) -> list[Question]:
    """The questions of a file. Raises UserError for a line without three columns."""
    rows = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()]
    if not rows or any(len(row) != 3 for row in rows):
        raise UserError(f"a question, answers and a kind in each line of {path}", "another line", "correct it")
    return [Question(question, tuple(answers.split("/")), kind) for question, answers, kind in rows]


def needles(text: str, tokenizer: Tokenizer, lengths: Sequence[int], count: int = NEEDLES) -> Iterator[Question]:
    """`count` questions per length whose answer stands that many tokens before them, in pieces of `text`."""
    ids, chance = tokenizer.encode(text, special_tokens=False), random.Random(0)
    for length in lengths:
        for _ in range(count):
            name, number = chance.choice(NAMES), str(chance.randrange(1000, 10000))
            start = chance.randrange(len(ids) - length)
            between = tokenizer.decode(ids[start : start + length])
            question = f"What is the number of room {name}?"
            yield Question(f"The number of room {name} is {number}.\n{between}\n{question}", (number,), f"{length:,}")


def numbers(text: str) -> list[int]:
    """Numbers separated by commas."""
    return [int(each) for each in text.split(",")]


def answer(decoder: Decoder, tokenizer: Tokenizer, message: str) -> str:
    """The greedy answer to a message."""
    return "".join(Conversation(decoder, tokenizer, Sampling(temperature=0), TOKENS).answer(message))


def counted(
    title: str, graphs: Sequence[Path], questions: Sequence[Question], answers: Sequence[Sequence[str]]
) -> Table:
    """A row per kind and one of all: right answers per graph, and those of the first graph that others have too."""
    right = [[question.right(each) for question, each in zip(questions, row, strict=True)] for row in answers]
    kinds = list(dict.fromkeys(question.kind for question in questions))
    rows = []
    for kind in [*kinds, "all"]:
        of = [number for number, question in enumerate(questions) if kind in ("all", question.kind)]
        known = [number for number in of if right[0][number]]
        cells = [kind, str(len(of)), str(len(known))]
        for row in right[1:]:
            cells += [str(sum(row[number] for number in of)), f"{sum(row[n] for n in known)} of {len(known)}"]
        rows.append(cells)
    head = ["", "questions", graphs[0].stem]
    return Table(title, [*head, *(cell for graph in graphs[1:] for cell in (graph.stem, "as the teacher"))], rows)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("questions", type=Path)
    parser.add_argument("graphs", type=Path, nargs="+")
    parser.add_argument("--needles", type=Path, help="text between needles and questions")
    parser.add_argument("--lengths", type=numbers, default=numbers(LENGTHS), help="tokens between needle and question")
    parser.add_argument("--answers", type=Path, help="write all answers, a question per line")
    given = parser.parse_args(arguments)
    questions, answers = read_questions(given.questions), []
    tokenizer = Tokenizer.of(Decoder(given.graphs[0]).signature)
    text = given.needles.read_text("utf-8") if given.needles else None
    asked = [*questions, *(needles(text, tokenizer, given.lengths) if text is not None else ())]
    for graph in given.graphs:
        decoder = Decoder(graph)
        answers.append([answer(decoder, tokenizer, q.message) for q in tqdm(asked, graph.stem, file=sys.stderr)])
    first = len(questions)
    print(counted("questions", given.graphs, questions, [row[:first] for row in answers]).markdown(), "\n")
    if given.needles:
        print(counted("needles", given.graphs, asked[first:], [row[first:] for row in answers]).markdown(), "\n")
    if given.answers:
        lines = ["\t".join(map(repr, (q.message, *rows))) for q, *rows in zip(asked, *answers, strict=True)]
        given.answers.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

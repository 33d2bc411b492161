"""Texts and their sentences, for runtimes that split texts: the rule is in runtimes/contract/translators.md."""

from __future__ import annotations

import json

NAME = "sentences.json"
SENTENCES: tuple[tuple[str, list[str]], ...] = (
    ("Wo ist der Bahnhof? Er ist dort.", ["Wo ist der Bahnhof?", "Er ist dort."]),
    ("Ich wurde am 3. März 1987 geboren.", ["Ich wurde am 3. März 1987 geboren."]),
    ("Ich wurde am 3.\nMärz 1987\r\ngeboren.", ["Ich wurde am 3.\nMärz 1987\r\ngeboren."]),
    ("Am 24.12. Abends um 8. Dann nicht.", ["Am 24.12. Abends um 8. Dann nicht."]),
    ("Im 2. Stock (d. h. bei Dr. Kern usw. J. Marx).", ["Im 2. Stock (d. h. bei Dr. Kern usw. J. Marx)."]),
    ("Mo., Di. usw. Er ging. Sie blieb.", ["Mo., Di. usw. Er ging.", "Sie blieb."]),
    ("The U.S. Army has 3.5 million. dollars, etc. More.", ["The U.S. Army has 3.5 million. dollars, etc. More."]),
    ("„Wie geht es?“ „Gut.“ Schön!", ["„Wie geht es?“", "„Gut.“", "Schön!"]),
    ("Wait... What?! (Yes.) – no.", ["Wait...", "What?!", "(Yes.)", "– no."]),
    ("Stop! „und“ weiter! «Ja.» ¿Dónde? ¡Aquí!", ["Stop! „und“ weiter!", "«Ja.»", "¿Dónde?", "¡Aquí!"]),
    ("今日は。「元気ですか。」はい！ 3。", ["今日は。", "「元気ですか。」", "はい！", "3。"]),
    ("Titel\n\nEin Absatz\nmit Zeilen.\n \t\nNoch einer", ["Titel", "Ein Absatz\nmit Zeilen.", "Noch einer"]),
    ("am 3.\n\nMai", ["am 3.", "Mai"]),
    ("\u00a0\u3000Eins.\u2003Zwei!\u2028Drei\u0085", ["Eins.", "Zwei!", "Drei"]),
    ("\u001fEins!\ufeffZwei! ٣. Drei.\ufeff", ["\u001fEins!\ufeffZwei!", "٣. Drei.\ufeff"]),
    ("𝒜. Möbius und ǆ. Ǆ. Ǆin", ["𝒜. Möbius und ǆ. Ǆ. Ǆin"]),
    ("? ! Ja.. Nein. ", ["?", "!", "Ja..", "Nein."]),
    ("see www.example.org/a?b=c!d", ["see www.example.org/a?b=c!d"]),
    (" \n\n ", []),
    ("", []),
)


def written() -> bytes:
    """The file of the sentences, a text a line."""
    lines = ",\n".join(json.dumps(case) for case in SENTENCES)
    return f"[\n{lines}\n]\n".encode()

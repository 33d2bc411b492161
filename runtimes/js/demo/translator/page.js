/** The translator's page: sends text to the worker sentence by sentence, and lists each translation beside its source. */

import { Asker, dim, oneAtATime, pressed } from "./asker.js";
import { keepFiles, listed, showDownload } from "./files.js";
import { amount, counted, failure, whereItRuns } from "./sentences.js";
import { splitSentences } from "./t2r/sentences.js";

const MOST = 5000; // letters
const $ = (id) => document.getElementById(id);
const worker = new Asker(new URL("./worker.js", import.meta.url));
let ready = false, stopped = false;

const alone = oneAtATime((busy, stoppable) => {
  dim(["write", "new"], busy || !ready);
  dim(["stop"], !busy || !stoppable);
});

async function open() {
  let done = () => {};
  try {
    const list = await listed();
    done = showDownload(list, $("status"), $("loading"));
    const { way, threads, vocabulary } = await worker.ask("open", list.graph, new URLSearchParams(location.search).get("way") ?? undefined);
    ready = true;
    $("status").textContent = "Ready.";
    $("status").dataset.way = way;
    $("about-model").textContent = `${list.graph}: ${amount(list.modelBytes)}, a vocabulary of ${counted(vocabulary)}`;
    $("about-way").textContent = `${whereItRuns(way, threads)}, by ONNX Runtime`;
  } finally {
    done();
    if (!ready) $("status").textContent = "Not ready.";
  }
}

/** Translate a text sentence by sentence. */
async function translate(text) {
  clear(); // before a refusal too: a translation of another text would look like this one's
  if (text.length > MOST) throw failure("length", `${text.length} letters`);
  stopped = false;
  const lines = splitSentences(text.replace(/^\ufeff/, "").toWellFormed());
  let total = 0;
  try {
    for (const [n, line] of lines.entries()) {
      if (stopped) break;
      $("status").textContent = `Translating: sentence ${n + 1} of ${lines.length}. Stop or Escape ends it.`;
      total += await translateOne(line);
    }
  } finally {
    $("status").textContent = "Ready.";
  }
  const count = $("target").children.length;
  $("numbers").textContent = lines.length ? `${count} of ${lines.length} sentences, ${counted(Math.round(total))} ms.` : "";
}

/** Translate a sentence, which is in sight meanwhile. Returns the milliseconds that it took. */
async function translateOne(line) {
  const waiting = item(line, ["…"]);
  $("target").append(waiting);
  try {
    const { texts, ms } = await worker.ask("translate", line, Number($("width").value));
    if (texts.length) waiting.after(item(line, [...new Set(texts)])); // different tokens may have the same text
    return ms;
  } finally {
    waiting.remove();
  }
}

function clear() {
  $("numbers").textContent = "";
  $("target").replaceChildren();
}

/** A source, its best translation, and the alternatives: pressing one replaces the best. */
function item(source, texts) {
  const made = document.createElement("li"), best = document.createElement("p");
  made.append(Object.assign(document.createElement("div"), { className: "from", lang: "de", textContent: source }), best);
  [best.textContent] = texts;
  if (texts.length > 1) {
    const others = document.createElement("details"), summary = document.createElement("summary");
    summary.textContent = "Alternatives";
    const choices = texts.map((text) => Object.assign(document.createElement("button"), { type: "button", textContent: text }));
    const choose = (chosen) => {
      best.textContent = chosen.textContent;
      for (const choice of choices) choice.setAttribute("aria-pressed", String(choice === chosen));
    };
    for (const choice of choices) choice.addEventListener("click", () => choose(choice));
    choose(choices[0]);
    others.append(summary, ...choices);
    made.append(others);
  }
  return made;
}

function stop() {
  stopped = true;
  worker.tell("stop");
}

$("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  if (ready) alone(() => translate($("source").value), true);
});
const chips = [...document.querySelectorAll(".chip")];
for (const chip of chips) {
  chip.addEventListener("click", () => {
    if (!ready || document.body.dataset.busy) return;
    const typed = ![$("source").defaultValue, ...chips.map(({ textContent }) => textContent), ""].includes($("source").value);
    if (!typed) $("source").value = chip.textContent;
    alone(() => translate(chip.textContent), true);
  });
}
pressed($("new"), () => {
  $("source").value = "";
  clear();
});
pressed($("stop"), stop);
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") stop();
});

await keepFiles().catch(() => {}); // without a cache the model still runs
await alone(open);

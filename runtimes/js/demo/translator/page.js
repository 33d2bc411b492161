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

async function translate() {
  const text = $("source").value;
  if (text.length > MOST) throw failure("length", `${text.length} letters`);
  $("target").replaceChildren();
  $("numbers").textContent = "";
  stopped = false;
  const lines = splitSentences(text.replace(/^\ufeff/, "").toWellFormed());
  let total = 0;
  for (const line of lines) {
    if (stopped) break;
    const { texts, ms } = await worker.ask("translate", line, Number($("width").value));
    total += ms;
    if (texts.length) $("target").append(item(line, [...new Set(texts)])); // different tokens may have the same text
  }
  const count = $("target").children.length;
  $("numbers").textContent = lines.length ? `${count} of ${lines.length} sentences, ${counted(Math.round(total))} ms.` : "";
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
  if (ready) alone(translate, true);
});
for (const chip of document.querySelectorAll(".chip")) {
  chip.addEventListener("click", () => {
    if (!ready || document.body.dataset.busy) return;
    $("source").value = chip.textContent;
    alone(translate, true);
  });
}
pressed($("new"), () => {
  $("source").value = "";
  $("numbers").textContent = "";
  $("target").replaceChildren();
});
pressed($("stop"), stop);
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") stop();
});

await keepFiles().catch(() => {}); // without a cache the model still runs
await alone(open);

/** The translator's page: sends text to the worker sentence by sentence, and joins the translations as the sentences were. */

import { Asker, dim, oneAtATime, pressed } from "./asker.js";
import { keepFiles, listed, showDownload } from "./files.js";
import { amount, counted, failure, whereItRuns } from "./sentences.js";
import { splitSentences } from "./t2r/sentences.js";

const MOST = 50_000; // letters
const $ = (id) => document.getElementById(id);
const worker = new Asker(new URL("./worker.js", import.meta.url));
let ready = false, stopped = false;

const alone = oneAtATime((fixed) => {
  dim(["write", "new"], fixed || !ready);
  dim(["copy"], !$("target").textContent);
}, stop);

async function open() {
  let done = () => {};
  try {
    const list = await listed();
    done = showDownload(list, $("status"), $("loading"));
    const { way, threads, vocabulary } = await worker.ask("open", list.graph, new URLSearchParams(location.search).get("way") ?? undefined, list.quantization);
    ready = true;
    $("status").textContent = "Ready.";
    $("status").dataset.way = way;
    $("about-model").textContent = `${list.graph}: ${amount(list.modelBytes)}, a vocabulary of ${counted(vocabulary)}`;
    $("about-way").textContent = whereItRuns(way, threads);
  } finally {
    done();
    if (!ready) $("status").textContent = "Not ready.";
  }
}

/** Translate a text sentence by sentence. */
async function translate(given) {
  clear(); // before a refusal too: a translation of another text would look like this one's
  if (given.length > MOST) throw failure("length", `${given.length} letters`);
  stopped = false;
  const text = given.replace(/^\ufeff/, "").toWellFormed(), lines = splitSentences(text), begun = performance.now();
  [$("far").max, $("far").value, $("far").hidden] = [lines.length || 1, 0, false];
  let end = 0, count = 0;
  try {
    for (const line of lines) {
      if (stopped) break;
      $("status").textContent = `Translating: sentence ${count + 1} of ${lines.length}. Escape stops it.`;
      const start = text.indexOf(line, end), gap = count ? text.slice(end, start) : "";
      if (!(await translateOne(line, gap && (gap.includes("\n") ? gap.replace(/[^\n]/g, "") : " ")))) break;
      end = start + line.length;
      $("far").value = ++count;
    }
  } finally {
    $("status").textContent = "Ready.";
    $("far").hidden = true;
  }
  if (lines.length) $("numbers").textContent = `${count} of ${lines.length} sentences, ${counted(Math.round(performance.now() - begun))} ms.`;
}

/** Append the translation of a sentence after `gap`. Returns whether there is one: not if it was stopped. */
async function translateOne(line, gap) {
  const waiting = Object.assign(document.createElement("span"), { textContent: `${gap}…`, ariaHidden: "true" });
  $("target").append(waiting);
  try {
    const texts = await worker.ask("translate", line, Number($("width").value));
    if (!texts.length) return false;
    const place = Object.assign(document.createElement("span"), { textContent: texts[0] });
    waiting.before(gap, place);
    $("each").append(choices(line, [...new Set(texts)], place)); // different tokens may have the same text
    $("others").hidden = false;
    return true;
  } finally {
    waiting.remove();
  }
}

function clear() {
  $("numbers").textContent = "";
  $("target").replaceChildren();
  $("each").replaceChildren();
  $("others").hidden = true;
}

/** A source and its translations: pressing one puts it into its place in the text. */
function choices(source, texts, place) {
  const made = document.createElement("li");
  made.append(Object.assign(document.createElement("div"), { className: "from", lang: "de", textContent: source }));
  const buttons = texts.map((text) => Object.assign(document.createElement("button"), { type: "button", textContent: text }));
  const choose = (chosen) => {
    place.textContent = chosen.textContent;
    for (const button of buttons) button.setAttribute("aria-pressed", String(button === chosen));
  };
  for (const button of buttons) button.addEventListener("click", () => choose(button));
  choose(buttons[0]);
  made.append(...buttons);
  return made;
}

async function copy() {
  try {
    await navigator.clipboard.writeText($("target").textContent);
    $("numbers").textContent = "Copied.";
  } catch {
    getSelection().selectAllChildren($("target"));
    $("numbers").textContent = "This browser does not let the page copy. The text is selected: copy it yourself.";
  }
}

function stop() {
  stopped = true;
  worker.tell("stop");
}

const chips = [...document.querySelectorAll(".chip")];
for (const chip of chips) {
  chip.addEventListener("click", () => {
    if (!ready) return;
    const typed = ![$("source").defaultValue, ...chips.map(({ textContent }) => textContent), ""].includes($("source").value);
    if (!typed) $("source").value = chip.textContent;
    alone(() => translate(chip.textContent), $("write"));
  });
}
pressed($("write"), () => alone(() => translate($("source").value), $("write")), stop);
pressed($("new"), () =>
  alone(async () => {
    $("source").value = "";
    clear();
  }));
pressed($("copy"), copy);

await keepFiles().catch(() => {}); // without a cache the model still runs
await alone(open);

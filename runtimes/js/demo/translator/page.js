/** The translator's page: what is typed goes to the worker line by line, what comes back is listed. */

import { Asker, WAYS, keepFiles, listed, oneAtATime, showDownload } from "./asker.js";

const $ = (id) => document.getElementById(id);
const worker = new Asker(new URL("./worker.js", import.meta.url));
let ready = false, stopped = false;

const alone = oneAtATime((busy) => {
  $("write").disabled = busy || !ready;
  $("stop").disabled = !busy || !ready;
});

async function open() {
  const list = await listed();
  showDownload(list, $("status"));
  const { way } = await worker.ask("open", list.graph, new URLSearchParams(location.search).get("way") ?? undefined);
  ready = true;
  $("status").textContent = `Ready. It runs ${WAYS[way]}; the model is ${(list.modelBytes / 1e6).toFixed(1)} MB.`;
  $("status").dataset.way = way;
}

async function translate() {
  $("target").replaceChildren();
  $("numbers").textContent = "";
  stopped = false;
  const lines = $("source").value.split("\n").map((line) => line.trim()).filter(Boolean);
  let total = 0;
  for (const line of lines) {
    if (stopped) break;
    const { texts, ms } = await worker.ask("translate", line, Number($("width").value));
    total += ms;
    if (texts.length) $("target").append(item(texts));
  }
  $("numbers").textContent = `${$("target").children.length} of ${lines.length} sentences, ${Math.round(total)} ms.`;
}

/** The best translation, and the others to choose from: one that is pressed takes its place. */
function item(texts) {
  const made = document.createElement("li"), best = document.createElement("p");
  best.textContent = texts[0].text;
  made.append(best);
  if (texts.length > 1) {
    const others = document.createElement("details"), summary = document.createElement("summary");
    summary.textContent = "others";
    others.append(summary, ...texts.map(({ text, score }) => choice(text, score, best)));
    made.append(others);
  }
  return made;
}

function choice(text, score, best) {
  const made = document.createElement("button");
  made.type = "button";
  made.textContent = `${text} (${score.toFixed(2)})`;
  made.addEventListener("click", () => (best.textContent = text));
  return made;
}

function stop() {
  stopped = true;
  worker.tell("stop");
}

$("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  alone(translate);
});
$("stop").addEventListener("click", stop);
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") stop();
});

await keepFiles().catch(() => {}); // a browser that keeps nothing runs the model all the same
await alone(open);

/** The storyteller's page: sends typed text to the worker, and shows the result. */

import { Asker, dim, oneAtATime, pressed } from "./asker.js";
import { keepFiles, listed, showDownload } from "./files.js";
import { Flow } from "./flow.js";
import { Plot } from "./plot.js";
import { Race } from "./race.js";
import { amount, counted, failure, whereItRuns } from "./sentences.js";

const MOST = 200_000; // letters of a prompt
const LATEST = 51; // tokens, whose median is the speed
const $ = (id) => document.getElementById(id);
let list = null, way = null, beginning = null, ended = false, onSaid = () => {};
const worker = new Asker(new URL("./worker.js", import.meta.url), (said) => onSaid(said));
const flow = new Flow($("story"), $("spoken"));
const plots = { time: new Plot($("time"), "Milliseconds a token", (ms) => `${Number(ms.toPrecision(2))} ms`, true), memory: new Plot($("memory"), "Memory", amount) };
const race = new Race(worker, plots, (listener) => (onSaid = listener));

const alone = oneAtATime((busy, stoppable) => {
  const off = busy || !way;
  dim(["write", "dice", "save", "race"], off);
  dim(["continue", "new"], off || beginning === null);
  dim(["stop"], !busy || !stoppable);
  $("load").disabled = off;
});

/** Tokens read, and the memory that they take. */
function showCost({ position, bytes }) {
  $("count").textContent = counted(position);
  $("held").textContent = amount(bytes);
  $("still").hidden = !position;
}

async function open() {
  let done = () => {};
  try {
    list = await listed();
    done = showDownload(list, $("status"), $("loading"));
    const found = await worker.ask("open", list.graph, new URLSearchParams(location.search).get("way") ?? undefined);
    ({ way } = found);
    $("status").textContent = "Ready.";
    $("status").dataset.way = way;
    $("about-model").textContent = `${list.graph}: ${amount(list.modelBytes)}, ${found.layers} layers, a vocabulary of ${counted(found.vocabulary)}`;
    $("about-memory").textContent = `${amount(found.bytes)} for what was read`;
    $("about-way").textContent = `${whereItRuns(way, found.threads)}, by ONNX Runtime`;
    $("race-card").hidden = !list.peer;
    showCost({ position: 0, bytes: found.bytes });
    // if a translator is packed beside it
    fetch("translate/files.json").then(({ ok }) => ($("translator").hidden = !ok), () => {});
  } finally {
    done();
    if (!way) $("status").textContent = "Not ready.";
  }
}

/** The settings. @throws {Error} sampling: a field without a number, or with one out of its range */
function rules() {
  for (const id of ["tokens", "seed"]) {
    if (!$(id).checkValidity()) throw failure("sampling", $(id).validationMessage);
  }
  return { temperature: Number($("temperature").value), topP: 0.9, seed: Number($("seed").value) };
}

/** Read the prompt, and continue it. */
async function write() {
  const text = $("prompt").value.replace(/^\ufeff/, "").toWellFormed(); // drop a pasted byte order mark and lone surrogates
  if (text.length > MOST) throw failure("length", `${text.length} letters`);
  const chosen = rules(), most = Number($("tokens").value);
  if (ended) flow.separate();
  if (text) flow.ask(text);
  $("prompt").value = "";
  if (beginning === null) plots.time.clear(), plots.memory.clear();
  beginning ??= text;
  $("question").textContent = "What happens next?";
  const latest = [];
  onSaid = (said) => {
    if (said.event === "reading") $("status").textContent = `Reading: ${counted(said.read)} of ${counted(said.of)} tokens`;
    else flow.add(said.text);
    plots.memory.add("ours", said.position, said.bytes);
    showCost(said);
    if (!said.ms) return;
    plots.time.add("ours", said.position, said.ms);
    latest.push(said.ms);
    if (latest.length > LATEST) latest.shift();
    $("speed").textContent = `${latest.toSorted((a, b) => a - b)[latest.length >> 1].toFixed(1)} ms a token`;
  };
  $("status").textContent = "Writing. Escape stops it.";
  $("story").setAttribute("aria-busy", "true");
  try {
    const done = await worker.ask("write", text, chosen, most);
    flow.add(done.text);
    ({ ended } = done);
    showCost(done);
    $("stop").dataset.late = done.late; // tokens that were read after it arrived
    $("status").textContent = ended ? "The story has ended. Continue begins another." : "Ready.";
  } catch (error) {
    $("status").textContent = "Ready.";
    throw error;
  } finally {
    flow.flush();
    $("story").removeAttribute("aria-busy");
  }
}

async function forget() {
  showCost(await worker.ask("reset"));
  flow.clear();
  [beginning, ended] = [null, false];
  $("question").textContent = "How does the story begin?";
  $("speed").textContent = "";
  plots.time.clear();
  plots.memory.clear();
}

async function begin(text) {
  rules(); // a wrong setting must not reset the text
  await forget();
  $("prompt").value = text;
  await write();
}

/** Another story from the same beginning. */
async function roll() {
  $("seed").value = Math.floor(Math.random() * 2 ** 32);
  await begin(beginning ?? $("prompt").value);
}

async function save() {
  const bytes = await worker.ask("save");
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([bytes], { type: "application/octet-stream" }));
  link.download = "story.state";
  link.click();
  URL.revokeObjectURL(link.href);
}

async function load() {
  const [file] = $("load").files;
  $("load").value = "";
  if (!file) return;
  if (file.size > 1 << 28) throw failure("snapshot", "a file of more than 256 MiB");
  const cost = await worker.ask("load", new Uint8Array(await file.arrayBuffer()));
  flow.clear();
  [beginning, ended] = ["", false];
  $("prompt").value = "";
  showCost(cost);
}

function stop() {
  worker.tell("stop");
}

$("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  if (way) alone(write, true);
});
$("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    $("ask").requestSubmit();
  }
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") stop();
});
for (const chip of document.querySelectorAll(".chip")) chip.addEventListener("click", () => way && alone(() => begin(chip.textContent), true));
pressed($("continue"), () => {
  alone(async () => {
    const waiting = $("prompt").value;
    $("prompt").value = "";
    await write();
    $("prompt").value ||= waiting;
  }, true);
});
pressed($("new"), () =>
  alone(async () => {
    await forget();
    $("prompt").value = "Once upon a time";
  }));
pressed($("stop"), stop);
pressed($("dice"), () => alone(roll, true));
pressed($("save"), () => alone(save));
pressed($("race"), () => alone(() => race.run(list.peer, way), true));
$("load").addEventListener("change", () => alone(load));

await keepFiles().catch(() => {}); // without a cache the model still runs
await alone(open);

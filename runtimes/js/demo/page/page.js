/** The storyteller's page: sends typed text to the worker, and shows the result. */

import { Asker, dim, oneAtATime, pressed } from "./asker.js";
import { keepFiles, listed, showDownload } from "./files.js";
import { Flow } from "./flow.js";
import { Plot } from "./plot.js";
import { Race } from "./race.js";
import { amount, counted, failure, numberIn, whereItRuns } from "./sentences.js";

const MOST = 200_000; // letters of a prompt
const LATEST = 51; // tokens, whose median is the speed
const $ = (id) => document.getElementById(id);
let list = null, way = null, beginning = null, ended = false, position = 0, onSaid = () => {};
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

/** What the page does now, said once to a screen reader. */
function tell(text) {
  if ($("status").textContent !== text) $("status").textContent = text;
}

/** Tokens read, and the memory that they take. */
function showCost(cost) {
  ({ position } = cost);
  $("count").textContent = counted(position);
  $("held").textContent = amount(cost.bytes);
  $("still").hidden = !position;
}

async function open() {
  let done = () => {};
  try {
    list = await listed();
    done = showDownload(list, $("status"), $("loading"));
    const found = await worker.ask("open", list.graph, new URLSearchParams(location.search).get("way") ?? undefined);
    ({ way } = found);
    tell("Ready.");
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
    if (!way) tell("Not ready.");
  }
}

/** The settings, and the number of tokens. @throws {Error} sampling */
function rules() {
  const most = numberIn($("tokens"));
  return [{ temperature: Number($("temperature").value), topP: 0.9, seed: numberIn($("seed")) }, most];
}

/** The plots show the story; `afresh` forgets what they showed of it. */
function plotStory(afresh) {
  for (const plot of Object.values(plots)) {
    plot.turnTo("story");
    if (afresh) plot.clear();
  }
}

/** What a worker says while it writes. */
function listener() {
  const latest = [];
  return (said) => {
    const reads = said.event === "reading", what = reads ? `Reading: ${counted(said.read)} of ${counted(said.of)} tokens` : "Writing";
    tell(`${what}. Stop or Escape ends it.`);
    if (!reads) flow.add(said.text);
    plots.memory.add("ours", said.position, said.bytes);
    showCost(said);
    if (!said.ms) return;
    plots.time.add("ours", said.position, said.ms);
    latest.push(said.ms);
    if (latest.length > LATEST) latest.shift();
    $("speed").textContent = `${latest.toSorted((a, b) => a - b)[latest.length >> 1].toFixed(1)} ms a token`;
  };
}

/** Read a text, and continue it. If it was typed, it leaves its field, and comes back if nothing was read. */
async function write(given) {
  const text = given.replace(/^\ufeff/, "").toWellFormed(); // drop a pasted byte order mark and lone surrogates
  if (text.length > MOST) throw failure("length", `${text.length} letters`);
  const [chosen, most] = rules(), field = $("prompt"), before = position;
  if ([given, field.defaultValue].includes(field.value)) field.value = "";
  const added = [ended ? flow.separate() : null, text ? flow.ask(text) : null];
  plotStory(beginning === null);
  onSaid = listener();
  tell("Reading. Stop or Escape ends it.");
  $("story").setAttribute("aria-busy", "true");
  try {
    const done = await worker.ask("write", text, chosen, most);
    flow.add(done.text);
    ({ ended } = done);
    showCost(done);
    $("stop").dataset.late = done.late; // tokens that were read after it arrived
    if (ended) tell("The story has ended. Continue begins another.");
    else tell(done.unread ? `Stopped: ${counted(done.unread)} tokens of the text were not read.` : "Ready.");
  } catch (error) {
    tell("Ready.");
    if (position === before) {
      for (const one of added) one?.remove();
      field.value ||= given;
    }
    throw error;
  } finally {
    if (position !== before) {
      beginning ??= text;
      $("question").textContent = "What happens next?";
    }
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
  plotStory(true);
}

async function begin(text) {
  rules(); // a wrong setting must not reset the text
  await forget();
  await write(text);
}

/** Another story from the same beginning. */
async function roll() {
  numberIn($("tokens")); // a wrong one must not change the seed
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
  if ($("prompt").value === $("prompt").defaultValue) $("prompt").value = "";
  $("question").textContent = "What happens next?";
  $("speed").textContent = "";
  plotStory(true);
  showCost(cost);
}

function stop() {
  worker.tell("stop");
}

$("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  if (way) alone(() => write($("prompt").value), true);
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
pressed($("continue"), () => alone(() => write(""), true));
pressed($("new"), () =>
  alone(async () => {
    await forget();
    $("prompt").value ||= $("prompt").defaultValue;
  }));
pressed($("stop"), stop);
pressed($("dice"), () => alone(roll, true));
pressed($("save"), () => alone(save));
pressed($("race"), () => alone(() => race.run(list.peer, way), true));
$("load").addEventListener("change", () => alone(load));

await keepFiles().catch(() => {}); // without a cache the model still runs
await alone(open);

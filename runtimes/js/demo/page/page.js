/** The storyteller's page: sends typed text to the worker, and shows the result. */

import { Asker, dim, oneAtATime, pressed } from "./asker.js";
import { showCost } from "./cost.js";
import { keepFiles, listed, showDownload } from "./files.js";
import { Flow } from "./flow.js";
import { Plot } from "./plot.js";
import { Race } from "./race.js";
import { amount, counted, failure, numberIn, whereItRuns } from "./sentences.js";

const MOST = 200_000; // letters of a prompt
const FIRST = "How does the story begin?", NEXT = "What happens next?";
const LATEST = 51; // tokens, whose median is the speed
const $ = (id) => document.getElementById(id);
let list = null, way = null, waits = false, beginning = null, ended = false, stopped = false, position = 0, perToken = 0, onSaid = () => {};
const worker = new Asker(new URL("./worker.js", import.meta.url), (said) => onSaid(said));
const flow = new Flow($("story"), $("spoken"));
const plots = { time: new Plot($("time"), "Milliseconds a token", (ms) => `${Number(ms.toPrecision(2))} ms`, true), memory: new Plot($("memory"), "Memory", amount) };
const race = new Race(worker, plots, (listener) => (onSaid = listener));

const alone = oneAtATime((fixed) => {
  const off = fixed || !way;
  dim(["write"], off && !waits);
  dim(["dice", "save", "race", "new"], off);
  $("load").disabled = off;
}, stop);

/** What the page does now, said once to a screen reader. */
function tell(text) {
  if ($("status").textContent !== text) $("status").textContent = text;
}

/** Show what was read costs. */
function show(cost) {
  ({ position } = cost);
  showCost(cost, perToken);
}

async function open() {
  let done = () => {};
  waits = false;
  try {
    list = await listed();
    done = showDownload(list, $("status"), $("loading"));
    const found = await worker.ask("open", list.graph, new URLSearchParams(location.search).get("way") ?? undefined, list.quantization);
    ({ way, perToken } = found);
    tell("Ready.");
    $("status").dataset.way = way;
    $("about-model").textContent = `${list.graph}: ${amount(list.modelBytes)}, ${found.layers} layers, a vocabulary of ${counted(found.vocabulary)}`;
    $("about-memory").textContent = `${amount(found.bytes)} for what was read`;
    $("about-way").textContent = whereItRuns(way, found.threads);
    $("race-card").hidden = !list.peer;
    show(found);
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

/** What a worker says while it writes; `aloud`: to a screen reader too. */
function listener(aloud) {
  const latest = [];
  return (said) => {
    const reads = said.event === "reading", what = reads ? `Reading: ${counted(said.read)} of ${counted(said.of)} tokens` : "Writing";
    tell(`${what}. Escape stops it.`);
    if (!reads) flow.add(said.text, aloud);
    plots.memory.add("ours", said.position, said.bytes);
    plots.memory.add("peer", said.position, perToken * said.position);
    show(said);
    if (!said.ms) return;
    plots.time.add("ours", said.position, said.ms);
    latest.push(said.ms);
    if (latest.length > LATEST) latest.shift();
    $("speed").textContent = `${latest.toSorted((a, b) => a - b)[latest.length >> 1].toFixed(1)} ms a token`;
  };
}

/**
 * Read a text, and continue it, past the ends of stories too. If it was typed, it leaves its field, and comes back if nothing
 * was read.
 */
async function write(given, aloud = true) {
  if (stopped) return; // before it began
  const plain = given.replace(/^\ufeff/, "").toWellFormed(); // drop a pasted byte order mark and lone surrogates
  const glued = beginning !== null && !ended && /^\S/.test(plain) && !/\s$/.test($("story").textContent);
  const text = glued ? ` ${plain}` : plain;
  if (plain.length > MOST) throw failure("length", `${plain.length} letters`);
  const [chosen, most] = rules(), field = $("prompt"), before = position;
  if ([given, field.defaultValue].includes(field.value)) field.value = "";
  const added = [ended ? flow.separate() : null, text ? flow.ask(text) : null];
  plotStory(beginning === null);
  onSaid = listener(aloud);
  let unread = null;
  tell("Reading. Escape stops it.");
  $("question").textContent = NEXT;
  $("story").setAttribute("aria-busy", "true");
  try {
    for (let next = text, left = most; left > 0 && !stopped; next = "") {
      if (left < most) flow.separate();
      const done = await worker.ask("write", next, chosen, left);
      flow.add(done.text, aloud);
      ({ ended } = done);
      left = ended ? left - done.count : 0;
      show(done);
      $("write").dataset.late = done.late; // tokens that were read after a stop arrived
      if (done.unread) unread = `Stopped: ${counted(done.unread)} tokens of the text were not read.`;
    }
  } catch (error) {
    if (position === before) {
      for (const one of added) one?.remove();
      field.value ||= given;
    }
    throw error;
  } finally {
    if (position !== before) beginning ??= text;
    if (beginning === null) $("question").textContent = FIRST;
    flow.flush();
    tell(unread ?? "Ready.");
    $("story").removeAttribute("aria-busy");
  }
}

async function forget() {
  show(await worker.ask("reset"));
  flow.clear();
  [beginning, ended] = [null, false];
  $("question").textContent = FIRST;
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
  $("question").textContent = NEXT;
  $("speed").textContent = "";
  plotStory(true);
  show(cost);
}

function stop() {
  stopped = true;
  worker.tell("stop");
}

/** Run `work`, which writes, with the model: loaded by now, or by this press where the browser saves data. */
async function ready(work) {
  if (waits) await alone(open);
  if (!way) return;
  await alone(() => {
    stopped = false;
    return work();
  }, $("write"));
}

$("prompt").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  ready(() => write($("prompt").value));
});
for (const chip of document.querySelectorAll(".chip")) chip.addEventListener("click", () => ready(() => begin(chip.textContent)));
pressed($("write"), () => ready(() => write($("prompt").value)), stop);
pressed($("new"), () =>
  alone(async () => {
    await forget();
    $("prompt").value ||= $("prompt").defaultValue;
  }));
pressed($("dice"), () => ready(roll));
pressed($("save"), () => alone(save));
pressed($("race"), () => alone(() => race.run(list.peer, way), $("race")), stop);
$("load").addEventListener("change", () => alone(load));

await keepFiles().catch(() => {}); // without a cache the model still runs
waits = Boolean(navigator.connection?.saveData) || matchMedia("(prefers-reduced-data: reduce)").matches;
if (waits) {
  $("loading").hidden = true;
  tell("Your browser saves data: the model is loaded when you press Write.");
  dim(["write"], false);
} else {
  await alone(open);
  if (!matchMedia("(prefers-reduced-motion: reduce)").matches) await ready(() => write($("prompt").value, false));
}

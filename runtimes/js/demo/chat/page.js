/** The chat's page: sends messages to the worker, and shows the answers as they come. */

import { Asker, dim, oneAtATime, pressed } from "./asker.js";
import { showCost } from "./cost.js";
import { keepFiles, listed, showDownload } from "./files.js";
import { Flow } from "./flow.js";
import { amount, counted, failure, whereItRuns } from "./sentences.js";

const MOST = 50_000; // letters of a message
const TOKENS = 512; // of an answer
const RULES = { temperature: 0.2, topP: 0.9, seed: 3 }; // temperature and topP of SmolLM2's authors
const $ = (id) => document.getElementById(id);
let ready = false, perToken = 0;
const worker = new Asker(new URL("./worker.js", import.meta.url), hear);
const flow = new Flow($("talk"), $("spoken"));
const alone = oneAtATime((fixed) => dim(["write", "new"], fixed || !ready), stop);

function tell(text) {
  if ($("status").textContent !== text) $("status").textContent = text;
}

async function open() {
  let done = () => {};
  try {
    const list = await listed();
    done = showDownload(list, $("status"), $("loading"));
    const found = await worker.ask("open", list.graph, new URLSearchParams(location.search).get("way") ?? undefined, list.quantization);
    ({ perToken } = found);
    ready = true;
    tell("Ready.");
    $("status").dataset.way = found.way;
    $("about-model").textContent = `${list.graph}: ${amount(list.modelBytes)}, ${found.layers} layers, a vocabulary of ${counted(found.vocabulary)}`;
    $("about-way").textContent = whereItRuns(found.way, found.threads);
    showCost(found, perToken);
  } finally {
    done();
    if (!ready) tell("Not ready.");
  }
}

/** What the worker says while it reads and writes. */
function hear(said) {
  const what = said.event === "reading" ? `Reading: ${counted(said.read)} of ${counted(said.of)} tokens` : "Writing";
  tell(`${what}. Escape stops it.`);
  flow.add(said.text ?? "");
  showCost(said, perToken);
}

/** Send a message. It leaves its field, and comes back if it was not read. */
async function say(given) {
  const text = given.replace(/^\ufeff/, "").toWellFormed().trim(), field = $("prompt");
  if (text.length > MOST) throw failure("length", `${text.length} letters`);
  if (!text) return;
  if (field.value === given) field.value = "";
  const asked = flow.ask(`${$("talk").firstChild ? "\n\n" : ""}${text}\n`);
  tell("Reading. Escape stops it.");
  $("talk").setAttribute("aria-busy", "true");
  let unread = true;
  try {
    const done = await worker.ask("say", text, RULES, TOKENS);
    ({ unread } = done);
    flow.add(done.text);
    showCost(done, perToken);
  } finally {
    if (unread) {
      asked.remove();
      field.value ||= given;
    }
    flow.flush();
    tell(unread ? "Stopped: the message was not read." : "Ready.");
    $("talk").removeAttribute("aria-busy");
  }
}

async function forget() {
  showCost(await worker.ask("reset"), perToken);
  flow.clear();
}

function stop() {
  worker.tell("stop");
}

function send(text) {
  if (ready) alone(() => say(text), $("write"));
}

$("prompt").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  send($("prompt").value);
});
for (const chip of document.querySelectorAll(".chip")) chip.addEventListener("click", () => send(chip.textContent));
pressed($("write"), () => send($("prompt").value), stop);
pressed($("new"), () => alone(forget));

await keepFiles().catch(() => {}); // without a cache the model still runs
await alone(open);

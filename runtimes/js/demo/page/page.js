/** The page: what is typed goes to the worker, what comes back is shown. */

import { Asker, WAYS, keepFiles, listed, oneAtATime, showDownload } from "./asker.js";
import { Plot } from "./plot.js";

const $ = (id) => document.getElementById(id);
let list = null, way = null, onToken = () => {};
const worker = new Asker(new URL("./worker.js", import.meta.url), (said) => onToken(said));

const time = new Plot($("time"), "Milliseconds a token"), memory = new Plot($("memory"), "Memory in kB");
let drawing = false;
function draw() {
  if (drawing) return;
  drawing = true;
  requestAnimationFrame(() => {
    drawing = false;
    time.draw();
    memory.draw();
  });
}

const alone = oneAtATime((busy, stoppable) => {
  for (const id of ["write", "reset", "save", "load", "peer"]) $(id).disabled = busy || !way;
  $("stop").disabled = !busy || !stoppable;
  if (!busy && stoppable) $("prompt").focus();
});

function say(text, asked = false) {
  if (!text) return;
  const story = $("story"), part = asked ? document.createElement("span") : document.createTextNode(text);
  if (asked) {
    part.className = "asked";
    part.textContent = text;
  }
  const atEnd = story.scrollHeight - story.scrollTop - story.clientHeight < 40;
  story.append(part);
  if (atEnd) story.scrollTop = story.scrollHeight;
}

function showCost({ position, bytes, ms }) {
  const speed = ms ? `, ${ms.toFixed(1)} ms for the last` : "";
  $("numbers").textContent = `${position} tokens read${speed}; all of them are remembered in ${(bytes / 1000).toFixed(1)} kB.`;
}

async function open() {
  list = await listed();
  showDownload(list, $("status"));
  const found = await worker.ask("open", list.graph, new URLSearchParams(location.search).get("way") ?? undefined);
  ({ way } = found);
  $("status").textContent = `Ready. It runs ${WAYS[way]}; the model is ${(list.modelBytes / 1e6).toFixed(1)} MB.`;
  $("status").dataset.way = way;
  $("peer-choice").hidden = !list.peer;
  showCost({ position: 0, bytes: found.bytes });
  fetch("translate/files.json").then(({ ok }) => ($("translator").hidden = !ok), () => {}); // where one is packed beside it
}

function rules() {
  return { temperature: Number($("temperature").value), top_p: Number($("top_p").value), seed: Number($("seed").value) };
}

async function write() {
  const text = $("prompt").value.replace(/^\ufeff/, ""); // a byte order mark that was pasted is no text
  say(text, true);
  $("prompt").value = "";
  onToken = (said) => {
    say(said.text);
    if (said.ms !== null) time.add("ours", said.position, said.ms);
    memory.add("ours", said.position, said.bytes / 1000);
    if (said.peer) {
      time.add("peer", said.peer.position, said.peer.ms);
      memory.add("peer", said.peer.position, said.peer.bytes / 1000);
    }
    showCost(said);
    draw();
  };
  const done = await worker.ask("write", text, rules(), Number($("tokens").value), $("peer").checked);
  say(done.text);
  showCost(done);
  $("stop").dataset.late = done.late; // tokens that were read after it arrived
  if (done.ended) $("numbers").textContent += " The story has ended; Write begins another, Reset forgets it.";
}

async function reset() {
  showCost(await worker.ask("reset"));
  $("story").replaceChildren();
  $("prompt").value = "Once upon a time";
  time.clear();
  memory.clear();
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
  if (file.size > 1 << 28) throw Object.assign(new Error("a file of more than 256 MiB"), { kind: "snapshot" });
  showCost(await worker.ask("load", new Uint8Array(await file.arrayBuffer())));
  $("story").replaceChildren();
  $("prompt").value = "";
}

async function choosePeer() {
  const chosen = $("peer").checked;
  $("peer-legend").hidden = !chosen;
  if (!chosen || choosePeer.opened) return;
  try {
    await worker.ask("openPeer", list.peer, way);
    choosePeer.opened = true;
    await reset(); // both begin with the same token
  } catch (error) {
    $("peer").checked = false;
    throw error;
  }
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
  if (event.key === "Escape") worker.tell("stop");
});
$("stop").addEventListener("click", () => worker.tell("stop"));
$("reset").addEventListener("click", () => alone(reset));
$("save").addEventListener("click", () => alone(save));
$("load").addEventListener("change", () => alone(load));
$("peer").addEventListener("change", () => alone(choosePeer));

await keepFiles().catch(() => {}); // a browser that keeps nothing runs the model all the same
await alone(open);

/** The page: what is typed goes to the worker, what comes back is shown. */

import { Plot } from "./plot.js";

const $ = (id) => document.getElementById(id);
const WAYS = { webgpu: "on the GPU (WebGPU)", threads: "on the CPU (WebAssembly, several threads)", wasm: "on the CPU (WebAssembly, one thread)" };
const SENTENCES = { // what a person can do about a kind of error
  file: "The model could not be fetched. Check the connection, and load the page again.",
  graph: "The model's file is damaged or incomplete. Load the page again; if that does not help, tell whoever runs this page.",
  metadata: "The model's file is damaged or of another kind. Tell whoever runs this page.",
  version: "The model was made for another version of this page. Tell whoever runs this page.",
  weights: "A file of the model's weights is missing. Tell whoever runs this page.",
  provider: "This browser cannot run the model. A newer one can.",
  snapshot: "This file is no state of this model, or it is damaged. Nothing has changed.",
  position: "The story is as long as this model can make it. Press Reset for another.",
  sampling: "One of the numbers is out of its range. Correct it, and press Write.",
};

const worker = new Worker(new URL("./worker.js", import.meta.url), { type: "module" });
const calls = new Map();
let count = 0, busy = false, list = null, way = null, onToken = () => {};

worker.onmessage = ({ data }) => {
  if (data.event === "token") return onToken(data);
  const { resolve, reject } = calls.get(data.id);
  calls.delete(data.id);
  if (data.error) reject(Object.assign(new Error(data.error.message), data.error));
  else resolve(data.value);
};
worker.onerror = (event) => {
  event.preventDefault();
  for (const { reject } of calls.values()) reject(Object.assign(new Error(event.message ?? "the worker ended"), { kind: "provider" }));
  calls.clear();
};

function ask(call, ...args) {
  return new Promise((resolve, reject) => {
    calls.set(++count, { resolve, reject });
    worker.postMessage({ id: count, call, args });
  });
}

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

function setBusy(now, stoppable = false) {
  busy = now;
  for (const id of ["write", "reset", "save", "load", "peer"]) $(id).disabled = now;
  $("stop").disabled = !stoppable;
}

/** Do one thing at a time, and say in a sentence what went wrong. */
async function alone(work, stoppable = false) {
  if (busy) return;
  setBusy(true, stoppable);
  $("trouble").textContent = "";
  try {
    await work();
  } catch (error) {
    $("trouble").textContent = SENTENCES[error.kind] ?? `Something went wrong: ${error.message}`;
    $("trouble").title = error.message;
  } finally {
    setBusy(!way);
    if (stoppable) $("prompt").focus();
  }
}

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
  const answer = await fetch("files.json", { cache: "no-store" }).catch((error) => {
    throw Object.assign(error, { kind: "file" });
  });
  if (!answer.ok) throw Object.assign(new Error(`the answer ${answer.status}`), { kind: "file" });
  list = await answer.json();
  const found = await ask("open", list.graph, new URLSearchParams(location.search).get("way") ?? undefined);
  ({ way } = found);
  const ofModel = list.files.filter(({ name }) => name === list.graph || name.startsWith(`${list.graph}.`));
  const size = ofModel.reduce((all, file) => all + file.size, 0);
  $("status").textContent = `Ready. It runs ${WAYS[way]}; the model is ${(size / 1e6).toFixed(1)} MB.`;
  $("status").dataset.way = way;
  $("peer-choice").hidden = !list.peer;
  showCost({ position: 0, bytes: found.bytes });
}

function rules() {
  return { temperature: Number($("temperature").value), top_p: Number($("top_p").value), seed: Number($("seed").value) };
}

async function write() {
  const text = $("prompt").value;
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
  const done = await ask("write", text, rules(), Number($("tokens").value), $("peer").checked);
  say(done.text);
  showCost(done);
  if (done.ended) $("numbers").textContent += " The story has ended; Write begins another, Reset forgets it.";
}

async function reset() {
  showCost(await ask("reset"));
  $("story").replaceChildren();
  $("prompt").value = "Once upon a time";
  time.clear();
  memory.clear();
}

async function save() {
  const bytes = await ask("save");
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
  showCost(await ask("load", new Uint8Array(await file.arrayBuffer())));
  $("story").replaceChildren();
  $("prompt").value = "";
}

async function choosePeer() {
  const chosen = $("peer").checked;
  $("peer-legend").hidden = !chosen;
  if (!chosen || choosePeer.opened) return;
  try {
    await ask("openPeer", list.peer, way);
    choosePeer.opened = true;
    await reset(); // both begin with the same token
  } catch (error) {
    $("peer").checked = false;
    throw error;
  }
}

$("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  alone(write, true);
});
$("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    $("ask").requestSubmit();
  }
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") worker.postMessage({ call: "stop" });
});
$("stop").addEventListener("click", () => worker.postMessage({ call: "stop" }));
$("reset").addEventListener("click", () => alone(reset));
$("save").addEventListener("click", () => alone(save));
$("load").addEventListener("change", () => alone(load));
$("peer").addEventListener("change", () => alone(choosePeer));

/** Files are kept for later by a service worker; its answers also carry the headers that threads need. */
async function keepFiles() {
  if (!("serviceWorker" in navigator) || !window.isSecureContext) return;
  const had = navigator.serviceWorker.controller;
  await navigator.serviceWorker.register("sw.js");
  await navigator.serviceWorker.ready;
  if (!had && !window.crossOriginIsolated) {
    await new Promise((resolve) => {
      if (navigator.serviceWorker.controller) resolve();
      else navigator.serviceWorker.addEventListener("controllerchange", resolve, { once: true });
    });
    location.reload();
    await new Promise(() => {});
  }
}

await keepFiles().catch(() => {}); // a browser that keeps nothing runs the model all the same
await alone(open);

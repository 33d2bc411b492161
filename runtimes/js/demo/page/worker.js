/** The model, away from the page: it answers one message after the other, and looks for a stop between two tokens. */

import { Decoder, T2RError } from "./t2r/index.js";

const WEBGPU = "./vendor/ort.webgpu.bundle.min.mjs", WASM = "./vendor/ort.wasm.bundle.min.mjs";
const THREADS = 4; // at most: a small model gains nothing from more

let decoder, peer, tokenizer, pending = null, fresh = true, stopping = false;

const CALLS = { open, write, reset, save, load, openPeer };

let last = Promise.resolve();
self.onmessage = ({ data: { id, call, args } }) => {
  if (call === "stop") {
    stopping = true;
    return;
  }
  last = last.then(async () => {
    try {
      self.postMessage({ id, value: await CALLS[call](...args) });
    } catch (error) {
      self.postMessage({ id, error: { kind: error instanceof T2RError ? error.kind : "other", message: String(error.message ?? error) } });
    }
  });
};

/** WebGPU where there is an adapter, then threads, then one thread; what was tried in vain is said too. */
async function open(name, wanted) {
  const tried = [];
  for (const way of wanted ? [wanted] : await ways()) {
    try {
      decoder = await opened(name, way);
      tokenizer = decoder.tokenizer();
      const { states, vocab_size: vocabulary } = decoder.signature;
      return { way, tried, states: states.length, vocabulary, bytes: decoder.stateBytes, layers: decoder.signature.layers.length };
    } catch (error) {
      if (error.kind !== "provider" && way !== "webgpu") throw error;
      tried.push(`${way}: ${error.message}`);
    }
  }
  throw new T2RError("provider", "a browser with WebGPU or WebAssembly", tried.join("; ") || "none", "take a newer browser");
}

async function ways() {
  const found = [];
  try {
    if (await navigator.gpu?.requestAdapter()) found.push("webgpu");
  } catch {
    // a browser that has the interface and no driver
  }
  return [...found, ...(self.crossOriginIsolated ? ["threads"] : []), "wasm"];
}

async function opened(name, way) {
  const ort = await import(way === "webgpu" ? WEBGPU : WASM);
  ort.env.wasm.numThreads = way === "threads" ? Math.min(THREADS, navigator.hardwareConcurrency || 1) : 1;
  ort.env.wasm.wasmPaths = new URL("./vendor/", import.meta.url).href;
  ort.env.logLevel = "fatal";
  return Decoder.open(new URL(`./${name}`, import.meta.url), { ort, provider: way === "webgpu" ? "webgpu" : "wasm" });
}

async function openPeer(name, way) {
  peer = await opened(name, way);
  if (peer.signature.vocab_size !== decoder.signature.vocab_size) {
    throw new T2RError("interface", `a peer of ${decoder.signature.vocab_size} tokens`, `${peer.signature.vocab_size}`, "pack another");
  }
  return { bytes: peer.stateBytes };
}

async function reset() {
  await decoder.reset();
  await peer?.reset();
  [pending, fresh] = [null, true];
  return cost();
}

/** Read a text and write on; a message for every token. */
async function write(text, options, most, withPeer) {
  stopping = false;
  const prompt = pending === null ? [] : [pending];
  if (text) prompt.push(...tokenizer.encode(text, { specialTokens: fresh }));
  if (!prompt.length) prompt.push(...tokenizer.encode(""));
  const stream = tokenizer.stream(prompt);
  let waiting = prompt, count = 0, before = performance.now();
  for await (const token of decoder.stream(prompt, most, options)) {
    const now = performance.now();
    [pending, fresh] = [token, false];
    const said = { text: stream.feed(token), token, ms: count || prompt.length === 1 ? now - before : null, ...cost() };
    if (withPeer) said.peer = await beside(waiting);
    self.postMessage({ event: "token", ...said });
    waiting = [token];
    count++;
    await turn(); // so that a stop arrives
    if (stopping) break;
    before = performance.now();
  }
  return { text: stream.end(), count, ended: !stopping && decoder.signature.eos_tokens.includes(pending), ...cost() };
}

/** What the same tokens cost the other model. */
async function beside(tokens) {
  const before = performance.now();
  await peer.prefill(tokens);
  return { ms: (performance.now() - before) / tokens.length, bytes: peer.stateBytes, position: peer.position };
}

function cost() {
  return { position: decoder.position, bytes: decoder.stateBytes };
}

async function save() {
  return decoder.saveState(pending);
}

async function load(bytes) {
  pending = await decoder.loadState(bytes);
  await peer?.reset();
  fresh = decoder.position === 0 && pending === null;
  return cost();
}

/** Let other messages in; a timer would wait for 4 ms. */
function turn() {
  return new Promise((resolve) => {
    const { port1, port2 } = new MessageChannel();
    port1.onmessage = () => {
      port1.close();
      resolve();
    };
    port2.postMessage(null);
  });
}

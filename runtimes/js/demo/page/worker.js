/** The model, away from the page: it answers one message after the other, and looks for a stop between two tokens. */

import { answer, turn } from "./messages.js";
import { Decoder, T2RError } from "./t2r/index.js";
import { ways, withOrt } from "./ways.js";

let decoder, peer, tokenizer, pending = null, fresh = true, stoppedAt = null; // the position at which a stop arrived

answer({ open, write, reset, save, load, openPeer }, () => (stoppedAt ??= decoder?.position ?? null)); // a stop may come before there is a decoder

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

async function opened(name, way) {
  return Decoder.open(new URL(`./${name}`, import.meta.url), await withOrt(way));
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
  stoppedAt = null;
  const prompt = pending === null ? [] : [pending];
  if (text) prompt.push(...tokenizer.encode(text, { specialTokens: fresh }));
  if (!prompt.length) prompt.push(...tokenizer.encode(""));
  const stream = tokenizer.stream(prompt);
  const rules = { ...options, seed: options.seed + decoder.position }; // what is written on has other noise than what was before
  let waiting = prompt, count = 0, before = performance.now();
  for await (const token of decoder.stream(prompt, most, rules)) {
    const now = performance.now();
    [pending, fresh] = [token, false];
    const said = { text: stream.feed(token), token, ms: count || prompt.length === 1 ? now - before : null, ...cost() };
    if (withPeer) said.peer = await beside(waiting);
    self.postMessage({ event: "token", ...said });
    waiting = [token];
    count++;
    await turn(); // so that a stop arrives
    if (stoppedAt !== null) break;
    before = performance.now();
  }
  const late = stoppedAt === null ? 0 : decoder.position - stoppedAt;
  return { text: stream.end(), count, late, ended: decoder.signature.eos_tokens.includes(pending), ...cost() };
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

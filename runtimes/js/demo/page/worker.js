/** The model in a worker: it handles one message after the other, and checks for a stop between tokens. */

import { answer } from "./messages.js";
import { race as raced } from "./racing.js";
import { turn } from "./t2r/aborts.js";
import { Decoder } from "./t2r/index.js";
import { requireRoom } from "./t2r/signature.js";
import { fastest, withOrt } from "./ways.js";

const PATIENCE = 100; // ms that a stop waits while a prompt is read

let decoder, peer, tokenizer, pending = null, fresh = true, stoppedAt = null; // the position at which a stop arrived

answer({ open, write, reset, save, load, race }, () => (stoppedAt ??= decoder?.position ?? null)); // a stop may come before there is a decoder

async function open(name, wanted) {
  const found = await fastest(wanted, async (options) => {
    decoder = await opened(name, options);
    tokenizer = decoder.tokenizer();
  });
  const { vocabSize: vocabulary, layers } = decoder.signature;
  return { ...found, vocabulary, bytes: decoder.stateBytes, layers: layers.length };
}

async function opened(name, options) {
  return Decoder.open(new URL(`./${name}`, import.meta.url), options);
}

async function reset() {
  await decoder.reset();
  [pending, fresh] = [null, true];
  return cost();
}

/** Read a text and continue it; posts a message per token, and per piece of a long text. */
async function write(text, options, most) {
  stoppedAt = null;
  let first = (pending === null ? [] : [pending]).concat(text ? tokenizer.encode(text, { specialTokens: fresh }) : []);
  if (!first.length) first = tokenizer.encode("");
  const rules = { ...options, seed: options.seed + decoder.position }; // a continuation must not repeat the noise
  requireRoom(decoder.signature, decoder.position, first.length + most - 1);
  const { prompt, unread } = await readMost(first);
  if (unread) return { text: "", late: 0, ended: false, unread, ...cost() };
  const stream = tokenizer.stream(prompt);
  let count = 0, before = performance.now();
  for await (const token of decoder.stream(prompt, most, rules)) {
    const now = performance.now();
    [pending, fresh] = [token, false];
    const ms = count || prompt.length === 1 ? now - before : null;
    self.postMessage({ event: "token", text: stream.feed(token), token, ms, ...cost() });
    count++;
    await turn(); // lets a stop arrive
    if (stoppedAt !== null) break;
    before = performance.now();
  }
  const late = stoppedAt === null ? 0 : decoder.position - stoppedAt;
  return { text: stream.end(), late, ended: decoder.signature.eosTokens.includes(pending), ...cost() };
}

/** Read a long prompt except its last piece, `prompt`; or, if stopped, leave `unread` tokens. A piece takes about PATIENCE. */
async function readMost(ids) {
  let at = 0, size = 16;
  while (ids.length - at > size) {
    const before = performance.now();
    await decoder.prefill(ids.slice(at, at + size));
    [pending, fresh, at] = [null, false, at + size];
    self.postMessage({ event: "reading", read: at, of: ids.length, ...cost() });
    await turn(); // lets a stop arrive
    if (stoppedAt !== null) return { prompt: [], unread: ids.length - at };
    size = performance.now() - before < PATIENCE / 2 ? 2 * size : Math.max(1, size >> 1);
  }
  return { prompt: ids.slice(at), unread: 0 };
}

/** Race the peer, opened on first use; the current text is restored afterwards. */
async function race(name, way, most) {
  stoppedAt = null;
  peer ??= await opened(name, await withOrt(way));
  const kept = await decoder.saveState(pending);
  try {
    const lanes = await raced([decoder, peer], most, (news) => self.postMessage({ event: "race", lanes: news }), () => stoppedAt !== null);
    return { lanes, stopped: stoppedAt !== null };
  } finally {
    await peer.reset();
    pending = await decoder.loadState(kept);
  }
}

function cost() {
  return { position: decoder.position, bytes: decoder.stateBytes };
}

async function save() {
  return decoder.saveState(pending);
}

async function load(bytes) {
  pending = await decoder.loadState(bytes);
  fresh = decoder.position === 0 && pending === null;
  return cost();
}

/** The model in a worker: it handles one message after the other, and checks for a stop between tokens. */

import { answer } from "./messages.js";
import { race as raced } from "./racing.js";
import { turn } from "./t2r/aborts.js";
import { Decoder } from "./t2r/index.js";
import { requireRoom } from "./t2r/signature.js";
import { fastest, withOrt } from "./ways.js";

const PIECE = 256; // prompt tokens read between checks for a stop

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
  const first = pending === null ? [] : [pending];
  if (text) first.push(...tokenizer.encode(text, { specialTokens: fresh }));
  if (!first.length) first.push(...tokenizer.encode(""));
  const rules = { ...options, seed: options.seed + decoder.position }; // a continuation must not repeat the noise
  requireRoom(decoder.signature, decoder.position, first.length + most - 1);
  const prompt = await readMost(first);
  if (!prompt) return { text: "", late: 0, ended: false, ...cost() };
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

/** Read a long prompt except its last piece, which is returned; null if stopped. */
async function readMost(prompt) {
  let at = 0;
  for (; prompt.length - at > PIECE; at += PIECE) {
    await decoder.prefill(prompt.slice(at, at + PIECE));
    [pending, fresh] = [null, false];
    self.postMessage({ event: "reading", read: at + PIECE, of: prompt.length, ...cost() });
    await turn();
    if (stoppedAt !== null) return null;
  }
  return prompt.slice(at);
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

/** The model in a worker: it handles one message after the other, and checks for a stop between tokens. */

import { answer } from "./messages.js";
import { race as raced } from "./racing.js";
import { readMost, softmaxBytes } from "./reading.js";
import { turn } from "./t2r/aborts.js";
import { Decoder } from "./t2r/index.js";
import { requireRoom } from "./t2r/signature.js";
import { fastest, withOrt } from "./ways.js";

let decoder, peer, tokenizer, pending = null, fresh = true, stoppedAt = null; // the position at which a stop arrived

answer({ open, write, reset, save, load, race }, () => (stoppedAt ??= decoder?.position ?? null)); // a stop may come before there is a decoder

async function open(name, wanted, quantization) {
  const found = await fastest(wanted, quantization, async (options) => {
    decoder = await opened(name, options);
    tokenizer = decoder.tokenizer();
  });
  const { vocabSize: vocabulary, layers } = decoder.signature;
  return { ...found, vocabulary, layers: layers.length, perToken: softmaxBytes(decoder.signature), ...cost() };
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
  let read = 0;
  const prompt = await readMost(decoder, first, (at) => {
    [pending, fresh, read] = [null, false, at];
    self.postMessage({ event: "reading", read, of: first.length, ...cost() });
  }, () => stoppedAt !== null);
  if (!prompt.length) return { text: "", count: 0, late: 0, ended: false, unread: first.length - read, ...cost() };
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
  return { text: stream.end(), count, late, ended: decoder.signature.eosTokens.includes(pending), ...cost() };
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

/** The chat in a worker: its messages, and a decoder that has read them as the model's template renders them. */

import { answer } from "./messages.js";
import { readMost, softmaxBytes } from "./reading.js";
import { turn } from "./t2r/aborts.js";
import { Decoder } from "./t2r/index.js";
import { fastest } from "./ways.js";

let decoder, tokenizer, messages = [], read = [], stopping = false; // read: tokens that the decoder has read

answer({ open, say, reset }, () => (stopping = true));

async function open(name, wanted, quantization) {
  const found = await fastest(wanted, quantization, async (options) => {
    decoder = await Decoder.open(new URL(`./${name}`, import.meta.url), options);
    tokenizer = decoder.tokenizer();
  });
  const { vocabSize: vocabulary, layers } = decoder.signature;
  return { ...found, vocabulary, layers: layers.length, perToken: softmaxBytes(decoder.signature), ...cost() };
}

async function reset() {
  await decoder.reset();
  [messages, read] = [[], []];
  return cost();
}

/** Answer a message; posts a message per token, and per piece of a long text. */
async function say(text, options, most) {
  stopping = false;
  const asked = [...messages, { role: "user", content: text }];
  const ids = Array.from(tokenizer.encode(await tokenizer.chat(asked), { specialTokens: false }));
  const fresh = await unread(ids);
  const tell = (at) => self.postMessage({ event: "reading", read: at, of: fresh.length, ...cost() });
  const prompt = await readMost(decoder, fresh, tell, () => stopping);
  if (!prompt.length) return { text: "", unread: true, ...cost() };
  const stopTokens = [...decoder.signature.eosTokens, tokenizer.endOfTurn].filter((id) => id !== null);
  const stream = tokenizer.stream(ids), written = [], pieces = [];
  for await (const token of decoder.stream(prompt, most, { ...options, seed: options.seed + messages.length, stopTokens })) {
    written.push(token);
    pieces.push(stream.feed(token));
    self.postMessage({ event: "token", text: pieces.at(-1), ...cost() });
    await turn(); // lets a stop arrive
    if (stopping) break;
  }
  const end = stream.end();
  read = [...ids, ...written.slice(0, -1)];
  messages = [...asked, { role: "assistant", content: pieces.join("") + end }];
  return { text: end, unread: false, ...cost() };
}

/** The tokens to read: those after what was read, or all of them after a reset if they do not continue it. */
async function unread(ids) {
  const known = read;
  read = []; // unknown if the answer is interrupted
  if (known.length && known.length < ids.length && known.every((id, n) => id === ids[n])) return ids.slice(known.length);
  await decoder.reset();
  return ids;
}

function cost() {
  return { position: decoder.position, bytes: decoder.stateBytes };
}

/** Arguments of every kind for every public method: only T2RErrors are thrown, nothing hangs, and the decoder does not change. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { Batch, Decoder, KINDS, PrefixCache, Sampler, T2RError, Tokenizer, Translator, readModelFile, readSignature } from "../src/index.js";
import { bytesOf, golden, random, refused } from "./files.js";

const CALLS = 12; // per method

/** Values of all kinds; fake lengths must not be allocated. */
const ANY = [
  undefined, null, true, 0, 1, -1, 1.5, NaN, Infinity, 1e9, 2 ** 53, 3n, -1n, "", "abc", "1", Symbol("s"), () => false, [], [1], [3, 1], [99], [-1], ["1"],
  [undefined], [null], [[1]], [[1], [3]], [[]], [Symbol("s")], new Array(1e9), { length: 1e9 }, { length: -1 }, {}, { 0: 1, length: 1 }, Object.create(null),
  { toString: null }, new Int32Array([1]), new Float32Array([0.5, 2]), new BigInt64Array([1n]), new Uint8Array(9), new DataView(new ArrayBuffer(4)),
  new ArrayBuffer(4), new Map(), new Map([[1, 2]]), new Set([1]), new Date(0), new URL("ftp://x/y"), new URL("file://host/y"), new Error("e"), /x/, Promise,
  { graph: "a", files: null }, { graph: "a", files: { a: 7 } }, { graph: 3n, files: {} }, { files: {} }, { signal: 1 }, { width: "4" }, { topK: {} }, { seed: Symbol("s") },
  { stopTokens: { length: 1e9 } }, { stopTokens: "abc" }, { nBest: new Array(1e9) }, { threads: "2" }, { ort: {} }, { prefill: 1 }, { maxStateBytes: NaN },
  { tokenizer: 7, bosToken: {} }, { tokenizer: "{}" }, { specialTokens: 3 },
];
const FEW = [0, 1, 2, -1, 1.5, NaN, "3", null, undefined, {}, 2n, [2], Symbol("s")]; // keeps texts short
const STATES = [
  { dtype: "float32", dims: [1], bytes: new Uint8Array(4) }, { dtype: Symbol("s"), dims: [Symbol("s")], bytes: new Uint8Array() },
  { dtype: "float32", dims: new Array(1e9), bytes: new Uint8Array() }, { dtype: "float32", dims: [1n, 1], bytes: new Uint8Array() }, {}, null, 7,
];

const next = random(28);
const one = (values) => values[Math.floor(next() * values.length)];
const any = () => one(ANY);

async function tried(what, call) {
  for (let n = 0; n < CALLS; n++) {
    let args;
    try {
      await call((...given) => (args = given));
    } catch (error) {
      const given = () => args.map((value) => (typeof value === "object" ? Object.prototype.toString.call(value) : String(value))).join(", ");
      assert.ok(error instanceof T2RError && KINDS.includes(error.kind), `${what}(${args && given()}): ${error.stack}`);
      assert.match(error.message, /^expected [^\n]{1,2000}; received [^\n]{1,2000}; [^\n]*$/);
    }
  }
}

/** Calls a method with random arguments, which `note` records. */
const calling = (object, name, ...kinds) => (note) => object[name](...note(...kinds.map((kind) => kind())));

test("a decoder", async () => {
  const decoder = await Decoder.open(golden("prefill.onnx"));
  const fresh = async () => {
    await decoder.reset(1);
    return Array.from(await decoder.prefill([1, 3, 2]));
  };
  const before = await fresh(), states = await decoder.state(), names = [...states.keys()];
  const someStates = () => one([any, () => new Map([...states, [one(names), one(STATES)]]), () => ({ [one(names)]: one(STATES) })])();
  const ended = () => one([null, undefined, () => false, any()]);
  const parts = () => one([any, () => [[decoder, any()]], () => [[any(), [0]]], () => [[decoder, [0]], any()]])();
  const methods = {
    reset: [any], adapt: [any], step: [any], prefill: [any], topK: [any], setState: [someStates, any], reorder: [any], take: [parts], saveState: [any], loadState: [any],
    generate: [any, () => one(FEW), any, ended, any],
  };
  for (const [name, kinds] of Object.entries(methods)) await tried(name, calling(decoder, name, ...kinds));
  await tried("stream", async (note) => {
    for await (const token of decoder.stream(...note(any(), one(FEW), any()))) assert.ok(token >= 0);
  });
  assert.deepEqual(await fresh(), before);
  await decoder.close();
});

test("a batch, and a cache of prefixes", async () => {
  const decoder = await Decoder.open(golden("tiny.onnx")), batch = new Batch(decoder), cache = new PrefixCache(decoder.fork(), { block: 2 });
  const before = await decoder.generate([1, 3], 5, { temperature: 0 });
  await tried("Batch", (note) => new Batch(...note(any())));
  await tried("PrefixCache", (note) => new PrefixCache(...note(one([decoder, any()]), any())));
  for (const [name, kinds] of Object.entries({ add: [any, () => one(FEW), any], step: [], remove: [() => one([any(), 0, 1, 2])] })) {
    await tried(name, calling(batch, name, ...kinds));
  }
  for (const [name, kinds] of Object.entries({ read: [any], generate: [any, () => one(FEW), any, any] })) await tried(name, calling(cache, name, ...kinds));
  await batch.close();
  const other = new Batch(decoder), handle = await other.add([1, 3], 5, { temperature: 0 }), written = [];
  while (other.sequences.length) written.push((await other.step()).get(handle));
  assert.deepEqual(written, before);
  assert.deepEqual(await cache.generate([1, 3], 5, { temperature: 0 }), before);
  await other.close();
  await decoder.close();
});

test("a translator", async () => {
  const translator = await Translator.open(golden("translator.onnx"));
  const before = await translator.translate([1, 3]);
  const stop = () => one([() => false, any()]), beam = () => one([{ maxTokens: 3 }, { width: 1, maxTokens: 3 }, any()]);
  const methods = { encode: [any], translate: [any, beam, stop], generate: [any, () => one(FEW), any, stop, any] };
  for (const [name, kinds] of Object.entries(methods)) await tried(name, calling(translator, name, ...kinds));
  assert.deepEqual(await translator.translate([1, 3]), before);
  await translator.close();
});

test("a tokenizer", async () => {
  const decoder = await Decoder.open(golden("bytes.onnx")), tokenizer = decoder.tokenizer(), stream = tokenizer.stream();
  const before = tokenizer.encode("a b");
  for (const [name, kinds] of Object.entries({ encode: [any, any], decode: [any], stream: [any] })) await tried(name, calling(tokenizer, name, ...kinds));
  await tried("feed", calling(stream, "feed", any));
  assert.equal(typeof stream.feed(before[0]), "string", "a stream goes on after a token that is none");
  await tried("Tokenizer", (note) => new Tokenizer(...note(any(), any())));
  await tried("Tokenizer.of", calling(Tokenizer, "of", any));
  assert.deepEqual(tokenizer.encode("a b"), before);
  await decoder.close();
});

test("what opens, and what chooses", async () => {
  const bytes = await bytesOf("tiny.onnx"), { metadata } = readModelFile(bytes);
  const source = () => one([golden("tiny.onnx"), { graph: "g", files: { g: bytes } }, any()]);
  const opened = (kind) => async (note) => (await kind.open(...note(source(), any()))).close();
  await tried("Decoder.open", opened(Decoder));
  await tried("Translator.open", opened(Translator));
  await tried("readModelFile", (note) => readModelFile(...note(any())));
  await tried("readSignature", (note) => readSignature(...note(one([metadata, any()]), any())));
  await tried("Sampler", (note) => new Sampler(...note(any())));
  const sampler = new Sampler({ temperature: 0, repetitionPenalty: 2 });
  await tried("pick", calling(sampler, "pick", () => one([new Float32Array([1, 2, 0.5]), any()]), any, any));
});

test("the error names what was received", async () => {
  const decoder = await Decoder.open(golden("tiny.onnx"));
  await refused(() => decoder.step("abc"), "token", /received "abc"/);
  await refused(() => decoder.step({ length: 1e9 }), "token", /received an object/);
  await refused(() => decoder.step(new Array(1e9)), "batch", /received 1000000000/);
  await refused(() => decoder.prefill(new Array(1e9)), "token", /received undefined at place 0/);
  await refused(() => decoder.generate("hello", 3), "token", /received "hello"/);
  await refused(() => decoder.generate([1, "2"], 3), "token", /received "2" at place 1/);
  await refused(() => decoder.generate([1], 3, {}, () => true), "argument", /an object of onToken and signal; received a function/);
  await refused(() => decoder.generate([1], 3, {}, { onStep: () => true }), "argument", /onToken and signal; received onStep/);
  await refused(() => decoder.generate([1], 3, {}, { signal: {} }), "argument", /an AbortSignal, or null/);
  await refused(() => decoder.generate([1], 3, {}, { onToken: 7 }), "argument", /a function as onToken, or null; received 7/);
  await refused(() => decoder.generate([1], 3, [1]), "sampling", /options as an object; received an array of 1/);
  await refused(() => Decoder.open(golden("tiny.onnx"), { thread: 4 }), "provider", /options of provider.*; received thread/);
  await decoder.close();
});

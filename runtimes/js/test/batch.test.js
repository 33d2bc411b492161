/** Texts that join and leave a batch, and rows of several decoders: as if each text were alone. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { Batch, Decoder } from "../src/index.js";
import { golden, opened, random, refused } from "./files.js";

const OPTIONS = [
  { temperature: 0 }, { seed: 3 }, { temperature: 0.7, topK: 5, topP: 0.9, seed: 7 }, { repetitionPenalty: 1.5, noRepeatNgram: 2, seed: 5 },
];
const chance = random(31), upTo = (most) => 1 + Math.floor(chance() * most);
const tokens = (length) => Array.from({ length }, () => Math.floor(chance() * 17));

for (const graph of ["tiny.onnx", "window.onnx"]) {
  test(`texts that come and go are those that are written alone: ${graph}`, () => opened(graph, async (decoder) => {
    await decoder.prefill([1, 2]);
    const batch = new Batch(decoder), texts = new Map();
    for (let n = 0; n < 12; n++) {
      const asked = [tokens(upTo(9)), upTo(14), { ...OPTIONS[n % 4], stopTokens: n % 3 ? [4, 9] : [] }];
      texts.set(await batch.add(...asked), { asked, written: [] });
      for (let steps = upTo(5) - 1; steps > 0; steps--) for (const [handle, token] of await batch.step()) texts.get(handle).written.push(token);
      assert.deepEqual(batch.sequences, batch.sequences.toSorted((a, b) => a - b));
    }
    const [removed] = batch.sequences, states = await batch.remove(removed), part = texts.get(removed);
    while (batch.sequences.length) for (const [handle, token] of await batch.step()) texts.get(handle).written.push(token);
    assert.deepEqual([...(await batch.step())], []);
    await batch.close();
    assert.equal(decoder.position, 2, "the decoder's own text is left alone");
    for (const [handle, { asked, written }] of texts) {
      await decoder.reset();
      const alone = await decoder.generate(...asked);
      assert.deepEqual(written, handle === removed ? alone.slice(0, written.length) : alone);
    }
    const [prompt] = part.asked, read = [...prompt, ...part.written].slice(0, -1);
    await decoder.reset();
    if (read.length) await decoder.prefill(read);
    for (const [name, { dtype, bytes }] of await decoder.state()) {
      if (dtype !== "float32") assert.deepEqual(states.get(name).bytes, bytes);
      else new Float32Array(bytes.buffer).forEach((x, n) => assert.ok(Math.abs(x - new Float32Array(states.get(name).bytes.buffer)[n]) < 1e-5 * Math.max(1, Math.abs(x))));
    }
  }));
}

test("what a batch refuses, it has not changed", async () => {
  for (const [graph, said] of [["tiny-hybrid.onnx", /caches that grow/], ["ends.onnx", /any batch/]]) {
    await opened(graph, (decoder) => refused(() => new Batch(decoder), "batch", said));
  }
  await refused(() => new Batch(/** @type {any} */ ({})), "graph");
  await opened("tiny.onnx", async (decoder) => {
    const batch = new Batch(decoder);
    await refused(() => batch.add([], 3), "token");
    await refused(() => batch.add([1], 0), "sampling");
    await refused(() => batch.remove(0), "batch", /received 0/);
    assert.deepEqual(batch.sequences, []);
    const adding = batch.add([1, 3], 2);
    await refused(() => batch.step(), "state", /a batch that nobody else uses/);
    assert.equal(await adding, 0);
    await batch.close();
    await refused(() => batch.add([1], 3), "state", /closed/);
    await decoder.step(1);
  });
  await opened("bad/not-finite.onnx", async (decoder) => {
    const batch = new Batch(decoder), handle = await batch.add([4, 3, 2], 6);
    assert.deepEqual([...(await batch.step())], [[handle, -1]]);
    assert.deepEqual(batch.sequences, []);
    await batch.close();
  });
});

test("rows of several decoders of the same sessions", () => opened("tiny.onnx", async (decoder) => {
  const other = decoder.fork();
  await decoder.prefill([3, 1, 2]);
  await other.reset(2);
  await other.prefill([[5], [6]]);
  await other.take([[other, [1]], [decoder, [0, 0]]]);
  assert.deepEqual([other.batch, other.position], [3, 3]);
  const logits = await other.step([7, 8, 9]), size = decoder.signature.vocabSize;
  await decoder.reset();
  await decoder.prefill([6]);
  (await decoder.step(7)).forEach((x, n) => assert.ok(Math.abs(x - logits[n]) < 1e-5));
  await decoder.reset();
  await decoder.prefill([3, 1, 2]);
  (await decoder.step(9)).forEach((x, n) => assert.ok(Math.abs(x - logits[2 * size + n]) < 1e-5));
  const stranger = await Decoder.open(golden("tiny.onnx"));
  for (const wrong of [[[stranger, [0]]], [[other, [3]]], [[other, []]], [], [[other]], 3]) {
    await refused(() => decoder.take(/** @type {any} */ (wrong)), "batch");
  }
  await stranger.close();
  await decoder.close();
  await other.step([1, 1, 1]);
  await refused(() => other.take([[decoder, [0]]]), "state", /closed/);
  await other.close();
}));

test("caches of one length alone stand side by side", () => opened("tiny-hybrid.onnx", async (decoder) => {
  const other = decoder.fork();
  await decoder.prefill([3, 1]);
  await other.prefill([5]);
  await refused(() => decoder.take([[decoder, [0]], [other, [0]]]), "batch", /of one length/);
  await other.step(1);
  await decoder.take([[decoder, [0]], [other, [0]]]);
  assert.equal((await decoder.step([1, 2])).length, 2 * decoder.signature.vocabSize);
  await other.close();
}));

/** Low-rank adapters chosen by name: what is refused; the case calls-adapters compares what they compute. */

import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { Decoder, PrefixCache, WorkerDecoder } from "../src/index.js";
import { golden, refused, signatureOf } from "./files.js";

let decoder;
before(async () => (decoder = await Decoder.open(golden("adapters.onnx"))));
after(() => decoder.close());

const chosen = async (made = decoder) => [...new Int32Array((await made.state()).get("adapter").bytes.buffer)];

test("names are those of the graph: one for all rows, or one for each", async () => {
  assert.deepEqual(decoder.signature.adapters, ["legal", "poems-2"]);
  await decoder.reset(3);
  await decoder.adapt(["poems-2", null, "legal"]);
  for (const names of ["prose", "", ["legal", "legal"], [["legal"], "legal", null], 1, undefined, [1, 2, 0], new Int32Array(3), new Array(3)]) {
    await refused(() => decoder.adapt(names), "argument");
  }
  assert.deepEqual(await chosen(), [2, 0, 1]);
  await decoder.reorder([2, 0]);
  assert.deepEqual(await chosen(), [1, 2]);
  await decoder.adapt("poems-2");
  assert.deepEqual(await chosen(), [2, 2]);
  await decoder.adapt(null);
  assert.deepEqual(await chosen(), [0, 0]);
});

test("numbers of no adapter are refused in states", async () => {
  await decoder.reset(1);
  const states = await decoder.state();
  for (const number of [-1, 3]) {
    const bytes = new Uint8Array(Int32Array.of(number).buffer);
    await refused(() => decoder.setState(new Map([...states, ["adapter", { dtype: "int32", dims: [1], bytes }]])), "snapshot");
  }
});

test("a graph without adapters takes none", async () => {
  const plain = await Decoder.open(golden("tiny.onnx"));
  await plain.adapt(null);
  await refused(() => plain.adapt("legal"), "argument");
  await plain.close();
});

test("a worker chooses them too", async () => {
  const away = await WorkerDecoder.open(golden("adapters.onnx"));
  await away.adapt("legal");
  assert.deepEqual(await chosen(away), [1]);
  await refused(() => away.adapt("prose"), "argument");
  await away.close();
});

test("states of one adapter are never those of another", async () => {
  const cache = new PrefixCache(decoder.fork(), { block: 2 }), text = [5, 3, 9, 1, 7, 2], options = { temperature: 0, stopTokens: [] }, seen = new Set();
  for (const reused of [0, 5]) {
    for (const name of [null, "legal", "poems-2"]) {
      cache.adapt(name);
      const found = await cache.generate(text, 6, options);
      await decoder.reset(1);
      await decoder.adapt(name);
      assert.deepEqual(found, await decoder.generate(text, 6, options));
      assert.equal(cache.reused, reused);
      seen.add(String(found));
    }
  }
  assert.ok(seen.size > 1);
  await refused(async () => cache.adapt("prose"), "argument");
  await cache.clear();
});

test("malformed names are refused when a graph is opened", async () => {
  for (const names of [[], ["a", "a"], ["-a"], ["a b"], [""], ["x".repeat(65)], [3], new Array(1025).fill("x"), { a: 1 }, null]) {
    await refused(() => signatureOf("adapters.onnx", { adapters: names }), "metadata");
  }
  await refused(() => signatureOf("tiny.onnx", { adapters: ["legal"] }), "metadata"); // no state chooses one
  assert.deepEqual((await signatureOf("adapters.onnx", { adapters: ["x".repeat(64), "0._-"] })).adapters.length, 2);
});

/** A decoder in a worker does what a decoder does. */

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { test } from "node:test";
import { promisify } from "node:util";
import { Worker } from "node:worker_threads";

import { Decoder, WorkerDecoder } from "../src/index.js";
import { golden, refused } from "./files.js";

const RULES = { seed: 3, stopTokens: [] };

/** Run `work` with a decoder in this thread and one in a worker, of the same graph. */
async function both(name, work) {
  const results = [];
  for (const kind of [Decoder, WorkerDecoder]) {
    const decoder = await kind.open(golden(name));
    try {
      results.push(await work(decoder));
    } finally {
      await decoder.close();
    }
  }
  assert.deepEqual(results[1], results[0]);
  return results[0];
}

test("texts and what has been read are the same, watched or not", () => both("window.onnx", async (decoder) => {
  const seen = [], found = [decoder.provider, decoder.signature.vocabSize];
  found.push(await decoder.generate([1, 3], 12, RULES), decoder.position);
  found.push(await decoder.generate([2], 5, RULES, { onToken: (token) => void seen.push(token) }), decoder.position, decoder.stateBytes);
  return [...found, seen, [...(await decoder.step(4))]];
}));

for (const most of [1, 2, 5]) {
  test(`a text that ends after ${most} tokens`, () => both("tiny.onnx", async (decoder) => {
    let left = most;
    const ended = await decoder.generate([1, 3], 9, RULES, { onToken: async () => --left > 0 });
    assert.equal(ended.length, most);
    const found = [ended, decoder.position];
    for await (const token of decoder.stream([2], 9, RULES)) if (found.push(token) === most + 2) break;
    return [...found, decoder.position, [...(await decoder.step(4))]];
  }));
}

test("a stream to its end, and one of options that are refused", () => both("tiny.onnx", async (decoder) => {
  const found = [];
  for await (const token of decoder.stream([1], 7, RULES)) found.push(token);
  assert.equal(found.length, 7);
  await refused(() => decoder.stream([1], 7, { heat: 1 }).next(), "sampling");
  return [found, decoder.position];
}));

test("a signal's reason, and what a callback throws, come out of it", () => both("tiny.onnx", async (decoder) => {
  const stop = new AbortController(), reason = new Error("enough");
  let count = 0;
  const onToken = () => void (++count === 3 && stop.abort(reason));
  await assert.rejects(decoder.generate([1], 9, RULES, { onToken, signal: stop.signal }), (error) => error === reason);
  const read = decoder.position;
  await assert.rejects(decoder.generate([1], 9, RULES, { signal: stop.signal }), (error) => error === reason);
  await assert.rejects(decoder.generate([1], 9, RULES, { onToken: () => { throw reason; } }), (error) => error === reason);
  return [read, decoder.position, [...(await decoder.step(4))]];
}));

test("rows, states and snapshots", () => both("tiny-hybrid.onnx", async (decoder) => {
  await decoder.reset(2);
  const found = [await decoder.prefill([[1, 3], [4, 2]])];
  await decoder.reorder([1, 1, 0]);
  const states = await decoder.state();
  found.push(await decoder.step([2, 3, 4]));
  await decoder.setState(states, 2);
  found.push(await decoder.step([2, 3, 4]), decoder.batch);
  await decoder.reset(1);
  await refused(() => decoder.readVectors([1, 2]), "token", /token ids; received vectors/);
  await decoder.prefill([1, 3]);
  const saved = await decoder.saveState(4);
  await decoder.reset();
  return [...found, saved, await decoder.loadState(saved), decoder.position, await decoder.step(4)];
}));

test("a tokenizer, in this thread", () => both("bytes.onnx", (decoder) => decoder.tokenizer().encode("Once upon a time")));

test("errors have their kind", async () => {
  await refused(() => WorkerDecoder.open("nowhere.onnx"), "file", /nowhere\.onnx/);
  await refused(() => WorkerDecoder.open(golden("tiny.onnx"), { threads: 0 }), "provider", /threads/);
  await refused(() => WorkerDecoder.open(golden("tiny.onnx"), { ort: {} }), "provider", /ort: the address of a module/);
  await refused(() => WorkerDecoder.open(golden("tiny.onnx"), { ort: "file:///nowhere.mjs" }), "provider", /ONNX Runtime at file/);
  await refused(() => WorkerDecoder.open({ graph: () => 1, files: {} }), "argument", /a worker can be given for open/);
  const broken = new Worker("throw new Error('no script')", { eval: true });
  await refused(() => WorkerDecoder.open(golden("tiny.onnx"), { worker: broken }), "runtime", /no script/);
  const decoder = await WorkerDecoder.open(golden("tiny.onnx"));
  await refused(() => decoder.step(99), "token");
  const [first, second] = await Promise.allSettled([decoder.prefill([1, 3, 2]), decoder.step(1)]);
  assert.equal(first.status, "fulfilled");
  await refused(() => { throw second.reason; }, "state", /in use/);
  await decoder.close();
  await decoder.close();
  await refused(() => decoder.step(1), "state", /closed/);
});

test("progress is told, and a module is taken by its address", async () => {
  const { serve } = await import("../demo/serve.js");
  const server = await serve(golden(""), 0), heard = [];
  const ort = import.meta.resolve("onnxruntime-node");
  const address = `http://127.0.0.1:${server.address().port}/tiny.onnx`;
  const decoder = await WorkerDecoder.open(address, { ort, onProgress: ({ loaded }) => void heard.push(loaded) });
  assert.ok(heard.length > 0);
  await decoder.close();
  server.closeAllConnections();
  server.close();
});

test("a program ends that closes nothing", async () => {
  const program = `
    import { WorkerDecoder } from ${JSON.stringify(import.meta.resolve("../src/index.js"))};
    const decoder = await WorkerDecoder.open(${JSON.stringify(golden("tiny.onnx"))});
    console.log((await decoder.generate([1], 4, { stopTokens: [] })).length);`;
  const { stdout } = await promisify(execFile)(process.execPath, ["--input-type=module", "--eval", program], { timeout: 60_000 });
  assert.equal(stdout, "4\n");
});

/** Buffers of steps on Node's CPU: two per state, swapped, without new allocations; and a prompt that fails. */

import assert from "node:assert/strict";
import { test } from "node:test";

import ort from "onnxruntime-node";

import { Decoder } from "../src/index.js";
import { golden, refused } from "./files.js";

/** Every run's feeds and fetches. */
function noted(runs) {
  const create = async (...given) => {
    const session = await ort.InferenceSession.create(...given), run = session.run.bind(session);
    session.run = (feeds, fetches) => {
      runs.push({ feeds: { ...feeds }, fetches: { ...fetches } });
      return run(feeds, fetches);
    };
    return session;
  };
  return { Tensor: ort.Tensor, InferenceSession: { create } };
}

for (const graph of ["tiny.onnx", "tiny-hybrid.onnx", "window.onnx"]) {
  test(`two buffers a state of constant size: ${graph}`, async () => {
    const runs = [], decoder = await Decoder.open(golden(graph), { ort: noted(runs) });
    const { states } = decoder.signature;
    for (let n = 0; n < 6; n++) await decoder.step(1 + n);
    for (const [n, { feeds, fetches }] of runs.entries()) {
      for (const { name, shape } of states) {
        const [past, present] = [feeds[`past_${name}`], fetches[`present_${name}`]];
        if (shape.includes("T")) assert.equal(present, null, "a cache that grows is ONNX Runtime's to make");
        else {
          assert.ok(present instanceof ort.Tensor && present !== past && present.data !== past.data, `${name} in run ${n}`);
          if (n >= 1) assert.equal(past, runs[n - 1].fetches[`present_${name}`], `${name} goes on in run ${n}`);
          if (n >= 2) assert.equal(past, runs[n - 2].feeds[`past_${name}`], `${name} changes places in run ${n}`);
        }
      }
    }
    assert.equal(runs.length, 6);
    const first = await decoder.step(2), kept = first.slice();
    await decoder.step(3);
    assert.deepEqual(first, kept, "logits are the caller's own");
    await decoder.close();
  });
}

for (const [graph, read] of [["prefill.onnx", 1024], ["tiny.onnx", 2]]) {
  test(`a prompt that fails in its third run has been read up to there: ${graph}`, async () => {
    let left = Infinity;
    const create = async (...given) => {
      const session = await ort.InferenceSession.create(...given), run = session.run.bind(session);
      session.run = async (...asked) => {
        if (left-- === 0) throw new Error("no more runs");
        return run(...asked);
      };
      return session;
    };
    const decoder = await Decoder.open(golden(graph), { ort: { Tensor: ort.Tensor, InferenceSession: { create } } });
    const prompt = Array.from({ length: read + 9 }, (_, n) => (5 * n) % 17);
    left = 2;
    await refused(() => decoder.prefill(prompt), "runtime", /no more runs/);
    assert.equal(decoder.position, read);
    const states = await decoder.state();
    await decoder.reset();
    await decoder.prefill(prompt.slice(0, read));
    assert.deepEqual(await decoder.state(), states);
    await decoder.close();
  });
}

test("where logits are not finite, the prompt has been read", async () => {
  const decoder = await Decoder.open(golden("bad/not-finite.onnx"));
  await refused(() => decoder.generate([4, 3, 2], 6), "graph", /finite logits/);
  assert.equal(decoder.position, 3);
  await decoder.close();
});

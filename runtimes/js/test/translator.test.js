/** A translation token by token: Python's tokens, a callback and a signal that end it, and what is refused, in Python's order. */

import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { Translator } from "../src/index.js";
import { golden, refused, signatureOf } from "./files.js";

let translator;
before(async () => (translator = await Translator.open(golden("translator.onnx"))));
after(() => translator.close());

// results of `Translator.generate` of t2r_runtime
const TEXTS = [
  [{ temperature: 0 }, [1, 3], [16, 4, 4, 16, 4, 16, 4, 4, 16, 4]],
  // would differ if banned tokens could be chosen
  [{ temperature: 1.3, seed: 7 }, [1, 3], [16, 13, 10, 15, 2, 15, 3, 2, 14, 11]],
  [{ temperature: 2, topK: 14, seed: 0 }, [1, 3], [7, 13, 10, 15, 2, 13, 2, 10, 15, 4]],
  // would differ if the start token did not count as occurred
  [
    { temperature: 1.5, topP: 0.9, minP: 0.02, seed: 11, repetitionPenalty: 1.3, noRepeatNgram: 3 },
    [2, 5, 4, 7], [16, 15, 4, 1, 7, 2, 2, 3, 16, 7],
  ],
];

for (const [options, source, wanted] of TEXTS) {
  test(`Python's tokens of ${JSON.stringify(options)}`, async () => {
    const given = { ...options, stopTokens: [] };
    assert.deepEqual(await translator.generate(source, wanted.length, given), wanted);
    const streamed = [];
    for await (const token of translator.stream(source, wanted.length, given)) streamed.push(token);
    assert.deepEqual(streamed, wanted);
  });
}

test("greedy where nobody says otherwise, up to an end", async () => {
  const [best] = await translator.translate([1, 3], { width: 1, maxTokens: 8, forcedEnd: false });
  assert.deepEqual(await translator.generate([1, 3], 8), best.tokens);
  assert.deepEqual(await translator.generate([1, 3], 10, { temperature: 1.3, seed: 7 }), [16, 13, 10, 15, 2]);
});

test("a callback, a signal and a broken loop end a translation within a token", async () => {
  const [, , wanted] = TEXTS[0], got = [];
  assert.deepEqual(await translator.generate([1, 3], 10, undefined, { onToken: (token) => got.push(token) < 3 }), wanted.slice(0, 3));
  assert.deepEqual(got, wanted.slice(0, 3));
  const stop = new AbortController();
  const seen = [], onToken = (token) => void (seen.push(token) === 2 && stop.abort());
  await assert.rejects(translator.generate([1, 3], 10, undefined, { onToken, signal: stop.signal }), { name: "AbortError" });
  assert.deepEqual(seen, wanted.slice(0, 2));
  await assert.rejects(translator.translate([1, 3], {}, { signal: stop.signal }), { name: "AbortError" });
  const late = new AbortController(), steps = [];
  const onStep = (newest) => void (steps.push(newest) === 2 && late.abort());
  await assert.rejects(translator.translate([1, 3], { width: 2 }, { onStep, signal: late.signal }), { name: "AbortError" });
  assert.equal(steps.length, 2);
  for await (const token of translator.stream([1, 3], 10)) if (token === 4) break;
  assert.deepEqual(await translator.generate([1, 3], 10), wanted, "nothing of the last one is left");
});

test("what is refused, in Python's order: options, the source, and what a text needs", async () => {
  await refused(() => translator.generate([], 0, { heat: 1 }), "sampling", /heat/);
  await refused(() => translator.generate([], 0), "token", /of a source in 0 … 12; received none/);
  await refused(() => translator.generate([99], 0), "token", /of a source/);
  await refused(() => translator.generate([1], 0, { stopTokens: [99] }), "sampling", /a number of tokens of at least 1/);
  await refused(() => translator.generate([1], 1, { stopTokens: [99] }), "token", /stop tokens/);
  const stream = translator.stream([1], 5);
  await stream.next();
  await refused(() => translator.translate([1]), "state", /in use/);
  await stream.return();
  const other = await Translator.open(golden("translator.onnx"));
  await other.close();
  await refused(() => other.generate([1], 1), "state", /closed/);
});

test("sources in portions have the states of all at once, and a limit", async () => {
  const sources = [[1, 2, 3], [4, 5, 6, 7, 8], [9], [3, 1, 3, 1], [12, 11]], all = await translator.encode(sources);
  for (const maxSource of [5, 8, 12]) { // one, two, all five at a time
    const made = await Translator.open(golden("translator.onnx"), { maxSource });
    const found = await made.encode(sources);
    assert.deepEqual([...found.keys()], [...all.keys()]);
    for (const [name, { dtype, dims, bytes }] of all) {
      const other = found.get(name);
      assert.deepEqual([other.dtype, other.dims, other.bytes.length], [dtype, dims, bytes.length]);
      if (dtype !== "float32") continue;
      const [ours, theirs] = [other.bytes, bytes].map((these) => new Float32Array(these.slice().buffer));
      assert.ok(ours.every((value, n) => Math.abs(value - theirs[n]) < 1e-6), name);
    }
    await refused(() => made.translate(Array(maxSource + 1).fill(1)), "position", RegExp(`at most ${maxSource} tokens; received ${maxSource + 1}`));
    await made.close();
  }
  for (const maxSource of [0, 1.5, "9"]) await refused(() => Translator.open(golden("translator.onnx"), { maxSource }), "provider", /maxSource/);
});

const SOURCES = {
  source_length: [7, (1 << 20) + 1, 2 ** 60], // max_source is 9
  start_tokens: [[], new Array(1025).fill(1)],
  banned_tokens: [new Array(1025).fill(1)],
  start_states: [["S.0", "S.0"]],
};

test("metadata of a source are bounded", async () => {
  const read = (values) => signatureOf("translator.onnx", { max_source: 9, source_length: 9, ...values });
  assert.equal((await read({})).sourceLength, 9);
  for (const [key, values] of Object.entries(SOURCES)) {
    for (const value of values) await refused(() => read({ [key]: value }), "metadata", new RegExp(`a bad value of ${key}`));
  }
  await refused(() => read({ max_source: null }), "metadata", /a bad value of source_length/);
});

const BEAMS = [
  {}, { width: 1 }, { width: 3, nBest: 3 }, { width: 5, nBest: 2, lengthPenalty: 0.3, minTokens: 3 },
  { width: 4, nBest: 4, earlyStopping: true, maxTokens: 9 }, { width: 2, nBest: 2, earlyStopping: "never", forcedEnd: false, maxTokens: 12 },
];

test("a search from the largest logits is the one from all", async () => {
  const all = { repetitionPenalty: 1 + 1e-9 }; // a penalty needs all logits; this one has no visible effect
  for (const source of [[8, 12, 10, 10, 5, 9, 7], [3], [1, 2, 3, 4]]) {
    for (const beam of BEAMS) {
      const [few, whole] = [await translator.translate(source, beam), await translator.translate(source, { ...beam, ...all })];
      assert.deepEqual(few.map(({ tokens }) => tokens), whole.map(({ tokens }) => tokens), JSON.stringify(beam));
      few.forEach(({ score }, n) => assert.ok(Math.abs(score - whole[n].score) <= 1e-5, `${score} for ${whole[n].score}`));
    }
  }
});

/** Texts in one run of a generation graph, and searches from the largest logits only: equal to those of many runs, or refused. */

import assert from "node:assert/strict";
import { copyFile, readFile, readdir, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { test } from "node:test";

import ort from "onnxruntime-node";

import { Decoder, Translator } from "../src/index.js";
import { bytesOf, exchanged, golden, inCopy, refused } from "./files.js";

const RULES = [
  { temperature: 0, stopTokens: [] },
  { seed: 3, stopTokens: [] },
  { temperature: 0.8, topK: 5, topP: 0.9, minP: 0.02, seed: 2 ** 40 + 5, stopTokens: [] },
  { repetitionPenalty: 1.4, noRepeatNgram: 2, seed: 7, stopTokens: [] },
];

/** ONNX Runtime with counters of opened sessions and runs. */
function counted() {
  const counts = { opened: 0, runs: 0 };
  const create = async (...given) => {
    const session = await ort.InferenceSession.create(...given), run = session.run.bind(session);
    counts.opened++;
    session.run = (...fed) => {
      counts.runs++;
      return run(...fed);
    };
    return session;
  };
  return { counts, ort: { Tensor: ort.Tensor, InferenceSession: { create } } };
}

async function withDecoder(options, work) {
  const decoder = await Decoder.open(golden("loop.onnx"), options);
  try {
    return await work(decoder);
  } finally {
    await decoder.close();
  }
}

function assertNear(found, wanted) {
  assert.deepEqual([...found.keys()], [...wanted.keys()]);
  for (const [name, { dtype, bytes }] of found) {
    const numbers = ({ bytes: of }) => (dtype === "float32" ? new Float32Array(of.buffer) : [...of]);
    const [ours, theirs] = [numbers({ bytes }), numbers(wanted.get(name))];
    ours.forEach((number, n) => assert.ok(Math.abs(number - theirs[n]) <= 1e-5 * Math.max(1, Math.abs(theirs[n])), name));
  }
}

test("a text is one run, and opens its graph when it is first wanted", async () => {
  const { counts, ort: counting } = counted();
  await withDecoder({ ort: counting }, async (decoder) => {
    assert.ok(decoder.hasGenerationGraph);
    assert.deepEqual(counts, { opened: 1, runs: 0 });
    await decoder.generate([1], 12, RULES[0], { onToken: () => true });
    await decoder.generate([1], 12, RULES[0], { signal: new AbortController().signal });
    assert.deepEqual(counts, { opened: 1, runs: 24 }, "somebody watches each token");
    await decoder.generate([1], 12, RULES[0]);
    assert.deepEqual(counts, { opened: 2, runs: 25 });
    await decoder.generate([1, 3, 5], 12, RULES[0]);
    assert.deepEqual(counts, { opened: 2, runs: 28 }, "two tokens by steps, and the text");
  });
});

test("told not to, it runs steps", async () => {
  const { counts, ort: counting } = counted();
  await withDecoder({ ort: counting, generation: false }, async (decoder) => {
    assert.ok(!decoder.hasGenerationGraph);
    await decoder.generate([1], 12, RULES[0]);
    assert.deepEqual(counts, { opened: 1, runs: 12 });
  });
});

for (const rules of RULES) {
  test(`the same text and states as by steps: ${JSON.stringify(rules)}`, () => withDecoder({}, async (decoder) => {
    const ways = [];
    for (const callback of [null, () => true]) {
      await decoder.reset(1);
      const tokens = [];
      for (const [prompt, most] of [[[1, 9, 4], 20], [[], 1], [[6, 2], 15]]) {
        tokens.push(...(await decoder.generate([...tokens.slice(-1), ...prompt], most, rules, { onToken: callback })));
      }
      ways.push({ tokens, position: decoder.position, state: await decoder.state() });
    }
    const [alone, watched] = ways;
    assert.equal(alone.tokens.length, 36);
    assert.deepEqual(alone.tokens, watched.tokens);
    assert.equal(alone.position, 40);
    assert.equal(watched.position, 40);
    assertNear(alone.state, watched.state);
  }));
}

test("it ends with a stop token, and steps go on from there", () => withDecoder({}, async (decoder) => {
  const [, , , stop] = await decoder.generate([1], 8, { temperature: 0, stopTokens: [] });
  await decoder.reset();
  const tokens = await decoder.generate([1], 8, { temperature: 0, stopTokens: [stop, 16] });
  assert.equal(tokens.at(-1), stop);
  assert.equal(tokens.indexOf(stop), tokens.length - 1);
  const logits = await decoder.step(stop);
  await decoder.reset();
  assertNear(new Map([["logits", { dtype: "float32", bytes: new Uint8Array(logits.buffer.slice(0)) }]]),
    new Map([["logits", { bytes: new Uint8Array((await decoder.prefill([1, ...tokens])).buffer.slice(0)) }]]));
}));

test("it checks in the contract's order, and reads nothing then", () => withDecoder({}, async (decoder) => {
  await decoder.reset(2);
  await refused(() => decoder.generate([1], 0), "sampling");
  await refused(() => decoder.generate([1], 1), "batch");
  await decoder.reset(1);
  await refused(() => decoder.generate([], 1), "token");
  await refused(() => decoder.generate([17], 1), "token", /prompt/);
  await refused(() => decoder.generate([1], 1, { stopTokens: [17] }), "token", /stop tokens/);
  assert.equal(decoder.position, 0);
  const first = decoder.generate([1], 4);
  await refused(() => decoder.generate([1], 4), "state", /in use/);
  await first;
}));

test("logits that are not finite", () => withDecoder({}, async (decoder) => {
  await decoder.step(1);
  const states = await decoder.state();
  for (const { dtype, bytes } of states.values()) if (dtype === "float32") new Float32Array(bytes.buffer).fill(NaN);
  await decoder.setState(states, 1);
  await refused(() => decoder.generate([1], 4, { temperature: 0 }), "graph", /finite logits/);
}));

test("a generation graph that is not there, or another model's", () => inCopy(async (folder) => {
  const file = join(folder, "loop.onnx"), decoder = await Decoder.open(file);
  const companion = join(folder, decoder.signature.graphs.generate), bytes = await readFile(companion);
  const sha = decoder.signature.checkpointSha256;
  await rm(companion);
  await refused(() => decoder.generate([1, 3], 4), "file", /generate\.onnx/);
  await copyFile(golden("tiny.onnx"), companion);
  await refused(() => decoder.generate([1, 3], 4), "graph", /of the role generate; received one of the role step/);
  await writeFile(companion, exchanged(bytes, sha, sha.split("").reverse().join("")));
  await refused(() => decoder.generate([1, 3], 4), "graph", /another checkpoint_sha256/);
  await writeFile(companion, exchanged(bytes, "stop_tokens", "stop_tokenz"));
  await refused(() => decoder.generate([1, 3], 4), "interface", /missing input stop_tokens; unexpected input stop_tokenz/);
  assert.equal(decoder.position, 0, "nothing was read");
  assert.equal((await decoder.generate([1, 3], 4, { stopTokens: [] }, { onToken: () => true })).length, 4);
  await decoder.close();
}));

test("files in memory, and two of them closed", async () => {
  const { counts, ort: counting } = counted();
  const names = (await readdir(golden("."))).filter((name) => name.startsWith("loop.onnx"));
  const files = Object.fromEntries(await Promise.all(names.map(async (name) => [name, await bytesOf(name)])));
  const decoder = await Decoder.open({ graph: "loop.onnx", files }, { ort: counting });
  const tokens = await decoder.generate([1], 12, RULES[0]);
  assert.deepEqual(counts, { opened: 2, runs: 1 });
  await decoder.close();
  await refused(() => decoder.generate([1], 12, RULES[0]), "state", /closed/);
  await withDecoder({ generation: false }, async (other) => assert.deepEqual(tokens, await other.generate([1], 12, RULES[0])));
  delete files[decoder.signature.graphs.generate];
  const without = await Decoder.open({ graph: "loop.onnx", files });
  await refused(() => without.generate([1], 12), "file", /generate\.onnx/);
  await without.close();
});

const BEAMS = [
  {}, { width: 1 }, { width: 3, nBest: 3 }, { width: 5, nBest: 2, lengthPenalty: 0.3, minTokens: 3 },
  { width: 4, nBest: 4, earlyStopping: true, maxTokens: 9 }, { width: 2, nBest: 2, earlyStopping: "never", forcedEnd: false, maxTokens: 12 },
];

test("a search from the largest logits is the one from all", async () => {
  const translator = await Translator.open(golden("translator.onnx"));
  const all = { repetitionPenalty: 1 + 1e-9 }; // a penalty needs all logits; this one has no visible effect
  for (const source of [[8, 12, 10, 10, 5, 9, 7], [3], [1, 2, 3, 4]]) {
    for (const beam of BEAMS) {
      const [few, whole] = [await translator.translate(source, beam), await translator.translate(source, { ...beam, ...all })];
      assert.deepEqual(few.map(({ tokens }) => tokens), whole.map(({ tokens }) => tokens), JSON.stringify(beam));
      few.forEach(({ score }, n) => assert.ok(Math.abs(score - whole[n].score) <= 1e-5, `${score} for ${whole[n].score}`));
    }
  }
  await translator.close();
});

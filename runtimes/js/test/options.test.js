/** The graph's own options (`t2r.generation`): each applies if the caller does not give that option. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { Decoder, Sampler, Translator, readModelFile, readSignature } from "../src/index.js";
import { beamOf, samplingOf } from "../src/options.js";
import { bytesOf, golden, refused } from "./files.js";

const OF_TEXT = { temperature: 0.7, topK: 6, topP: 0.8, minP: 0.02, repetitionPenalty: 1.7, noRepeatNgram: 2 };
const OF_SEARCH = {
  width: 3, maxTokens: 7, minTokens: 4, lengthPenalty: 0.3, earlyStopping: "never", forcedEnd: false, repetitionPenalty: 1.5,
  noRepeatNgram: 2,
};
const NO_TEXT = { seed: null, stopTokens: null };

test("the caller's option comes before the graph's, and that before the default", () => {
  const standard = { temperature: 1, topK: 0, topP: 1, minP: 0, repetitionPenalty: 1, noRepeatNgram: 0, ...NO_TEXT };
  assert.deepEqual(samplingOf({}), standard);
  assert.deepEqual(samplingOf({}, OF_TEXT), { ...OF_TEXT, ...NO_TEXT });
  assert.deepEqual(samplingOf({ temperature: 1, noRepeatNgram: 0, topK: undefined, minP: null }, OF_TEXT), {
    ...OF_TEXT, ...NO_TEXT, temperature: 1, noRepeatNgram: 0,
  });
  assert.deepEqual(beamOf({ nBest: 2, forcedEnd: true }, OF_SEARCH), { ...OF_SEARCH, nBest: 2, forcedEnd: true, copy: true });
  assert.equal(beamOf({}).width, 4);
  assert.equal(new Sampler({ topK: 0 }, OF_TEXT).options.topK, 0);
  assert.equal(samplingOf({}, OF_SEARCH).repetitionPenalty, 1.5, "a translator's penalties hold for a text too");
});

test("more translations than the graph is wide", async () => {
  await refused(() => beamOf({ nBest: 4 }, OF_SEARCH), "sampling", /nBest of at most the width, 3; received 4/);
  assert.equal(beamOf({ nBest: 6 }, { width: 6 }).nBest, 6);
});

test("a text of a graph with options is that of the same options given", async () => {
  const decoder = await Decoder.open(golden("options.onnx"));
  const { generation } = decoder.signature;
  assert.ok(Object.keys(generation).length > 1);
  const written = async (options, callback) => {
    await decoder.reset();
    return decoder.generate([1, 3], 12, { seed: 5, stopTokens: [], ...options }, { onToken: callback });
  };
  for (const callback of [null, () => true]) {
    assert.deepEqual(await written({}, callback), await written(generation, callback));
    const plain = Object.fromEntries(Object.keys(generation).map((name) => [name, samplingOf({})[name]]));
    assert.notDeepEqual(await written({}, callback), await written(plain, callback));
  }
  await decoder.close();
});

test("a translation of a graph with options is that of the same options given", async () => {
  const translator = await Translator.open(golden("translator-options.onnx"));
  const { generation } = translator.signature, source = [5, 7, 1];
  assert.deepEqual(await translator.translate(source), await translator.translate(source, generation));
  const { repetitionPenalty = 1, noRepeatNgram = 0 } = generation;
  const given = { temperature: 0, repetitionPenalty, noRepeatNgram };
  assert.deepEqual(await translator.generate(source, 7), await translator.generate(source, 7, given));
  await translator.close();
});

const BAD = [
  [], "x", null, { seed: 1 }, { stop_tokens: [] }, { top_k: null }, { top_k: true }, { top_k: 2.5 }, { top_k: 2 ** 31 }, { temperature: -1 },
  { temperature: "1" }, { top_p: 0 }, { no_repeat_ngram: 65 }, { n_best: 1 }, { toString: 1 }, { to_string: 1 },
  { noRepeatNgram: 2 }, // a name in camelCase
];
for (const [file, more] of [["tiny.onnx", [{ width: 2 }]], ["translator.onnx", [{ temperature: 1 }, { width: 0 }, { early_stopping: 1 }]]]) {
  test(`bad options of ${file}`, async () => {
    const { metadata } = readModelFile(await bytesOf(file));
    for (const options of [...BAD, ...more]) {
      metadata.set("t2r.generation", JSON.stringify(options));
      await refused(() => readSignature(metadata), "metadata", /a bad value of generation/);
    }
    metadata.set("t2r.generation", "{}");
    assert.deepEqual(readSignature(metadata).generation, {});
  });
}

/** Choosing a token from a graph's top-k logits, and in a large vocabulary. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { Decoder, Sampler } from "../src/index.js";
import { golden } from "./files.js";

const RULES = [
  { temperature: 0 }, { topK: 1 }, { topK: 3 }, { topK: 7, temperature: 1.8 }, { topK: 12, topP: 0.6 },
  { topK: 12, minP: 0.1, temperature: 0.7 }, { topK: 9, topP: 0.8, minP: 0.02 },
];

/** Deterministic numbers in 0 … 1. */
function* numbers() {
  for (let x = 1; ; yield x / 2 ** 31) x = Math.imul(x, 1103515245) + 12345 & 0x7fffffff;
}

function drawn(length, number) {
  const levels = 40; // few, for many ties
  return Float32Array.from({ length }, () => Math.floor(levels * number.next().value) / 5);
}

/** The k largest, largest first, on ties the lowest token first. */
function top(logits, k) {
  const tokens = Array.from(logits.keys()).sort((a, b) => logits[b] - logits[a] || a - b).slice(0, k);
  return [Float32Array.from(tokens, (token) => logits[token]), Int32Array.from(tokens)];
}

for (const rules of RULES) {
  test(`from the largest alone as from all: ${JSON.stringify(rules)}`, () => {
    const number = numbers(), whole = new Sampler({ seed: 5, ...rules }), few = new Sampler({ seed: 5, ...rules });
    assert.ok(whole.limit >= 1);
    for (let n = 0; n < 200; n++) {
      const logits = drawn(60, number), [largest, tokens] = top(logits, whole.limit + n % 3);
      assert.equal(few.pick(largest, [], tokens), whole.pick(logits));
    }
    assert.equal(few.draws, 200);
  });
}

test("penalties and unlimited draws need all logits", () => {
  for (const rules of [{}, { topP: 0.5 }, { temperature: 0, repetitionPenalty: 1.1 }, { topK: 3, noRepeatNgram: 2 }]) {
    assert.equal(new Sampler(rules).limit, 0);
  }
});

test("a share of chance is what the nucleus leaves", () => {
  const logits = Float32Array.from([0, 3, 3, 1, -Infinity, 2]), weights = [0, 3, 3, 1, 2].map((logit) => Math.exp(logit));
  const kept = (rules) => {
    const sampler = new Sampler({ seed: 1, ...rules });
    return [...new Set(Array.from({ length: 3000 }, () => sampler.pick(logits)))].sort();
  };
  const two = (2 * weights[1]) / weights.reduce((all, weight) => all + weight);
  assert.deepEqual(kept({}), [0, 1, 2, 3, 5]);
  assert.deepEqual(kept({ topP: two - 0.01 }), [1, 2]);
  assert.deepEqual(kept({ topP: two + 0.01 }), [1, 2, 5]);
  assert.deepEqual(kept({ topK: 3, minP: 0.9 }), [1, 2]);
  assert.deepEqual(kept({ topK: 1 }), [1]);
  assert.deepEqual(kept({ minP: 0.3 }), [1, 2, 5]);
});

test("a text fetches no more logits than its choice needs", async () => {
  const decoder = await Decoder.open(golden("top3.onnx"));
  const prompt = [1, 4, 2];
  for (const [rules, limited] of [[{ temperature: 0 }, true], [{ topK: 3, seed: 4 }, true], [{ topK: 4, seed: 4 }, false], [{ seed: 4 }, false]]) {
    const { pick } = Sampler.prototype, sizes = new Set();
    Sampler.prototype.pick = function counted(logits, ...rest) {
      sizes.add(logits.length);
      return pick.call(this, logits, ...rest);
    };
    try {
      await decoder.reset(1);
      const tokens = await decoder.generate(prompt, 20, { stopTokens: [], ...rules });
      assert.deepEqual([...sizes], [limited ? 3 : 17], JSON.stringify(rules));
      assert.equal(tokens.length, 20);
    } finally {
      Sampler.prototype.pick = pick;
    }
  }
  await decoder.close();
});

/** A search from the largest logits of each step against one from all: rows, tokens and scores. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { Search } from "../src/search.js";

const VOCABULARY = 30;
const BEAMS = [
  { width: 1 }, { width: 3, nBest: 3, minTokens: 4 }, { width: 4, nBest: 2, earlyStopping: true }, { width: 2, forcedEnd: false },
  { width: 3, nBest: 3, earlyStopping: "never", lengthPenalty: 0.4 },
];

/** Deterministic logits of some rows, no two of a row equal. */
function logitsOf(rows, step) {
  return Float32Array.from({ length: rows * VOCABULARY }, (_, n) => 3 * Math.sin((n + 1) * 12.9898 + step * 78.233 + rows));
}

/** The k largest of each row, largest first, and the log-sum-exp of all. */
function largest(logits, k) {
  const found = { logits: [], tokens: [], sums: [] };
  for (let at = 0; at < logits.length; at += VOCABULARY) {
    const row = logits.subarray(at, at + VOCABULARY), order = Array.from(row.keys()).sort((a, b) => row[b] - row[a] || a - b).slice(0, k);
    found.tokens.push(...order);
    found.logits.push(...order.map((token) => row[token]));
    found.sums.push(Math.log(row.reduce((all, logit) => all + Math.exp(logit), 0)));
  }
  return { logits: Float32Array.from(found.logits), tokens: Int32Array.from(found.tokens), sums: Float32Array.from(found.sums) };
}

for (const beam of BEAMS) {
  for (const bannedTokens of [[], [4, 9, 17]]) {
    test(`${JSON.stringify(beam)}, ${bannedTokens.length} banned`, () => {
      const model = { vocabSize: VOCABULARY, startTokens: [3], eosTokens: [2, 7], bannedTokens, maxPositions: null, pastEnd: "refuse" };
      const whole = new Search({ maxTokens: 10, ...beam }, { ...model, topK: null });
      const enough = (beam.width === 1 ? 1 : 3 * beam.width) + bannedTokens.length + (beam.minTokens ? 2 : 0);
      assert.equal(new Search(beam, { ...model, topK: enough - 1 }).wanted, "logits", "one too few");
      assert.equal(new Search({ ...beam, noRepeatNgram: 2 }, { ...model, topK: VOCABULARY }).wanted, "logits", "a penalty");
      const few = new Search({ maxTokens: 10, ...beam }, { ...model, topK: enough });
      assert.deepEqual([whole.wanted, few.wanted], ["logits", "largest"]);
      const seen = new Set();
      for (let step = 0, rows = [0]; rows; step++) {
        const logits = logitsOf(rows.length, step), found = few.advance(largest(logits, enough));
        rows = whole.advance(logits);
        assert.deepEqual(found, rows, `rows after step ${step}`);
        assert.deepEqual(few.newest, whole.newest);
        for (const token of whole.newest) seen.add(token);
      }
      assert.ok(bannedTokens.every((token) => !seen.has(token)));
      assert.deepEqual(few.translations.map(({ tokens }) => tokens), whole.translations.map(({ tokens }) => tokens));
      few.translations.forEach(({ score }, n) => assert.ok(Math.abs(score - whole.translations[n].score) < 1e-5));
    });
  }
}

test("a sum that is not finite is refused", () => {
  const model = { vocabSize: VOCABULARY, startTokens: [3], eosTokens: [2], bannedTokens: [], maxPositions: null, pastEnd: "refuse" };
  const found = { ...largest(logitsOf(1, 0), 8), sums: Float32Array.of(NaN) };
  assert.throws(() => new Search({}, { ...model, topK: 8 }).advance(found), /expected finite logits/);
});

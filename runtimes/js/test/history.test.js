/** Penalties look back on the last 65,536 tokens, however they were added. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { History } from "../src/history.js";

const MOST = 65536;

test("the last tokens, read one at a time or many", () => {
  const history = new History(), all = [];
  for (let n = 0; all.length < 5 * MOST; n++) {
    const row = Array.from({ length: [1, 700, 40000][n % 3] }, (_, place) => (31 * n + place) % 1009);
    history.add(row);
    for (const token of row) all.push(token);
    assert.deepEqual([...history.latest], all.slice(-MOST), `after ${all.length}`);
  }
  const copy = new History(history.latest);
  history.add([3]);
  assert.deepEqual([...copy.latest], all.slice(-MOST), "a copy is its own");
  copy.add([5]);
  assert.deepEqual([copy.latest.at(-1), history.latest.at(-1)], [5, 3]);
});

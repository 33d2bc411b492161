/** What a prefix cache reuses, keeps and evicts, and that texts are those without it. */

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { test } from "node:test";

import { PrefixCache } from "../src/index.js";
import { golden, opened, random, refused } from "./files.js";

const chance = random(31), tokens = (length) => Array.from({ length }, () => Math.floor(chance() * 17));
const RULES = { temperature: 0, stopTokens: [] };

/** The logits are those of another decoder that reads all of the text. */
async function assertClose(logits, alone, text, adapter = null) {
  await alone.reset(1);
  await alone.adapt(adapter);
  const expected = await alone.prefill(text);
  assert.ok(logits.length > 0 && logits.every((x, n) => Math.abs(x - expected[n]) <= 1e-4));
}

test("the golden texts", async () => {
  for (const { graph, block, room, texts } of JSON.parse(await readFile(golden("prefixes.json"), "utf8"))) {
    await opened(graph, async (decoder) => {
      const alone = decoder.fork(), { stateBytes } = decoder, limit = room === null ? {} : { maxBytes: room * stateBytes };
      let now = 0, all = 0, known = 0;
      const cache = new PrefixCache(decoder, { block, ...limit }, () => now);
      for (const { at, adapter, text, answer, reused, kept } of texts) {
        now = at;
        cache.adapt(adapter);
        if (answer) {
          assert.deepEqual(await cache.generate(text, answer.length, RULES), answer);
          await assertClose(await decoder.step(answer.at(-1)), alone, [...text, ...answer]);
        } else {
          await assertClose(await cache.read(text), alone, text, adapter);
        }
        assert.equal(cache.reused, reused);
        if (room !== null) assert.equal(cache.keptBytes, kept * stateBytes);
        if (now) [all, known] = [all + text.length, known + reused];
      }
      if (room === null) assert.ok(known >= 0.95 * all, "a conversation of 20 turns, from the second on");
      await cache.clear();
      assert.equal(cache.keptBytes, 0);
      await alone.close();
    });
  }
});

for (const graph of ["prefill.onnx", "tiny-hybrid.onnx"]) {
  test(`what texts have in common is read once: ${graph}`, () => opened(graph, async (decoder) => {
    const alone = decoder.fork(), system = tokens(23), rules = { repetitionPenalty: 1.4, ...RULES };
    const cache = new PrefixCache(decoder, { block: 5 });
    for (const [n, reused] of [[0, 0], [1, 20], [2, 20], [0, 25]]) {
      const text = [...system, n, n + 1, n + 2, 3];
      await alone.reset();
      for (let at = 0; at < 25; at += 5) await alone.prefill(text.slice(at, at + 5)); // for the same rounding
      const whole = [...(await alone.prefill(text.slice(25, -1)))];
      assert.deepEqual([...(await cache.read(text.slice(0, -1)))], whole);
      assert.equal(cache.reused, reused);
      assert.deepEqual(await cache.generate(text, 8, rules), await alone.generate([3], 8, rules));
      assert.equal(cache.reused, 26, "all but the last, of which generate needs no logits");
    }
    await cache.clear();
    await alone.close();
  }));
}

test("the bound holds while a text is read", () => opened("tiny.onnx", async (decoder) => {
  const { stateBytes } = decoder, few = new PrefixCache(decoder, { block: 1, maxBytes: 3 * stateBytes + 1 }), read = decoder.prefill, seen = [];
  decoder.prefill = (ids) => (seen.push(few.keptBytes / stateBytes), read.call(decoder, ids));
  await few.read([1, 2, 3, 4, 5, 6, 7]);
  decoder.prefill = read;
  assert.deepEqual(seen, [0, 1, 2, 3, 3, 3, 3]);
  await few.clear();
  const none = new PrefixCache(decoder, { maxBytes: 0, block: 1 });
  for (let n = 0; n < 2; n++) await none.read([1, 2, 3]);
  assert.deepEqual([none.reused, none.keptBytes], [0, 0]);
}));

test("after an error in the middle, texts are right", () => opened("prefill.onnx", async (decoder) => {
  const alone = decoder.fork(), cache = new PrefixCache(decoder, { block: 4 }), text = tokens(15), run = decoder.take;
  const broken = new Error("enough");
  await assert.rejects(cache.generate(text, 9, RULES, { onToken: () => { throw broken; } }), (error) => error === broken);
  decoder.take = () => Promise.reject(broken);
  await assert.rejects(cache.read([...text, 3]), (error) => error === broken);
  assert.equal(cache.reused, 0, "its states could not be taken");
  decoder.take = run;
  await assertClose(await cache.read([...text, 3]), alone, [...text, 3]);
  assert.equal(cache.reused, 14);
  const reading = cache.read(text);
  await refused(() => cache.read(text), "state", /a prefix cache that nobody else uses/);
  await assertClose(await reading, alone, text);
  await cache.clear();
  await alone.close();
}));

test("what a prefix cache refuses", () => opened("tiny.onnx", async (decoder) => {
  const cache = new PrefixCache(decoder);
  await refused(() => new PrefixCache(decoder, { block: 0 }), "snapshot");
  await refused(() => new PrefixCache(decoder, {}, /** @type {any} */ (3)), "snapshot");
  await refused(() => cache.read([99]), "token");
  await refused(() => cache.generate([], 3), "token");
}));

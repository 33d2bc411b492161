/** Drafts by prompt lookup: the runs of Python, texts and states as without drafts. */

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { test } from "node:test";

import { Ahead } from "../src/ahead.js";
import { RunTimes } from "../src/drafts.js";
import { Decoder, WorkerDecoder } from "../src/index.js";
import { golden } from "./files.js";

/** A decoder whose texts are known: notes its runs, whose times are given by their number of tokens. */
function told(times) {
  const runs = [], clock = { now: 0 };
  const run = (tokens, keep) => {
    runs.push({ tokens, keep });
    clock.now += times[tokens.length - 1];
    return Promise.resolve(new Float32Array(tokens.length));
  };
  const decoder = { read: (tokens) => run(tokens, tokens.length), check: run, checked() {}, uncheck() {}, room: () => Infinity };
  return { decoder, runs, clock: () => clock.now };
}

test("the runs of given texts are those of Python", async () => {
  const texts = JSON.parse(await readFile(golden("drafts.json"), "utf8"));
  assert.ok(texts.some(({ runs }) => runs.some(([, guesses, , right]) => right > 5 && right < guesses.length)));
  for (const { prompt, tokens, times, runs } of texts) {
    const { decoder, runs: found, clock } = told(times), ahead = new Ahead(decoder, prompt, new RunTimes(), clock);
    const starts = [];
    for (const [n, token] of tokens.entries()) {
      await ahead.logits(tokens.length - n, "logits");
      if (found.length > starts.length) starts.push(n);
      ahead.chose(token);
    }
    assert.equal(found.length, runs.length);
    for (const [n, [waiting, guesses, keep, right]] of runs.entries()) {
      assert.deepEqual(found[n].tokens.slice(waiting), guesses, `run ${n}`);
      assert.equal(found[n].keep, keep, `run ${n}`);
      const after = tokens.slice(starts[n]), wrong = guesses.findIndex((guess, i) => guess !== after[i]);
      assert.equal(wrong < 0 ? guesses.length : wrong, right, `run ${n}`);
    }
    const read = found.length;
    await ahead.finish();
    assert.ok(found.length - read <= 1 && found.slice(read).every((run) => run.tokens.length < 32));
  }
});

const OPTIONS = [{ temperature: 0 }, { temperature: 0, repetitionPenalty: 1.2 }, { temperature: 0.5, seed: 4 }, { temperature: 0.3, topK: 2, seed: 9 }];

test("texts that end anywhere, positions and states are those without drafts", async (context) => {
  let ticks = 0; // every run takes as long
  context.mock.method(performance, "now", () => ++ticks);
  const plain = await Decoder.open(golden("drafts.onnx")), drafted = plain.fork();
  await drafted.draft(true);
  for (const options of OPTIONS) {
    for (const end of [1, 2, 9, 23, 40, 61]) {
      const texts = [];
      for (const decoder of [plain, drafted]) {
        await decoder.reset(1);
        let left = end;
        ticks = 0;
        const text = await decoder.generate([3, 8, 5], 61, { ...options, stopTokens: [] }, { onToken: () => --left > 0 });
        texts.push([...text, ...(await decoder.generate([text.at(-1)], 13, { ...options, stopTokens: [] })), decoder.position]);
      }
      assert.deepEqual(texts[1], texts[0]);
      if (options === OPTIONS[0] && end === 61) assert.ok(ticks < 61, "runs of a text that repeats itself, twice each");
      const [states, others] = [await plain.state(), await drafted.state()];
      for (const [name, { dtype, dims, bytes }] of states) {
        assert.deepEqual(others.get(name).dims, dims);
        if (dtype !== "float32") continue;
        const [a, b] = [bytes, others.get(name).bytes].map((one) => new Float32Array(one.buffer));
        assert.ok(a.every((value, n) => Math.abs(value - b[n]) <= 2e-4 + 1e-3 * Math.abs(value)), name);
      }
    }
  }
  for (const decoder of [plain, drafted]) await decoder.close();
});

test("a signal ends a text with drafts, and the decoder goes on from its position", async () => {
  const decoder = await Decoder.open(golden("drafts.onnx")), ends = new AbortController();
  await decoder.draft(true);
  const text = decoder.stream([3, 8, 5], 60, { temperature: 0, stopTokens: [] }, { signal: ends.signal });
  await assert.rejects(async () => {
    let seen = 0;
    for await (const _ of text) if (++seen === 30) ends.abort();
  }, { name: "AbortError" });
  const { position } = decoder;
  assert.ok(position > 12 && position < 50, `${position}: the drafts of a run that has ended are still given`);
  await decoder.generate([4], 2, { temperature: 0, stopTokens: [] });
  assert.equal(decoder.position, position + 2);
  await decoder.close();
});

test("a worker's decoder makes drafts, and a graph without a draft-check graph says so", async () => {
  const [plain, worker] = [await Decoder.open(golden("drafts.onnx")), await WorkerDecoder.open(golden("drafts.onnx"))];
  await worker.draft(true);
  const write = (decoder) => decoder.generate([3, 8, 5], 40, { temperature: 0, stopTokens: [] });
  assert.deepEqual(await write(worker), await write(plain));
  await assert.rejects(plain.draft("lookup"), { kind: "argument" });
  const other = await Decoder.open(golden("prefill.onnx"));
  await assert.rejects(other.draft(true), { kind: "graph", message: /^expected a draft-check graph beside the step graph; received none/ });
  await other.draft(false);
  await Promise.all([plain, worker, other].map((decoder) => decoder.close()));
});

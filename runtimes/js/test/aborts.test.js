/** A signal ends each call of several runs between two of them: it rejects with the signal's reason, and the decoder can still be used. */

import assert from "node:assert/strict";
import { createServer } from "node:http";
import { test } from "node:test";

import ort from "onnxruntime-node";

import { Batch, Decoder, PrefixCache, Tokenizer, Translator, WorkerDecoder } from "../src/index.js";
import { bytesOf, golden, refused, signatureOf } from "./files.js";

const RULES = { temperature: 0, stopTokens: [] };
const LONG = Array.from({ length: 1200 }, (_, n) => (n * 7) % 17);

/** ONNX Runtime whose sessions call `each` before each run. */
function heard(each) {
  const create = async (...given) => {
    const session = await ort.InferenceSession.create(...given), run = session.run.bind(session);
    session.run = (...fed) => (each(), run(...fed));
    return session;
  };
  return { Tensor: ort.Tensor, InferenceSession: { create } };
}

/** Calls `work` with a signal that is aborted during run number `at`, and checks that it rejects with its reason. */
async function aborted(kind, name, at, work) {
  const stop = new AbortController(), reason = new Error("enough");
  let runs = 0;
  const opened = await kind.open(golden(name), { ort: heard(() => ++runs === at && stop.abort(reason)) });
  await assert.rejects(work(opened, stop.signal), (error) => error === reason);
  assert.equal(runs, at, "no further run");
  return opened;
}

const all = async (stream) => {
  const tokens = [];
  for await (const token of stream) tokens.push(token);
  return tokens;
};

const CALLS = {
  prefill: (decoder, ids, signal) => decoder.prefill(ids, { signal }),
  stream: (decoder, ids, signal) => all(decoder.stream(ids, 5, RULES, { signal })),
  generate: (decoder, ids, signal) => decoder.generate(ids, 5, RULES, { signal }),
};
for (const [graph, ids, at, read] of [["tiny.onnx", LONG.slice(0, 20), 3, 3], ["prefill.onnx", LONG, 2, 1024]]) {
  for (const [name, call] of Object.entries(CALLS)) {
    test(`${name} with ${graph}: it has read ${read} tokens, and goes on`, async () => {
      const decoder = await aborted(Decoder, graph, at, (opened, signal) => call(opened, ids, signal));
      assert.equal(decoder.position, read);
      const rest = await decoder.prefill(ids.slice(read));
      await decoder.reset();
      assert.deepEqual(rest, await decoder.prefill(ids));
      await decoder.close();
    });
  }
}

test("the largest logits", async () => {
  const top = await aborted(Decoder, "top3.onnx", 2, (decoder, signal) => decoder.topK(LONG, { signal }));
  assert.equal(top.position, 2);
  await top.close();
});

test("a batch has not changed; a prefix cache has read a prefix", async () => {
  let batch, cache;
  const decoder = await aborted(Decoder, "tiny.onnx", 5, async (opened, signal) => {
    batch = new Batch(opened);
    await batch.add([1, 3], 4, RULES);
    return batch.add(LONG, 4, RULES, { signal });
  });
  assert.deepEqual(batch.sequences, [0]);
  assert.equal((await batch.step()).size, 1);
  await decoder.close();
  const other = await aborted(Decoder, "tiny.onnx", 11, (opened, signal) => {
    cache = new PrefixCache(opened, { block: 4 });
    return cache.generate(LONG, 4, RULES, { signal });
  });
  assert.equal(other.position, 11);
  const few = LONG.slice(0, 15), after = await cache.generate(few, 4, RULES);
  assert.equal(cache.reused, 8);
  await other.reset();
  assert.deepEqual(after, await other.generate(few, 4, RULES));
  await other.close();
});

test("a translator encodes, searches and streams", async () => {
  const calls = [
    [1, (made, signal) => made.encode([[3, 2, 5], [4]], { signal })],
    [3, (made, signal) => made.translate([8, 12, 10], {}, { signal })],
    [3, (made, signal) => all(made.stream([8, 12, 10], 9, { temperature: 0 }, { signal }))],
    [2, (made, signal) => made.generate([8, 12, 10], 9, { temperature: 0 }, { signal })],
  ];
  const kind = { open: (place, options) => Translator.open(place, { ...options, maxSource: 3 }) }; // one source a run
  for (const [at, call] of calls) {
    const made = await aborted(kind, "translator.onnx", at, call);
    assert.equal((await made.translate([8, 12, 10])).length, 1);
    await made.close();
  }
});

test("a worker ends its call, and says how far it has come", async () => {
  const decoder = await WorkerDecoder.open(golden("tiny.onnx")), ids = Array.from({ length: 30_000 }, (_, n) => n % 17);
  const calls = [
    (signal) => decoder.prefill(ids, { signal }), (signal) => all(decoder.stream(ids, 5, RULES, { signal })),
    (signal) => decoder.generate(ids, 5, RULES, { signal }), (signal) => decoder.generate([1], 30_000, RULES, { signal }),
  ];
  for (const call of calls) {
    await decoder.reset();
    const stop = new AbortController(), reason = new Error("enough"), done = call(stop.signal);
    stop.abort(reason);
    await assert.rejects(done, (error) => error === reason);
    assert.ok(decoder.position < 30_000);
    await assert.rejects(call(stop.signal), (error) => error === reason);
  }
  await decoder.reset();
  const few = new AbortController(), seen = [];
  const onToken = (token) => void (seen.push(token) === 3 && few.abort());
  await assert.rejects(decoder.generate([1, 3], 9, RULES, { onToken, signal: few.signal }), { name: "AbortError" });
  assert.deepEqual([seen.length, decoder.position], [3, 4]);
  seen.push(...(await decoder.generate(seen.slice(-1), 6, RULES)));
  await decoder.reset();
  assert.deepEqual(seen, await decoder.generate([1, 3], 9, RULES));
  await decoder.close();
});

test("opening ends before it, while a file hangs, and between files", async () => {
  const bytes = await bytesOf("prefill.onnx"), stops = [];
  const server = createServer((request, response) => {
    if (request.url === "/prefill.onnx") response.end(bytes);
    else stops.pop()?.(); // the others hang
  });
  await new Promise((ready) => server.listen(0, "127.0.0.1", ready));
  const address = `http://127.0.0.1:${server.address().port}`;
  for (const kind of [Decoder, WorkerDecoder]) {
    for (const place of [`${address}/prefill.onnx`, `${address}/hangs.onnx`]) {
      const stop = new AbortController(), reason = new Error("enough");
      stops.push(() => stop.abort(reason));
      await assert.rejects(kind.open(place, { signal: stop.signal }), (error) => error === reason);
    }
    await assert.rejects(kind.open(golden("tiny.onnx"), { signal: AbortSignal.abort() }), { name: "AbortError" });
  }
  await assert.rejects(Translator.open(golden("translator.onnx"), { signal: AbortSignal.abort() }), { name: "AbortError" });
  server.closeAllConnections();
  server.close();
});

test("a chat template that does not end", async () => {
  const { tokenizer } = await signatureOf("bytes.onnx");
  const endless = new Tokenizer(tokenizer, null, { template: "{% for a in range(99999999) %}{% endfor %}", tokens: {} });
  const stop = new AbortController(), done = endless.chat([{ role: "user", content: "x" }], { signal: stop.signal });
  stop.abort();
  await assert.rejects(done, { name: "AbortError" });
});

test("what is no signal", async () => {
  const decoder = await Decoder.open(golden("tiny.onnx"));
  for (const wrong of [7, {}, "x", { aborted: true }]) {
    await refused(() => decoder.prefill([1], { signal: wrong }), "argument", /an AbortSignal, or null/);
    await refused(() => Decoder.open(golden("tiny.onnx"), { signal: wrong }), "provider", /signal: an AbortSignal/);
  }
  await refused(() => decoder.prefill([1], { onToken: () => true }), "argument", /expected signal; received onToken/);
  await refused(() => decoder.prefill([1], 7), "argument", /an object of signal/);
  assert.equal(decoder.position, 0);
  await decoder.close();
});

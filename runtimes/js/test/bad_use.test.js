/** Errors of users and of untrusted files: one line, its kind, and an unchanged decoder. */

import assert from "node:assert/strict";
import { writeFile } from "node:fs/promises";
import { join } from "node:path";
import { after, before, test } from "node:test";

import { Decoder, Translator, readModelFile, readSignature } from "../src/index.js";
import { checkInterface } from "../src/interface.js";
import { differs } from "../src/signature.js";
import { bytesOf, exchanged, golden, inCopy, refused, signatureOf } from "./files.js";

let decoder;
before(async () => (decoder = await Decoder.open(golden("tiny.onnx"))));
after(() => decoder.close());

const inMemory = (graph) => Decoder.open({ graph: "g.onnx", files: { "g.onnx": graph } });

test("no file, a folder, and no path at all", async () => {
  await refused(() => Decoder.open(golden("none.onnx")), "file", /received nothing; check the path/);
  await refused(() => Decoder.open(golden(".")), "file");
  await refused(() => Decoder.open(golden("tiny.onnx\0")), "file");
  await refused(() => Decoder.open(7), "file");
  await refused(() => Decoder.open({ graph: "a", files: {} }), "file");
});

test("files that are no graph, or cut off at 50 places", async () => {
  const bytes = await bytesOf("tiny.onnx");
  await refused(() => inMemory(new Uint8Array()), "graph", /a file without a graph in it/);
  await refused(() => inMemory(new TextEncoder().encode("<html>not here</html>")), "graph");
  for (let n = 0; n < 50; n++) await refused(() => inMemory(bytes.subarray(0, Math.floor((n * bytes.length) / 50))), "graph");
});

test("damaged bytes are refused, or a graph all the same", async () => {
  const bytes = await bytesOf("tiny.onnx");
  for (let n = 0; n < 60; n++) {
    const damaged = bytes.slice(), at = Math.floor(((n * 7919) % 997) / 997 * 6000);
    damaged[at] ^= 1 << n % 8;
    try {
      await (await inMemory(damaged)).close();
    } catch (error) {
      assert.ok(error.kind, `${at}: ${error.stack}`);
    }
  }
});

test("metadata that lies", async () => {
  const bytes = await bytesOf("tiny.onnx");
  await refused(() => inMemory(exchanged(bytes, "t2r.contract", "t2r.kontract")), "metadata", /without the key t2r\.contract/);
  await refused(() => inMemory(exchanged(bytes, "t2r.eos_tokens", "t2r.eos_token5")), "metadata", /the metadata key t2r\.eos_tokens/);
  await refused(() => inMemory(exchanged(bytes, "\"float32\"", "\"float99\"")), "metadata", /a bad value of states/);
  await refused(() => inMemory(exchanged(bytes, "past_S.0", "past_S.9")), "interface", /missing input past_S\.0; unexpected input past_S\.9/);
  await refused(() => Decoder.open(golden("tiny.onnx"), { maxStateBytes: 100 }), "metadata", /states of at most 100 bytes/);
});

test("metadata without measure", async () => {
  const { metadata } = readModelFile(await bytesOf("tiny.onnx"));
  const nested = (depth) => readSignature(metadata.set("t2r.layers", `[{"parts": ${"[".repeat(depth)}${"]".repeat(depth)}}]`));
  for (const depth of [140, 200_000]) await refused(() => nested(depth), "metadata", /at most 128 levels in the metadata key t2r\.layers/);
  assert.ok(nested(120));
  const state = (_, n) => ({ name: `${n}`, dtype: "float32", shape: ["B", 2 ** 20], initial: 0, constant: false });
  await refused(() => signatureOf("tiny.onnx", { states: Array.from({ length: 150_000 }, state) }), "metadata", /0 alone 4194304/);
});

test("keys that only some graphs have", async () => {
  for (const size of ["x", 0, null, 1 << 25]) {
    await refused(() => signatureOf("tiny.onnx", { hidden_size: size }), "metadata", /a bad value of hidden_size/);
  }
  const plain = await signatureOf("tiny.onnx"), wide = await signatureOf("tiny.onnx", { hidden_size: 5 });
  const states = (prefix) => plain.states.map(({ name }) => prefix + name);
  const session = (...more) => ({ inputNames: ["input_ids", ...states("past_")], outputNames: ["logits", ...states("present_"), ...more] });
  checkInterface(plain, session());
  checkInterface(wide, session("hidden"));
  await refused(() => checkInterface(plain, session("hidden")), "interface", /unexpected output hidden/);
  await refused(() => checkInterface(wide, session()), "interface", /missing output hidden/);
  const [prefill] = Object.values((await signatureOf("prefill.onnx")).graphs), hidden = { hidden_size: 5 };
  const differ = async (ours, theirs) => differs(await signatureOf("prefill.onnx", ours), await signatureOf(prefill, theirs), "prefill");
  assert.equal(await differ({}, {}), undefined);
  assert.equal(await differ(hidden, hidden), undefined);
  assert.equal(await differ(hidden, {}), "hidden_size");
  assert.equal(await differ({}, hidden), "hidden_size");
  const { draft_check: check } = (await signatureOf("drafts.onnx")).graphs;
  assert.equal(differs(await signatureOf("drafts.onnx", hidden), await signatureOf(check, hidden), "draft_check"), undefined);
  const chat = { chat_template: { template: "", tokens: {} } };
  assert.equal(await differ(chat, {}), undefined);
  assert.equal(await differ(chat, chat), "chat_template");
});

test("companions and weights", () => inCopy(async (folder) => {
  const [companion] = Object.values((await Decoder.open(join(folder, "prefill.onnx"))).signature.graphs);
  await refused(() => Decoder.open(join(folder, companion)), "graph", /of the role step; received one of the role prefill/);
  await writeFile(join(folder, companion), await bytesOf("tiny.onnx"));
  await refused(() => Decoder.open(join(folder, "prefill.onnx")), "graph", /received one of the role step/);
  const bytes = await bytesOf("prefill.onnx");
  await refused(() => inMemory(bytes), "weights", /beside the graph/);
  const weights = /prefill\.onnx\.[0-9a-f]{12}\.data/.exec(Buffer.from(bytes).toString("latin1"))[0];
  const outside = `../${weights.slice(3)}`;
  await refused(() => inMemory(exchanged(bytes, weights, outside)), "weights", /by its name; received \.\.\//);
  await refused(() => inMemory(exchanged(bytes, companion, `/${companion.slice(1)}`)), "metadata", /a bad value of graphs/);
}));

test("providers and threads", async () => {
  await refused(() => Decoder.open(golden("tiny.onnx"), { provider: "tpu" }), "provider", /cpu, webgpu, t2r; received "tpu"/);
  await refused(() => Decoder.open(golden("tiny.onnx"), { threads: 0 }), "provider");
});

test("tokens, batches, positions", async () => {
  await decoder.reset(1);
  for (const wrong of [17, -1, 1.5, NaN]) await refused(() => decoder.step([wrong]), "token", /0 … 16/);
  await refused(() => decoder.prefill([]), "token", /received none/);
  await refused(() => decoder.step([1, 2]), "batch");
  await refused(() => decoder.reset(0), "batch");
  await refused(() => decoder.reset(2 ** 40), "batch");
  await refused(() => decoder.reorder([1]), "batch");
  await refused(() => decoder.topK([1]), "graph");
  assert.equal(decoder.position, 0);
  const ends = await Decoder.open(golden("ends.onnx")), most = ends.signature.maxPositions;
  const ids = new Array(ends.batch).fill(1);
  for (let read = 0; read < most; read++) await ends.step(ids);
  await refused(() => ends.step(ids), "position", new RegExp(`at most ${most} tokens`));
  assert.equal(ends.position, most);
  await refused(() => ends.reset(ends.batch + 1), "batch", /for which the graph was exported/);
  await ends.close();
});

test("generate checks in the contract's order", async () => {
  await decoder.reset(2);
  const options = { temperature: -1 };
  await refused(() => decoder.generate([], 0, options), "sampling", /a temperature of 0 or more/);
  await refused(() => decoder.generate([], 0), "sampling", /a number of tokens of at least 1/);
  await refused(() => decoder.generate([], 1), "batch");
  await decoder.reset(1);
  await refused(() => decoder.generate([], 1), "token", /received none/);
  await refused(() => decoder.generate([99], 1, { stopTokens: [99] }), "token", /prompt/);
  await refused(() => decoder.generate([1], 1, { stopTokens: [99] }), "token", /stop tokens/);
  for (const [name, value] of Object.entries({ topK: -1, topP: 0, minP: 2, repetitionPenalty: 0, noRepeatNgram: 65, seed: -1, heat: 1 })) {
    await refused(() => decoder.generate([1], 1, { [name]: value }), "sampling", new RegExp(name));
  }
  assert.equal(decoder.position, 0);
});

test("use by two at once, and after close", async () => {
  const other = await Decoder.open(golden("tiny.onnx"));
  const first = other.step(1);
  await refused(() => other.step(2), "state", /received one in use/);
  await first;
  const stream = other.stream([1], 5);
  await stream.next();
  await refused(() => other.reset(), "state", /in use/);
  await stream.return();
  await other.reset();
  await other.close();
  await other.close();
  await refused(() => other.step(1), "state", /received one that is closed/);
  await refused(() => other.generate([1], 1), "state");
});

test("translators", async () => {
  await refused(() => Decoder.open(golden("translator.onnx")), "graph", /open it as a Translator/);
  await refused(() => Translator.open(golden("tiny.onnx")), "graph", /open it as a Decoder/);
  const made = await Translator.open(golden("translator.onnx"));
  await refused(() => made.translate([]), "token", /received none/);
  await refused(() => made.translate([99]), "token");
  await refused(() => made.encode([]), "token");
  for (const wrong of [{ width: 0 }, { nBest: 9 }, { lengthPenalty: 11 }, { earlyStopping: 1 }, { maxTokens: 0 }, { beams: 4 }, { width: 99 }]) {
    await refused(() => made.translate([1], wrong), "sampling");
  }
  const first = made.translate([1, 3]);
  await refused(() => made.translate([1]), "state", /in use/);
  assert.equal((await first).length, 1);
  await made.close();
  await refused(() => made.translate([1]), "state", /closed/);
});

test("a callback, a signal and a broken loop end a text within a token, and the next begins with it", async () => {
  const rules = { temperature: 0, stopTokens: [] };
  await decoder.reset(1);
  const whole = await decoder.generate([1, 3], 12, rules);
  assert.equal(decoder.position, 13);
  const ways = {
    callback: async (got) => decoder.generate([1, 3], 12, rules, { onToken: (token) => got.push(token) < 5 }),
    signal: async (got) => {
      const stop = new AbortController();
      const onToken = (token) => void (got.push(token) === 5 && stop.abort());
      await assert.rejects(decoder.generate([1, 3], 12, rules, { onToken, signal: stop.signal }), { name: "AbortError" });
      await assert.rejects(decoder.generate([1, 3], 12, rules, { signal: stop.signal }), { name: "AbortError" });
    },
    loop: async (got) => {
      for await (const token of decoder.stream([1, 3], 12, rules)) if (got.push(token) === 5) break;
    },
  };
  for (const [name, way] of Object.entries(ways)) {
    await decoder.reset();
    const got = [];
    await way(got);
    assert.deepEqual(got, whole.slice(0, 5), name);
    assert.equal(decoder.position, 6, name);
    got.push(...(await decoder.generate([got.at(-1)], 7, rules)));
    assert.deepEqual(got, whole, name);
  }
});

test("what a callback throws is thrown, and the decoder goes on", async () => {
  await decoder.reset(1);
  await assert.rejects(decoder.generate([1], 3, {}, { onToken: () => { throw new RangeError("mine"); } }), RangeError);
  await decoder.step(1);
});

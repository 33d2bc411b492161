/** Graphs that read vectors, made here by hand: S' = S + W x, logits U S', where a prompt adds all of its vectors at once. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { Decoder, readModelFile } from "../src/index.js";
import { bytesOf, golden, random, refused } from "./files.js";

const SIZE = 3, UNITS = 2, OUTPUTS = 5;
const numbers = random(7);
const drawn = (count) => Float32Array.from({ length: count }, () => Math.fround(numbers() - 0.5));
const W = drawn(SIZE * UNITS), U = drawn(UNITS * OUTPUTS);

/** Fields of a protocol buffer: a number, a text, bytes, or a message, which is a list of fields. */
function message(...fields) {
  const varint = (n) => (n < 128 ? [n] : [(n % 128) | 128, ...varint(Math.floor(n / 128))]);
  return Buffer.concat(fields.map(([number, value]) => {
    if (typeof value === "number") return Buffer.from([...varint(number * 8), ...varint(value)]);
    const content = Array.isArray(value) ? message(...value) : Buffer.from(value);
    return Buffer.concat([Buffer.from([...varint(number * 8 + 2), ...varint(content.length)]), content]);
  }));
}

const value = (name, shape) => [
  [1, name], [2, [[1, [[1, 1], [2, shape.map((d) => [1, [typeof d === "number" ? [1, d] : [2, d]]])]]]]],
];
const tensor = (name, dims, data, type = 1) => [...dims.map((d) => [1, d]), [2, type], [8, name], [9, Buffer.from(data.buffer)]];
const node = (type, inputs, output, ...attributes) => [...inputs.map((i) => [1, i]), [2, output], [4, type], ...attributes];

/** The graph's bytes, with a golden graph's metadata except these values. */
async function graphOf(role, changes) {
  const { metadata } = readModelFile(await bytesOf("tiny.onnx")), many = role === "prefill";
  const states = [{ name: "S", dtype: "float32", shape: ["B", UNITS], initial: 0, constant: false }];
  const own = { role, states, vocab_size: OUTPUTS, input_size: SIZE, bos_token: null, eos_tokens: [], tokenizer: null, max_positions: null, graphs: {} };
  for (const [key, content] of Object.entries({ ...own, ...changes })) metadata.set(`t2r.${key}`, JSON.stringify(content));
  const flat = [5, [[1, "keepdims"], [3, 0], [20, 2]]];
  const graph = [
    [1, node("MatMul", ["inputs_embeds", "W"], "each")],
    [1, many ? node("ReduceSum", ["each", "axis"], "added", flat) : node("Identity", ["each"], "added")],
    [1, node("Add", ["past_S", "added"], "present_S")],
    [1, node("MatMul", ["present_S", "U"], "logits")],
    [2, "vectors"], [5, tensor("W", [SIZE, UNITS], W)], [5, tensor("U", [UNITS, OUTPUTS], U)],
    [5, tensor("axis", [1], BigInt64Array.of(1n), 7)],
    [11, value("inputs_embeds", many ? ["B", "N", SIZE] : ["B", SIZE])], [11, value("past_S", ["B", UNITS])],
    [12, value("logits", ["B", OUTPUTS])], [12, value("present_S", ["B", UNITS])],
  ];
  const entries = [...metadata].map(([key, content]) => [14, [[1, key], [2, content]]]);
  return new Uint8Array(message([1, 8], [7, graph], [8, [[2, 17]]], ...entries));
}

async function opened(changes = {}, prefill = true) {
  const files = { "step.onnx": await graphOf("step", { graphs: prefill ? { prefill: "many.onnx" } : {}, ...changes }) };
  if (prefill) files["many.onnx"] = await graphOf("prefill", {});
  return Decoder.open({ graph: "step.onnx", files });
}

/** The logits (B · OUTPUTS) after all vectors of each sequence (B · T · SIZE), by the definition above. */
function expected(vectors, rows) {
  const length = vectors.length / rows / SIZE, found = [];
  for (let b = 0; b < rows; b++) {
    const state = new Float64Array(UNITS);
    for (let t = 0; t < length; t++) {
      for (let i = 0; i < SIZE; i++) for (let u = 0; u < UNITS; u++) state[u] += vectors[(b * length + t) * SIZE + i] * W[i * UNITS + u];
    }
    for (let o = 0; o < OUTPUTS; o++) found.push(state.reduce((sum, s, u) => sum + s * U[u * OUTPUTS + o], 0));
  }
  return found;
}

function assertNear(found, wanted) {
  assert.equal(found.length, wanted.length);
  wanted.forEach((number, n) => assert.ok(Math.abs(found[n] - number) < 1e-4, `${found[n]} for ${number} at ${n}`));
}

/** The vectors of each sequence, concatenated. */
const joined = (parts, rows) => Float32Array.from(Array.from({ length: rows }, (_, b) => parts.flatMap((part) => {
  const size = part.length / rows;
  return [...part.subarray(b * size, (b + 1) * size)];
})).flat());

for (const [prefill, rows, lengths] of [[true, 1, [1, 4, 1]], [true, 3, [2, 1, 190, 1]], [false, 2, [3, 1]]]) {
  test(`vectors of ${rows} sequences, ${lengths} at a time, ${prefill ? "with" : "without"} a prefill graph`, async () => {
    const decoder = await opened({}, prefill), read = [];
    assert.equal(decoder.signature.inputSize, SIZE);
    await decoder.reset(rows);
    for (const length of lengths) {
      read.push(drawn(rows * length * SIZE));
      assertNear(await decoder.readVectors(read.at(-1)), expected(joined(read, rows), rows));
    }
    assert.equal(decoder.position, lengths.reduce((all, n) => all + n, 0));
    const last = drawn(rows * SIZE), turned = Array.from({ length: rows }, (_, b) => rows - 1 - b);
    await decoder.reorder(turned);
    const swapped = turned.flatMap((b) => [...last.subarray(b * SIZE, (b + 1) * SIZE)]);
    const wanted = expected(joined([...read, last], rows), rows);
    assertNear(await decoder.readVectors(swapped), turned.flatMap((b) => wanted.slice(b * OUTPUTS, (b + 1) * OUTPUTS)));
    await decoder.close();
  });
}

test("a signal ends the reading between two vectors", async () => {
  const decoder = await opened({}, false), stop = new AbortController(), vectors = drawn(5000 * SIZE);
  const done = decoder.readVectors(vectors, { signal: stop.signal });
  setTimeout(() => stop.abort());
  await assert.rejects(done, { name: "AbortError" });
  assert.ok(decoder.position < 5000);
  assertNear(await decoder.readVectors(vectors.subarray(decoder.position * SIZE)), expected(vectors, 1));
  await decoder.close();
});

test("a snapshot goes on where it stood", async () => {
  const decoder = await opened(), before = drawn(2 * SIZE), after = drawn(SIZE);
  await decoder.readVectors(before);
  const kept = await decoder.saveState(), wanted = [...(await decoder.readVectors(after))];
  await decoder.reset();
  await decoder.loadState(kept);
  assertNear(await decoder.readVectors(Float64Array.from(after)), wanted);
  await decoder.close();
});

test("what is refused; nothing has been read then", async () => {
  const decoder = await opened(), words = await Decoder.open(golden("tiny.onnx"));
  const only = /a graph that reads token ids; received one that reads vectors of 3 elements/;
  await refused(() => decoder.step(1), "graph", only);
  await refused(() => decoder.prefill([1, 2]), "graph", only);
  await refused(() => decoder.generate([1], 3), "graph", only);
  await refused(() => words.readVectors(drawn(8)), "token", /token ids; received vectors/);
  await refused(() => decoder.readVectors(drawn(4)), "batch", /vectors of 3 elements, as many of each of 1 sequences; received 4 numbers/);
  for (const bad of [[], "abc", null, [1, "2", 3], [1, , 3], [1, NaN, 3], [1, 2, -Infinity], [1e39, 0, 0], BigInt64Array.of(1n, 2n, 3n)]) {
    await refused(() => decoder.readVectors(bad), "token", /vectors: an array of finite numbers; received/);
  }
  assert.equal(decoder.position + words.position, 0);
  await decoder.close();
  await words.close();
  await refused(() => opened({ input_size: 4 }), "interface", /inputs_embeds float32 .* for float32 \(B,4\)/);
  for (const size of [0, null, "3", 2 ** 25]) await refused(() => opened({ input_size: size }), "metadata", /a bad value of input_size/);
  const other = { "step.onnx": await graphOf("step", { graphs: { prefill: "many.onnx" } }), "many.onnx": await graphOf("prefill", { vocab_size: 4 }) };
  await refused(() => Decoder.open({ graph: "step.onnx", files: other }), "interface");
  const ended = await opened({ max_positions: 2, past_end: "refuse" }, false);
  await refused(() => ended.readVectors(drawn(3 * SIZE)), "position", /at most 2 tokens/);
  await ended.close();
});

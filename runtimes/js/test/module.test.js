/** The provider t2r, our own as a WebAssembly module: golden cases, kernels, files that are none, and memory. */

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { cp, mkdtemp, readFile, rm, symlink, unlink } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { WASI } from "node:wasi";

import { conform } from "../conformance/cases.js";
import { Decoder, WorkerDecoder } from "../src/index.js";
import { openModule } from "../src/module.js";
import { openGraph } from "../src/session.js";
import { States } from "../src/states.js";
import { TINY, bytesOf, golden, random, refused } from "./files.js";

const OWN = { provider: "t2r" };
// DynamicQuantizeLinear; a state of float16; GatherND
const REFUSED = ["int8", "sampling-states", "sampling-drafts"];
const PACKAGE = fileURLToPath(new URL("..", import.meta.url));

test("every golden case passes, or is refused as in docs/providers.md", async () => {
  const files = {
    json: async (name) => JSON.parse(await readFile(join(TINY, name), "utf8")),
    bytes: async (name) => new Uint8Array(await readFile(join(TINY, name))),
    source: (name) => join(TINY, name),
  };
  const lines = [];
  await conform(files, OWN, (line) => lines.push(line));
  const failed = lines.slice(0, -1).filter((line) => !line.startsWith("ok "));
  assert.deepEqual(failed.map((line) => line.replace(/^FAILED ([\w-]+): .*; run the graph on another provider$/, "$1")), REFUSED);
  assert.ok(lines.length > 50);
});

test("kernels, against sums in double precision", async () => {
  const folder = await mkdtemp(join(tmpdir(), "t2r-"));
  try {
    const program = join(folder, "kernels.wasm"), build = fileURLToPath(new URL("../../provider/web/build.py", import.meta.url));
    await promisify(execFile)("python", [build, "--test", program]);
    const wasi = new WASI({ version: "preview1", returnOnExit: true });
    const { instance } = await WebAssembly.instantiate(await readFile(program), wasi.getImportObject());
    assert.equal(wasi.start(instance), 0);
  } finally {
    await rm(folder, { recursive: true });
  }
});

test("a worker's decoder writes what this thread's does", async () => {
  const worker = await WorkerDecoder.open(golden("w4.onnx"), OWN), here = await Decoder.open(golden("w4.onnx"), OWN);
  assert.equal(worker.provider, "t2r");
  assert.deepEqual(await worker.generate([1, 3], 9, { temperature: 0 }), await here.generate([1, 3], 9, { temperature: 0 }));
  await worker.close();
  await here.close();
});

test("files that are cut off or changed are refused or open, and leave the module in order", async () => {
  const ort = await openModule(), whole = await bytesOf("fails.onnx"), draw = random(7), count = (many) => Math.floor(draw() * many);
  const attempt = async (bytes) => {
    try {
      await (await ort.InferenceSession.create(bytes)).release();
      return true;
    } catch (error) {
      await refused(() => Promise.reject(error), error.kind);
      return false;
    }
  };
  const opened = [];
  for (let size = 0; size < whole.length; size++) if (await attempt(whole.slice(0, size))) opened.push(size);
  assert.ok(opened.length < 40 && opened.every((size) => size > 2949), `only between metadata, which follow the graph of 2,949 bytes: ${opened}`);
  for (let tried = 0; tried < 1000; tried++) {
    const bytes = whole.slice();
    for (let changes = count(3); changes >= 0; changes--) bytes[count(bytes.length)] = count(256);
    await attempt(bytes);
  }
  assert.ok(await attempt(whole));
});

test("memory does not grow with steps, batches and rows that move", async () => {
  const graph = await openGraph(golden("tiny-hybrid.onnx"), OWN), states = new States(graph), rows = [[1], [2], [3]];
  let before = 0;
  for (let round = 0; round < 400; round++) {
    states.reset(3);
    for (let step = 0; step < 9; step++) await states.run(graph, rows, step % 2 ? "logits" : null);
    await states.take([[states, 2], [states, 0]]);
    await states.run(graph, rows.slice(1), "logits");
    if (round === 100) before = graph.ort.memory();
  }
  assert.equal(graph.ort.memory(), before);
  states.dispose();
  await graph.session.release();
});

test("wrong uses", async () => {
  const open = (name, more = {}) => Decoder.open(golden(name), { ...OWN, ...more });
  await refused(() => open("tiny.onnx", { threads: 2 }), "provider", /one thread/);
  await refused(() => open("tiny.onnx", { ort: { InferenceSession: { create: () => {} }, Tensor: class {} } }), "provider", /no ort/);
  await refused(() => open("int8.onnx"), "provider", /DynamicQuantizeLinear/);
  const decoder = await open("tiny.onnx");
  await decoder.close();
  await refused(() => decoder.step(1), "state");
  const graph = await bytesOf("history.onnx"), [data] = ["history.onnx.206e746d6597.data"];
  const short = (await bytesOf(data)).slice(1);
  await refused(() => Decoder.open({ graph: "a", files: { a: graph, [data]: short } }, OWN), "weights", /a data file of/);
});

test("a package without the module says so", async () => {
  const folder = await mkdtemp(join(tmpdir(), "t2r-"));
  try {
    for (const part of ["src", "package.json"]) await cp(join(PACKAGE, part), join(folder, part), { recursive: true });
    const [modules] = fileURLToPath(import.meta.resolve("onnxruntime-node")).split(/(?<=node_modules)[/\\]/);
    await symlink(modules, join(folder, "node_modules"));
    await unlink(join(folder, "src", "t2r.wasm"));
    const { Decoder: Lacking } = await import(new URL(`file://${folder}/src/index.js`).href);
    await assert.rejects(Lacking.open(golden("tiny.onnx"), OWN), { kind: "provider", message: /^expected t2r\.wasm .*; received .*; build it/ });
  } finally {
    await rm(folder, { recursive: true });
  }
});

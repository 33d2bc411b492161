/** Progress of downloads: bytes as they arrive. */

import assert from "node:assert/strict";
import { readFile, stat } from "node:fs/promises";
import { createServer } from "node:http";
import { basename } from "node:path";
import { test } from "node:test";
import { gzipSync } from "node:zlib";

import { Decoder } from "../src/index.js";
import { golden, refused } from "./files.js";

/** Serve the golden files while `work` runs. */
async function served(answer, work) {
  const server = createServer(async (request, response) => answer(await readFile(golden(basename(request.url))), response));
  await new Promise((ready) => server.listen(0, "127.0.0.1", ready));
  try {
    return await work(`http://127.0.0.1:${server.address().port}/prefill.onnx`);
  } finally {
    server.closeAllConnections();
    server.close();
  }
}

const waiting = []; // continued after the next progress report

async function opened(address) {
  const told = new Map();
  const onProgress = ({ file, loaded, total }) => {
    told.set(basename(file), [...(told.get(basename(file)) ?? []), [loaded, total]]);
    for (const goOn of waiting.splice(0)) goOn();
  };
  const decoder = await Decoder.open(address, { onProgress });
  const { prefill } = decoder.signature.graphs;
  await decoder.step(1);
  await decoder.close();
  assert.ok(told.has("prefill.onnx") && told.has(prefill));
  return told;
}

test("all bytes of each file, in parts, of so many", () => served((bytes, response) => {
  response.setHeader("content-length", bytes.length);
  response.write(bytes.subarray(0, 100));
  waiting.push(() => response.end(bytes.subarray(100)));
}, async (address) => {
  for (const [file, steps] of await opened(address)) {
    const { size } = await stat(golden(file));
    // weights of two graphs are fetched for each
    const before = (n) => (n === 0 || steps[n - 1][0] === size ? 0 : steps[n - 1][0]);
    assert.ok(steps.every(([loaded, total], n) => total === size && loaded > before(n)), file);
    assert.ok(steps.length > 1 || size <= 100, file);
    assert.equal(steps.at(-1)[0], size, file);
  }
}));

test("of a packed file the length is not known", () => served((bytes, response) => {
  response.setHeader("content-encoding", "gzip");
  response.end(gzipSync(bytes));
}, async (address) => {
  for (const [file, steps] of await opened(address)) assert.deepEqual(steps.at(-1), [(await stat(golden(file))).size, null], file);
}));

test("a file that breaks off is an error of a line", () => served((bytes, response) => {
  response.setHeader("content-length", bytes.length);
  response.write(bytes.subarray(0, 100), () => response.destroy());
}, async (address) => {
  for (const options of [{}, { onProgress: () => {} }]) await refused(() => Decoder.open(address, options), "file");
}));

test("what is told is a function", () => refused(() => Decoder.open(golden("tiny.onnx"), { onProgress: 1 }), "provider", /onProgress: a function/));

/** Snapshots: the same bytes, and forged contents. */

import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { Decoder } from "../src/index.js";
import { readZip, writeZip } from "../src/zip.js";
import { bytesOf, golden, refused } from "./files.js";

let decoder, bytes;
before(async () => {
  decoder = await Decoder.open(golden("tiny.onnx"));
  bytes = await bytesOf("tiny.state");
});
after(() => decoder.close());

const utf8 = new TextEncoder();
const members = () => [...readZip(bytes)].map(([name, { content }]) => [name, content]);

/** The archive with some members changed; null removes one. */
function changed(change) {
  return writeZip(members().map(([name, content]) => [name, name in change ? change[name] : content]).filter(([, content]) => content));
}

function head(values) {
  const { content } = readZip(bytes).get("t2r.json");
  return utf8.encode(JSON.stringify({ ...JSON.parse(new TextDecoder().decode(content)), ...values }));
}

test("a loaded state goes on as the saved one", async () => {
  const rules = { temperature: 0, stopTokens: [] };
  await decoder.reset(1);
  const first = await decoder.generate([1, 3, 14], 6, rules);
  const saved = await decoder.saveState(first.at(-1));
  const rest = await decoder.generate([first.at(-1)], 6, rules);
  const token = await decoder.loadState(saved);
  assert.equal(token, first.at(-1));
  assert.deepEqual(await decoder.generate([token], 6, rules), rest);
  assert.deepEqual([...readZip(await decoder.saveState()).keys()], ["t2r.json", ...decoder.signature.states.map(({ name }) => `${name}.npy`)]);
});

test("cut off anywhere, it is refused", async () => {
  for (let n = 0; n < 50; n++) await refused(() => decoder.loadState(bytes.subarray(0, Math.floor((n * bytes.length) / 50))), "snapshot");
});

test("any byte may be another: refused, or read as it says", async () => {
  const before = await decoder.saveState();
  for (let n = 0; n < 400; n++) {
    const damaged = bytes.slice();
    damaged[(n * 7919) % bytes.length] ^= 1 << n % 8;
    try {
      await decoder.loadState(damaged);
      await decoder.loadState(before);
    } catch (error) {
      assert.equal(error.kind, "snapshot", error.stack);
    }
  }
});

const long = (dims) => {
  const text = `{'descr': '<f4', 'fortran_order': False, 'shape': (${dims}), }`.padEnd(117) + "\n";
  return Uint8Array.from([0x93, 0x4e, 0x55, 0x4d, 0x50, 0x59, 1, 0, text.length, 0, ...utf8.encode(text)]);
};
const lies = {
  "no head": () => changed({ "t2r.json": null }),
  "another version": () => changed({ "t2r.json": head({ snapshot: 2 }) }),
  "another model": () => changed({ "t2r.json": head({ checkpoint_sha256: "0".repeat(64) }) }),
  "a position below zero": () => changed({ "t2r.json": head({ position: -1 }) }),
  "a token that there is not": () => changed({ "t2r.json": head({ token: 17 }) }),
  "a head that is too long": () => changed({ "t2r.json": head({ more: "x".repeat(70000) }) }),
  "a head nested 10,000 deep": () => changed({ "t2r.json": utf8.encode("[".repeat(10000)) }),
  "a state missing": () => changed({ "S.0.npy": null }),
  "more numbers than there are": () => changed({ "S.0.npy": long("1000000, 1000000, 1000000, 4") }),
  "no array": () => changed({ "S.0.npy": utf8.encode("hello") }),
  "a state twice": () => writeZip([...members(), members()[1]]),
  "nothing": () => new Uint8Array(),
};
for (const [what, made] of Object.entries(lies)) {
  test(`a snapshot with ${what}`, async () => {
    await decoder.reset(1);
    await decoder.step(3);
    const before = await decoder.saveState();
    await refused(() => decoder.loadState(made()), "snapshot");
    assert.deepEqual(await decoder.saveState(), before, "what was in the decoder stays");
  });
}

test("a snapshot of another model", async () => {
  await refused(async () => decoder.loadState(await bytesOf("tiny-hybrid.state")), "snapshot", /a snapshot of the checkpoint/);
});

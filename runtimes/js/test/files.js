/** Golden graphs as bytes, helpers to damage them, and checks of errors. */

import assert from "node:assert/strict";
import { cp, mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

import { Decoder, KINDS, T2RError, readModelFile, readSignature } from "../src/index.js";

export const TINY = fileURLToPath(new URL("../../../models/tiny", import.meta.url));

export function golden(name) {
  return join(TINY, name);
}

/** What `work` returns, given the decoder of a golden graph, which is closed afterwards. */
export async function opened(name, work) {
  const decoder = await Decoder.open(golden(name));
  try {
    return await work(decoder);
  } finally {
    await decoder.close();
  }
}

export async function bytesOf(name) {
  return new Uint8Array(await readFile(golden(name)));
}

/** Run `work` in a temporary folder with copies of all golden files. */
export async function inCopy(work) {
  const folder = await mkdtemp(join(tmpdir(), "t2r-"));
  try {
    await cp(TINY, folder, { recursive: true });
    return await work(folder);
  } finally {
    await rm(folder, { recursive: true });
  }
}

/** The bytes with all occurrences of `from` and `to` swapped; both have the same length. */
export function exchanged(bytes, from, to) {
  assert.equal(Buffer.byteLength(from), Buffer.byteLength(to));
  const out = Buffer.from(bytes);
  for (const [wanted, other] of [[from, to], [to, from]]) {
    for (let at = Buffer.from(bytes).indexOf(wanted); at >= 0; at = Buffer.from(bytes).indexOf(wanted, at + 1)) out.write(other, at);
  }
  return new Uint8Array(out);
}

/** A graph's bytes with changed metadata values, placed before the graph as they were. */
export function withMetadata(bytes, changes) {
  const varint = (n) => (n < 128 ? [n] : [(n % 128) | 128, ...varint(Math.floor(n / 128))]);
  const field = (number, content) => [Buffer.from([number * 8 + 2, ...varint(content.length)]), content];
  const { metadata } = readModelFile(bytes), out = [];
  for (const [key, value] of Object.entries(changes)) {
    assert.ok(metadata.has(key));
    metadata.set(key, JSON.stringify(value(JSON.parse(metadata.get(key)))));
  }
  for (const [key, value] of metadata) out.push(...field(14, Buffer.concat([...field(1, Buffer.from(key)), ...field(2, Buffer.from(value))])));
  return new Uint8Array(Buffer.concat([...out, ...withoutMetadata(bytes)]));
}

/** The signature of a golden graph, with these values of metadata besides or instead of its own. */
export async function signatureOf(name, values = {}) {
  const { metadata } = readModelFile(await bytesOf(name));
  for (const [key, value] of Object.entries(values)) metadata.set(`t2r.${key}`, JSON.stringify(value));
  return readSignature(metadata);
}

/** The other fields of a graph's file. */
function* withoutMetadata(bytes) {
  for (let at = 0; at < bytes.length; ) {
    const start = at;
    const varint = () => {
      let value = 0;
      for (let unit = 1; ; unit *= 128) {
        value += (bytes[at] & 127) * unit;
        if (bytes[at++] < 128) return value;
      }
    };
    const tag = varint(), size = varint();
    if (tag % 8 === 2) at += size;
    if (tag !== 14 * 8 + 2) yield bytes.subarray(start, at);
  }
}

/** Check that `work` throws a one-line error of this kind. */
export async function refused(work, kind, said = /./) {
  await assert.rejects(async () => work(), (error) => {
    assert.ok(error instanceof T2RError, String(error.stack));
    assert.ok(KINDS.includes(error.kind));
    assert.equal(error.kind, kind, error.message);
    assert.match(error.message, /^expected [^\n]*; received [^\n]*; [^\n]*$/);
    assert.match(error.message, said);
    return true;
  });
}

/** Seeded random numbers in 0 … 1 (mulberry32), so that failures are reproducible. */
export function random(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let x = Math.imul(state ^ (state >>> 15), state | 1);
    x ^= x + Math.imul(x ^ (x >>> 7), x | 61);
    return ((x ^ (x >>> 14)) >>> 0) / 2 ** 32;
  };
}

/** Golden graphs as bytes, which tests damage, and what they look for in an error. */

import assert from "node:assert/strict";
import { cp, mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

import { KINDS, T2RError } from "../src/index.js";

export const TINY = fileURLToPath(new URL("../../../models/tiny", import.meta.url));

export function golden(name) {
  return join(TINY, name);
}

export async function bytesOf(name) {
  return new Uint8Array(await readFile(golden(name)));
}

/** A folder with copies of all golden files, gone when `work` is done. */
export async function inCopy(work) {
  const folder = await mkdtemp(join(tmpdir(), "t2r-"));
  try {
    await cp(TINY, folder, { recursive: true });
    return await work(folder);
  } finally {
    await rm(folder, { recursive: true });
  }
}

/** The bytes with every one of `from` in the place of `to`, and the other way round; both have one length. */
export function exchanged(bytes, from, to) {
  assert.equal(Buffer.byteLength(from), Buffer.byteLength(to));
  const out = Buffer.from(bytes);
  for (const [wanted, other] of [[from, to], [to, from]]) {
    for (let at = Buffer.from(bytes).indexOf(wanted); at >= 0; at = Buffer.from(bytes).indexOf(wanted, at + 1)) out.write(other, at);
  }
  return new Uint8Array(out);
}

/** One line, of this kind. */
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

/** Numbers in 0 … 1 that a seed gives (mulberry32), so that a failure can be seen again. */
export function random(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let x = Math.imul(state ^ (state >>> 15), state | 1);
    x ^= x + Math.imul(x ^ (x >>> 7), x | 61);
    return ((x ^ (x >>> 14)) >>> 0) / 2 ** 32;
  };
}

/** What the workers of texts share: prompts that are read in pieces, and the memory that softmax would need. */

import { turn } from "./t2r/aborts.js";

const PATIENCE = 100; // ms that a stop waits while a prompt is read
const LEAST = 64; // tokens of a piece: where weights are unpacked in each run, as in w8 on WebAssembly, fewer cost as much

/**
 * Read a long prompt except its last piece, which is returned: none of it if stopped. A piece takes about PATIENCE, or has LEAST tokens.
 * @param {import("./t2r/index.js").Decoder} decoder @param {number[]} ids
 * @param {(read: number) => void} onPiece called with the number of tokens so far
 * @param {() => boolean} stopped
 */
export async function readMost(decoder, ids, onPiece, stopped) {
  let at = 0, size = LEAST;
  while (ids.length - at > size) {
    const before = performance.now();
    await decoder.prefill(ids.slice(at, at + size));
    at += size;
    onPiece(at);
    await turn(); // lets a stop arrive
    if (stopped()) return [];
    size = performance.now() - before < PATIENCE / 2 ? 2 * size : Math.max(LEAST, size >> 1);
  }
  return ids.slice(at);
}

/** Bytes that a token adds to the keys and values of a softmax model of these layers, in float32. */
export function softmaxBytes({ layers }) {
  const heads = layers.flatMap(({ parts = [] }) => parts).filter(({ kind }) => kind === "attention");
  return heads.reduce((all, { kv_heads: count, head_size: size }) => all + 2 * 4 * count * size, 0);
}

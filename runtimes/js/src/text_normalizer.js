/** A text before it is cut, by the `normalizer` of a tokenizer.json, to the letter as the tokenizers library does it. */

import { blanksAfter, blanksBefore } from "./blanks.js";
import { patternOf } from "./text_splitter.js";

const MAX_GRAPHEME = 5; // bytes of a cluster of letters that a map may know as a whole
const utf8 = new TextEncoder();

const NORMALIZERS = {
  Sequence: ({ normalizers }) => {
    const all = normalizers.map(normalizerOf);
    return (text) => all.reduce((rest, one) => one(rest), text);
  },
  NFC: () => (text) => text.normalize("NFC"),
  NFD: () => (text) => text.normalize("NFD"),
  NFKC: () => (text) => text.normalize("NFKC"),
  NFKD: () => (text) => text.normalize("NFKD"),
  Strip: ({ strip_left: left = true, strip_right: right = true }) => (text) =>
    text.slice(left ? blanksAfter(text, 0) : 0, right ? blanksBefore(text, text.length) : text.length),
  Prepend: ({ prepend }) => (text) => (text ? prepend + text : text),
  Replace: ({ pattern, content }) => {
    const wanted = patternOf(pattern);
    return (text) => text.replaceAll(wanted, () => content);
  },
  Precompiled: ({ precompiled_charsmap: map }) => precompiled(map ?? ""),
};

/** @param {object | null} part of a tokenizer.json @returns {(text: string) => string} */
export function normalizerOf(part) {
  return part === null ? same : NORMALIZERS[part.type](part);
}

function same(text) {
  return text;
}

/**
 * SentencePiece's map of characters: the length of a double-array trie (Aoe 1989), the trie, and the texts that its leaves
 * point to, each up to a zero.
 */
function precompiled(base64) {
  const bytes = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
  if (!bytes.length) return same;
  const view = new DataView(bytes.buffer);
  const size = bytes.length < 4 ? NaN : view.getUint32(0, true);
  if (!(size % 4 === 0 && 4 + size <= bytes.length && size > 0)) throw new Error("a Precompiled normalizer that is cut off");
  const trie = Uint32Array.from({ length: size / 4 }, (_, n) => view.getUint32(4 + 4 * n, true));
  const texts = bytes.subarray(4 + size);
  const segments = new Intl.Segmenter(undefined, { granularity: "grapheme" });
  const known = new Map(); // what a cluster or letter becomes, of the few that a text has
  const mapped = (part) => {
    if (!known.has(part)) known.set(part, lookedUp(trie, texts, utf8.encode(part)));
    return known.get(part);
  };
  return (text) => {
    const out = [];
    for (const { segment } of segments.segment(text)) {
      const whole = utf8.encode(segment).length <= MAX_GRAPHEME ? mapped(segment) : null;
      if (whole !== null) out.push(whole);
      else for (const letter of segment) out.push(mapped(letter) ?? letter);
    }
    if (known.size > 1 << 16) known.clear();
    return out.join("");
  };
}

/** The text of the shortest beginning of `key` that the trie knows; null if it knows none. */
function lookedUp(trie, texts, key) {
  const offset = (unit) => (unit >>> 10) << ((unit & 512) >>> 6);
  let at = offset(trie[0]);
  for (const byte of key) {
    if (byte === 0) return null;
    at ^= byte;
    const unit = trie[at];
    if (unit === undefined || ((unit & 0x800000ff) >>> 0) !== byte) return null;
    at ^= offset(unit);
    if (!((unit >>> 8) & 1)) continue;
    const start = (trie[at] ?? 0) & 0x7fffffff, end = texts.indexOf(0, start);
    return start > texts.length ? null : new TextDecoder("utf-8", { ignoreBOM: true }).decode(texts.subarray(start, end < 0 ? texts.length : end));
  }
  return null;
}

/** Normalizes a text by the `normalizer` of a tokenizer.json, exactly as the tokenizers library does. */

import { blanksAfter, blanksBefore } from "./blanks.js";
import { replacing } from "./text_splitter.js";
import { Budget, requireTexts } from "./tokenizer_bounds.js";

const MAX_GRAPHEME = 5; // bytes of a grapheme cluster that is looked up as a whole
const SLICE = 1 << 20; // characters
const WINDOW = 128; // characters
const segmenter = new Intl.Segmenter(undefined, { granularity: "grapheme" });
const utf8 = new TextEncoder();

const NORMALIZERS = {
  Sequence: ({ normalizers }) => {
    const all = normalizers.map(normalizerOf);
    return (text) => all.reduce((rest, one) => one(rest), text);
  },
  NFC: () => unicode("NFC"),
  NFD: () => unicode("NFD"),
  NFKC: () => unicode("NFKC"),
  NFKD: () => unicode("NFKD"),
  Strip: ({ strip_left: left = true, strip_right: right = true }) => (text) => {
    const begin = left ? blanksAfter(text, 0) : 0;
    return text.slice(begin, right ? blanksBefore(text, text.length, begin) : text.length);
  },
  Prepend: ({ prepend }) => (text) => (text ? prepend + text : text),
  Replace: ({ pattern, content }) => replacing(pattern, content),
  Precompiled: ({ precompiled_charsmap: map }) => precompiled(map ?? ""),
};

/** @param {object | null} part of a tokenizer.json, within the bounds @returns {(text: string) => string} */
export function normalizerOf(part) {
  if (part === null) return same;
  const change = NORMALIZERS[part.type](part);
  return (text) => requireTexts([change(text)])[0];
}

/** A normalization form of Unicode. A long text is measured in slices first: one letter may become eighteen. */
function unicode(form) {
  return (text) => {
    const budget = new Budget();
    for (let at = 0; text.length > SLICE && at < text.length; at += SLICE) budget.take(text.slice(at, at + SLICE).normalize(form).length);
    return text.normalize(form);
  };
}

function same(text) {
  return text;
}

/**
 * SentencePiece's character map: the length of a double-array trie (Aoe 1989), the trie, and the texts that its leaves
 * point to, each zero-terminated.
 */
function precompiled(base64) {
  const bytes = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
  if (!bytes.length) return same;
  const view = new DataView(bytes.buffer);
  const size = bytes.length < 4 ? NaN : view.getUint32(0, true);
  if (!(size % 4 === 0 && 4 + size <= bytes.length && size > 0)) throw new Error("a Precompiled normalizer that is cut off");
  const trie = Uint32Array.from({ length: size / 4 }, (_, n) => view.getUint32(4 + 4 * n, true));
  const texts = bytes.subarray(4 + size);
  const known = new Map(); // cache: cluster or letter → its replacement
  const mapped = (part) => {
    if (!known.has(part)) known.set(part, lookedUp(trie, texts, utf8.encode(part)));
    return known.get(part);
  };
  return (text) => {
    const out = [], budget = new Budget();
    const put = (part) => {
      budget.take(part.length);
      out.push(part);
    };
    for (const cluster of clusters(text)) {
      const whole = utf8.encode(cluster).length <= MAX_GRAPHEME ? mapped(cluster) : null;
      if (whole !== null) put(whole);
      else for (const letter of cluster) put(mapped(letter) ?? letter);
    }
    if (known.size > 1 << 16) known.clear();
    return out.join("");
  };
}

/**
 * The grapheme clusters of a text. Intl.Segmenter's cost per cluster grows with its text, so it gets windows. A window begins
 * where a cluster does. Its last cluster may continue past the window and is left to the next one.
 */
function* clusters(text) {
  for (let at = 0, size = WINDOW; at < text.length; ) {
    const end = at + size + (isHigh(text.charCodeAt(at + size - 1)) ? 1 : 0);
    const found = Array.from(segmenter.segment(text.slice(at, end)), ({ segment }) => segment);
    if (end < text.length) found.pop();
    for (const cluster of found) at += cluster.length;
    yield* found;
    size = found.length ? WINDOW : 2 * size;
  }
}

function isHigh(unit) {
  return unit >= 0xd800 && unit < 0xdc00;
}

/** The text of the shortest prefix of `key` in the trie, or null. */
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

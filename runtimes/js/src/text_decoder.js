/** Decodes tokens to text by the `decoder` of a tokenizer.json, exactly as the tokenizers library does. */

import { byteOf } from "./byte_letters.js";
import { replacing } from "./text_splitter.js";
import { madeOf, requireTexts } from "./tokenizer_bounds.js";

const lossy = new TextDecoder("utf-8", { ignoreBOM: true });
const strict = new TextDecoder("utf-8", { ignoreBOM: true, fatal: true });
const utf8 = new TextEncoder();

const DECODERS = {
  Sequence: (tokens, { decoders }) => decoders.reduce((rest, decoder) => chain(rest, decoder), tokens),
  ByteLevel: (tokens) => [lossy.decode(Uint8Array.from(tokens.flatMap(bytesOf)))],
  ByteFallback: fallback,
  Fuse: (tokens) => [tokens.join("")],
  Metaspace: (tokens, { replacement, prepend_scheme, add_prefix_space }) => {
    const begins = prepend_scheme ? prepend_scheme !== "never" : add_prefix_space !== false;
    return tokens.map((token, n) => token.replaceAll(replacement, n === 0 && begins ? "" : " "));
  },
  Replace: (tokens, { pattern, content }) => {
    const replaced = replacing(pattern, content);
    return madeOf(tokens, (token) => [replaced(token)]);
  },
  Strip: (tokens, { content, start = 0, stop = 0 }) => tokens.map((token) => stripped([...token], content, start, stop)),
};

/** @param {string[]} tokens @param {object | null} decoder */
export function decodeTokens(tokens, decoder) {
  return decoder === null ? tokens.join(" ") : chain(tokens, decoder).join("");
}

function chain(tokens, decoder) {
  return DECODERS[decoder.type](requireTexts(tokens), decoder);
}

/** The bytes that a token's letters stand for; if one stands for none, the token's UTF-8. */
function bytesOf(token) {
  const bytes = Array.from(token, byteOf);
  return bytes.includes(undefined) ? [...utf8.encode(token)] : bytes;
}

function fallback(tokens) {
  const out = [];
  let run = [];
  const flush = () => {
    if (!run.length) return;
    try {
      out.push(strict.decode(Uint8Array.from(run)));
    } catch {
      for (let n = 0; n < run.length; n++) out.push("\ufffd");
    }
    run = [];
  };
  for (const token of tokens) {
    const found = /^<0x([0-9A-Fa-f]{2})>$/.exec(token);
    if (found) run.push(parseInt(found[1], 16));
    else {
      flush();
      out.push(token);
    }
  }
  flush();
  return out;
}

function stripped(letters, content, start, stop) {
  let from = 0, to = letters.length;
  while (from < start && letters[from] === content) from++;
  while (letters.length - to < stop && letters[to - 1] === content) to--;
  return letters.slice(from, Math.max(from, to)).join("");
}

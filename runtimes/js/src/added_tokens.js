/** Finds the `added_tokens` of a tokenizer.json before a text is split; the longest match wins. */

import { blanksAfter, blanksBefore } from "./blanks.js";
import { LETTER } from "./text_splitter.js";
import { Budget } from "./tokenizer_bounds.js";
import { Trie } from "./trie.js";

const ENDS_WITH_LETTER = new RegExp(`[${LETTER}]$`, "u"), STARTS_WITH_LETTER = new RegExp(`^[${LETTER}]`, "u");

export class AddedTokens {
  #plain;
  #normalized;
  #normalize;

  /**
   * @param {object[]} added tokens of a tokenizer.json
   * @param {string[]} contents each token's content: verbatim, or normalized
   * @param {(text: string) => string} normalize
   */
  constructor(added, contents, normalize) {
    const entries = added.map((token, n) => [contents[n], token]);
    this.#normalize = normalize;
    this.#plain = finder(entries.filter(([, token]) => !token.normalized));
    this.#normalized = finder(entries.filter(([, token]) => token.normalized));
  }

  /**
   * Split a text at its added tokens. The parts between them are normalized.
   * @returns {(number | {text: string, first: boolean})[]} token ids, and the parts between; `first`: whether a part begins the text
   */
  split(text) {
    const out = [], budget = new Budget();
    let first = true;
    for (const part of this.#plain(text)) {
      if (typeof part === "number") out.push(part);
      else {
        let inner = first;
        const whole = this.#normalize(part);
        budget.take(whole.length);
        for (const rest of this.#normalized(whole)) {
          out.push(typeof rest === "number" ? rest : { text: rest, first: inner });
          inner = false;
        }
      }
      first = false;
    }
    return out;
  }
}

/** Returns a function that splits a text into these tokens' ids and the texts between. It visits each letter only a few times. */
function finder(entries) {
  const tokens = entries.filter(([content]) => content).reverse(); // the first of equal tokens wins
  if (!tokens.length) return (text) => (text ? [text] : []);
  const trie = new Trie(tokens), beginnings = new Set(tokens.map(([content]) => content.charCodeAt(0)));
  const begins = new RegExp(`[${Array.from(beginnings, (unit) => `\\u${unit.toString(16).padStart(4, "0")}`).join("")}]`, "g");
  return (text) => {
    const out = [];
    let end = 0, blanksEnd = 0;
    for (const [from, to, { id, single_word: single, lstrip, rstrip }] of occurrences(text, begins, trie)) {
      if (single && (ENDS_WITH_LETTER.test(before(text, from)) || STARTS_WITH_LETTER.test(text.slice(to, to + 2)))) continue;
      const start = lstrip ? Math.max(end, blanksBefore(text, from, end)) : from;
      // a token of blanks may lie in blanks that another has stripped: it ends where they do
      if (rstrip && blanksEnd <= to) blanksEnd = blanksAfter(text, to);
      if (start > end) out.push(text.slice(end, start));
      out.push(id);
      end = rstrip ? blanksEnd : to;
    }
    if (end < text.length) out.push(text.slice(end));
    return out;
  };
}

/** Matches of a trie's tokens, the longest at each place, non-overlapping: [start, end, token]. */
function* occurrences(text, begins, trie) {
  for (let at = 0; ; ) {
    begins.lastIndex = at;
    const candidate = begins.exec(text);
    if (!candidate) return;
    const found = trie.longest(text, candidate.index);
    if (found) yield [candidate.index, found.end, found.value];
    at = found ? found.end : candidate.index + 1;
  }
}

/** The letter before a place. */
function before(text, place) {
  return Array.from(text.slice(Math.max(0, place - 2), place)).at(-1) ?? "";
}

/**
 * Twice the text is twice the work, for any text: letters that the tokenizer's own loops compare are counted. Work of regular
 * expressions cannot be counted; their texts here are so long that quadratic work would not end.
 */

import assert from "node:assert/strict";
import { test } from "node:test";

import { Tokenizer } from "../src/index.js";
import { work } from "../src/trie.js";

const vocab = { a: 0, b: 1, " ": 2, "\n": 3 };
const bpe = { type: "BPE", vocab, merges: [], unk_token: "b" };
const nested = Array.from({ length: 255 }, (_, n) => ["a".repeat(n + 1), -n - 1]);
const unigram = { type: "Unigram", unk_id: 0, vocab: [["?", -9], ...nested] };
const tokens = (count, made) => Array.from({ length: count }, (_, n) => ({ id: 4 + n, normalized: false, ...made(n) }));
const made = (change) => new Tokenizer(JSON.stringify({ decoder: { type: "Fuse" }, model: bpe, ...change }));
const edges = { type: "Split", pattern: { Regex: "^ +| +$" }, behavior: "Isolated" };
const stripped = { added_tokens: tokens(1, () => ({ content: "!", lstrip: true, rstrip: true })) };
const marks = Array.from({ length: 6 }, (_, n) => ({ type: "Metaspace", replacement: "cdefgh"[n], prepend_scheme: "always", split: true }));

const COUNTED = {
  "added tokens with lstrip and rstrip": [stripped, (n) => "a ! ".repeat(n)],
  "blanks before an added token that is no word of its own": [
    { added_tokens: tokens(1, () => ({ content: "!", lstrip: true, single_word: true })) }, (n) => `${" ".repeat(n)}!${" ".repeat(n)}!a`,
  ],
  "added tokens of blanks that strip blanks": [{ added_tokens: tokens(1, () => ({ content: "\t", lstrip: true, rstrip: true })) }, (n) => "\t".repeat(n)],
  "65,000 added tokens that begin with one letter": [{ added_tokens: tokens(65000, (n) => ({ content: `a${n}x` })) }, (n) => "a1".repeat(n)],
  "a long added token that never ends": [{ added_tokens: tokens(1, () => ({ content: `${"a".repeat(1000)}b` })) }, (n) => "a".repeat(n)],
  "added tokens nested in one another": [{ added_tokens: tokens(400, (n) => ({ content: `${"a".repeat(n + 1)}b` })) }, (n) => "a".repeat(n)],
  "nested pieces of Unigram": [{ model: unigram }, (n) => "a".repeat(n)],
  "a text of blanks that is stripped": [{ normalizer: { type: "Strip" }, ...stripped }, (n) => `${" ".repeat(n)}a${" ".repeat(n)}`],
};
for (const [what, [change, text]] of Object.entries(COUNTED)) {
  test(what, () => {
    const tokenizer = made(change);
    const counted = (size) => {
      const before = work.letters;
      tokenizer.encode(text(size));
      return work.letters - before;
    };
    const once = counted(4000), twice = counted(8000);
    assert.ok(once > 0 && twice <= 2.1 * once, `${once} letters, and ${twice} for a text twice as long`);
  });
}

test("three rows of 100,000 blanks that are at no edge, and some that are", () => {
  const row = " ".repeat(100_000), text = `a${row}a${row}a${row}a`;
  assert.equal(made({ pre_tokenizer: edges }).encode(text).length, text.length);
  const cut = made({ normalizer: { type: "Replace", pattern: { Regex: "^ +| +$" }, content: "" } });
  assert.deepEqual(cut.encode(`${row}a  a${row}\n${row}${row}b`), [0, 2, 2, 0, 3, 1]);
});

test("capitals, blanks and signs in runs of 100,000, which are read in vain once", () => {
  const regex = String.raw`\p{L}?\p{Lu}*\p{Ll}+|\p{L}?\p{Lu}+\p{Ll}*|\s*[\r\n]|\s+(?!\S)|\s`, count = 100_000;
  const tokenizer = made({ pre_tokenizer: { type: "Split", pattern: { Regex: regex }, behavior: "Isolated" } });
  for (const letter of ["A", "a", " ", "!"]) assert.equal(tokenizer.encode(`b${letter.repeat(count)}b`).length, count + 2);
});

test("what decoders leave unfinished is looked for once", () => {
  const broken = made({ model: { ...bpe, vocab: { ...vocab, ["\ufffd".repeat(1300) + "a"]: 4 } } });
  const stream = broken.stream([]);
  for (let n = 0; n < 50; n++) assert.equal(stream.feed(4).length, 1301);
});

test("as many pre-tokenizers that insert as the bounds let through", () => {
  const tokenizer = made({ pre_tokenizer: { type: "Sequence", pretokenizers: marks } });
  assert.ok(tokenizer.encode("a ".repeat(20_000)).length >= 40_000);
});

test("a map of characters over a long text, and over one cluster of 100,000 marks", () => {
  const map = btoa(String.fromCharCode(4, 0, 0, 0, 0, 0, 0, 0, 0));
  const tokenizer = made({ normalizer: { type: "Precompiled", precompiled_charsmap: map } });
  assert.equal(tokenizer.encode("ab".repeat(300_000)).length, 600_000);
  assert.equal(tokenizer.encode(`a${"\u0301".repeat(100_000)}`).length, 100_001);
});

const ENDLESS = {
  "special tokens": [1, 4, [6], 1],
  "special tokens within a character": [1, 2, [6], 4, 1],
  "tokens without text": [5, [5], 1, 1],
  "tokens without text after others": [1, 5, [5], 1],
  "unknown tokens": [1, 1, [7], 1],
  "characters across tokens": [1, 2, [3], 4],
};
for (const [what, tokens] of Object.entries(ENDLESS)) {
  test(`work of a streamed token is bounded: ${what}`, () => {
    const broken = { type: "BPE", vocab: { b: 0, "Ġa": 1, "æ": 2, "Ĺ¥æ": 3, "Ĺ¥": 4, "": 5 }, merges: [], unk_token: "b" };
    const decoder = { type: "Sequence", decoders: [{ type: "ByteLevel" }, { type: "Strip", content: " ", start: 1, stop: 0 }] };
    const added = [{ id: 6, content: "<end>", normalized: false, special: true }];
    const tokenizer = made({ model: broken, decoder, added_tokens: added }), right = tokenizer.decode.bind(tokenizer);
    let decoded = 0;
    tokenizer.decode = (ids) => ((decoded += ids.length), right(ids));
    const all = tokens.flatMap((token) => (Array.isArray(token) ? Array(500).fill(token[0]) : token));
    const stream = tokenizer.stream([]);
    let text = "";
    for (const token of all) {
      decoded = 0;
      text += stream.feed(token);
      assert.ok(decoded <= 5 * 33, `${decoded} tokens are decoded`);
    }
    assert.equal(text + stream.end(), right(all));
  });
}

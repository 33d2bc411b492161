/** contract/text.md: each bound is accepted, and one more is refused before anything is built. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { Tokenizer } from "../src/index.js";
import { refused } from "./files.js";

const letters = "abcdefghij ".split("");
const COUNT = letters.length;
const vocab = Object.fromEntries(letters.map((letter, id) => [letter, id]));
const plain = { decoder: { type: "Fuse" }, model: { type: "BPE", vocab, merges: [] } };
const made = (change) => new Tokenizer(JSON.stringify({ ...plain, ...change }));
const bpe = (pieces) => ({ model: { type: "BPE", vocab: pieces, merges: [] } });
const unigram = (...pieces) => ({ model: { type: "Unigram", unk_id: 0, vocab: ["?", ...pieces].map((text) => [text, -1]) } });
const replace = (pattern, content) => ({ type: "Replace", pattern: { String: pattern }, content });
const many = (count, one) => Array.from({ length: count }, (_, n) => one(n));
const normalizers = (...parts) => ({ normalizer: { type: "Sequence", normalizers: parts } });
const pretokenizers = (...parts) => ({ pre_tokenizer: { type: "Sequence", pretokenizers: parts } });
const decoders = (...parts) => ({ decoder: { type: "Sequence", decoders: parts } });
const added = (...contents) => ({ added_tokens: contents.map((content, n) => ({ id: COUNT + n, content, normalized: false })) });
const growing = (change) => ({ ...change, added_tokens: change.added_tokens.map((token) => ({ ...token, normalized: true })) });
const inserting = (count) => ({
  post_processor: {
    type: "TemplateProcessing", single: [{ SpecialToken: { id: "x" } }, { Sequence: { id: "A" } }], special_tokens: { x: { ids: new Array(count).fill(1) } },
  },
});
/** A character map with an empty trie, and replacements of these lengths. */
const precompiled = (...lengths) => {
  const bytes = [4, 0, 0, 0, 0, 0, 0, 0, ...lengths.flatMap((length) => [...new Array(length).fill(97), 0])];
  return { type: "Precompiled", precompiled_charsmap: btoa(String.fromCharCode(...bytes)) };
};
const mark = (replacement, prepend_scheme = "always") => ({ type: "Metaspace", replacement, prepend_scheme, split: false });

// within a bound, beyond it, and the error's message
const BOUNDS = {
  "the largest id": [bpe({ a: 2 ** 24 - 1 }), bpe({ a: 2 ** 24 }), /token ids in 0/],
  "an id that would fill an array": [bpe({ a: 0 }), bpe({ a: 0, b: 2147483646 }), /token ids in 0/],
  "ids of a vocabulary": [bpe({ a: 5, b: 7 }), bpe({ a: 0, b: 0, c: 0 }), /pieces with different ids; received one id for two/],
  "a piece of BPE": [bpe({ ["x".repeat(4096)]: 0 }), bpe({ ["x".repeat(4097)]: 0 }), /4096 bytes of a piece/],
  "a piece of BPE in bytes": [bpe({ ["é".repeat(2048)]: 0 }), bpe({ [`${"é".repeat(2048)}x`]: 0 }), /4096 bytes of a piece/],
  "a piece of Unigram": [unigram("x".repeat(256)), unigram("é".repeat(129)), /256 bytes of a piece/],
  "added tokens": [added(...many(65536, (n) => `<${n}>`)), added(...many(65537, (n) => `<${n}>`)), /65536 added tokens/],
  "an added token": [added("x".repeat(1024)), added("x".repeat(1025)), /1024 bytes of an added token/],
  "an added token, normalized": [
    { ...growing(added("a".repeat(10))), normalizer: replace("a", "b".repeat(102)) },
    { ...growing(added("a".repeat(11))), normalizer: replace("a", "b".repeat(102)) }, /1024 bytes of an added token, normalized/,
  ],
  "all added tokens": [
    added(...many(4096, (n) => String(n).padEnd(1024, "x"))), added(...many(4097, (n) => String(n).padEnd(1024, "x"))), /4194304 bytes of all added/,
  ],
  "all added tokens, grown": [
    { ...growing(added(...many(4, (n) => String(n).padEnd(256, "x")))), normalizer: replace("abc", "b".repeat(256)) },
    { ...growing(added(...many(2000, (n) => String(n).padEnd(200, "x")))), normalizer: replace("a", "b".repeat(100)) }, /4194304 bytes of all added/,
  ],
  "parts of a normalizer": [normalizers(...many(63, () => ({ type: "Strip" }))), normalizers(...many(64, () => ({ type: "Strip" }))), /64 parts of a normalizer/],
  "parts of a decoder": [decoders(...many(63, () => ({ type: "Fuse" }))), decoders(...many(64, () => ({ type: "Fuse" }))), /64 parts of a decoder/],
  "a pattern": [normalizers(replace("x".repeat(256), "")), normalizers(replace("x".repeat(257), "")), /256 bytes in one place of a Replace/],
  "a pattern that is not empty": [normalizers(replace("x", "")), normalizers(replace("", "x")), /a Replace that is not empty/],
  "what is prepended": [normalizers({ type: "Prepend", prepend: "é".repeat(128) }), normalizers({ type: "Prepend", prepend: "é".repeat(129) }), /256 bytes in one place/],
  "the mark of a Metaspace": [pretokenizers(mark("▁")), pretokenizers(mark("ab")), /one character in a Metaspace/],
  "what a decoder strips": [
    decoders({ type: "Strip", content: "😀", start: 1, stop: 0 }), decoders({ type: "Strip", content: "ab", start: 1, stop: 0 }), /one character in a Strip/,
  ],
  "growth of a normalizer": [normalizers(replace("a", "b".repeat(64)), replace("b", "c".repeat(64))), normalizers(replace("a", "b".repeat(64)), replace("b", "c".repeat(65))), /4096 bytes for one from a normalizer/],
  "growth by what is prepended": [
    normalizers({ type: "Prepend", prepend: "a".repeat(15) }, replace("a", "b".repeat(256))),
    normalizers({ type: "Prepend", prepend: "a".repeat(16) }, replace("a", "b".repeat(256))), /4096 bytes for one/,
  ],
  "growth of forms": [normalizers(...many(3, () => ({ type: "NFKC" }))), normalizers(...many(4, () => ({ type: "NFKD" }))), /4096 bytes for one/],
  "growth by a map of characters": [normalizers(precompiled(3, 4096, 1)), normalizers(precompiled(3, 4097)), /4096 bytes for one/],
  "growth of a pre-tokenizer": [pretokenizers(mark("a"), mark("b"), mark("c"), mark("d"), mark("e"), mark("f")), pretokenizers(mark("▁"), mark("▂"), mark("▃")), /64 bytes for one from a pre_tokenizer/],
  "growth of a decoder": [decoders(replace("a", "b".repeat(64))), decoders(replace("a", "b".repeat(65))), /64 bytes for one from a decoder/],
  "ids that are inserted": [inserting(256), inserting(257), /256 ids that a post_processor inserts/],
  "the text in a template": [
    inserting(1), { post_processor: { type: "TemplateProcessing", single: [], special_tokens: {} } }, /one text/,
  ],
  "the id of an added token": [added("<x>"), { added_tokens: [{ id: COUNT + 1, content: "<x>" }] }, new RegExp(`expected ${COUNT} as the id of the added token <x>; received ${COUNT + 1}`)],
  "the id of an added piece": [{ added_tokens: [{ id: 3, content: "d" }] }, { added_tokens: [{ id: COUNT, content: "d" }] }, /expected 3 as the id/],
  "an added token's own id": [bpe({ a: 0 }), { ...bpe({ a: 1 }), added_tokens: [{ id: 1, content: "<x>" }] }, /one id for a piece and an added token/],
};
for (const [what, [within, past, said]] of Object.entries(BOUNDS)) {
  test(`${what}: taken up to the bound, refused past it`, async () => {
    made(within);
    await refused(() => made(past), "tokenizer", said);
  });
}

test("a tokenizer.json that would grow to all memory, in 0.65 MB and in 21 kB", async () => {
  const twice = normalizers(replace("a", "b".repeat(100)), replace("b", "c".repeat(100)));
  for (const [count, said] of [[2000, /4096 bytes for one/], [60, /4096 bytes for one/]]) {
    await refused(() => made({ ...twice, ...growing(added(...many(count, (n) => `${n}`.padEnd(200, "a")))) }), "tokenizer", said);
  }
});

test("a template that names a long list of ids many times", async () => {
  const single = [...many(1e5, () => ({ SpecialToken: { id: "x" } })), { Sequence: { id: "A" } }];
  const processor = { type: "TemplateProcessing", single, special_tokens: { x: { ids: many(1e5, () => 1) } } };
  await refused(() => made({ post_processor: processor }), "tokenizer", /256 ids/);
});

test("an added token with an empty content is skipped, and one that is there twice has one id", () => {
  const tokens = [{ id: 99, content: "" }, { id: COUNT, content: "<x>", normalized: false }, { id: COUNT, content: "<x>", normalized: false }];
  assert.deepEqual(made({ added_tokens: tokens }).encode("a<x>"), [0, COUNT]);
});

test("ids far apart take no memory between them", () => {
  const tokenizer = made(bpe({ a: 0, b: 2 ** 24 - 1 }));
  assert.deepEqual(tokenizer.encode("ab"), [0, 2 ** 24 - 1]);
  assert.equal(tokenizer.decode([2 ** 24 - 1, 5, 0]), "ba");
});

test("half a character in a tokenizer.json is refused", async () => {
  for (const half of ['"\\ud800"', '"\\uDC00x"', '"\\\\\\ud83d"', '"\ud800"']) {
    await refused(() => new Tokenizer(JSON.stringify({ ...plain, note: "HERE" }).replace('"HERE"', () => half)), "tokenizer", /half a character/);
  }
  for (const whole of ['"\\ud83d\\ude00"', '"\\\\ud800"']) new Tokenizer(JSON.stringify({ ...plain, note: "HERE" }).replace('"HERE"', () => whole));
});

test("a text costs a Unigram the bytes of its longest piece: of 256 it may grow 4 times, and a short one to 64 KiB", async () => {
  const growing = made({ ...unigram("b", ...many(256, (n) => "a".repeat(n + 1))), ...normalizers(...many(5, () => replace("a", "aa"))) });
  assert.equal(growing.encode("a".repeat(2048)).length, 256);
  assert.equal(growing.encode("a".repeat(3000) + "b".repeat(29000)).length, 29375);
  await refused(() => growing.encode("a".repeat(2049)), "tokenizer", /at most 65536 bytes that reach the model/);
  await refused(() => growing.encode("a".repeat(32768)), "tokenizer", /at most 131072 bytes that reach the model/);
});

test("a tokenizer.json of more than 32 MiB, of characters of two bytes", async () => {
  const text = JSON.stringify({ ...plain, version: "\u00e9".repeat(2 ** 24) });
  assert.ok(text.length < 2 ** 25);
  await refused(() => new Tokenizer(text), "tokenizer", /at most 33554432 bytes/);
});

test("a text of more than 64 MiB, and one that grows to more", async () => {
  const most = 2 ** 26, tokenizer = (change) => made({ model: { ...unigram().model, byte_fallback: false }, ...change });
  await refused(() => tokenizer({}).encode("a".repeat(most + 1)), "tokenizer", /67108864 bytes of a text/);
  await refused(() => tokenizer({}).encode("é".repeat(most / 2 + 1)), "tokenizer", /67108864 bytes of a text/);
  const large = "a".repeat(2 ** 20 + 1);
  await refused(() => tokenizer({ normalizer: replace("a", "b".repeat(64)) }).encode(large), "tokenizer", /67108864 bytes/);
  await refused(() => tokenizer({ normalizer: { type: "NFKC" } }).encode("\ufdfa".repeat(2 ** 21)), "tokenizer", /67108864 bytes/);
  const decoding = made({ ...bpe({ ["a".repeat(4096)]: 0 }), decoder: replace("a", "b".repeat(64)) });
  await refused(() => decoding.decode(new Array(257).fill(0)), "tokenizer", /67108864 bytes/);
  assert.equal(decoding.decode(new Array(3).fill(0)).length, 3 * 4096 * 64);
});

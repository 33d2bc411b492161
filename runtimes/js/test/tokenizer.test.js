/** Untrusted tokenizers: unknown parts are refused by name, and nothing grows without bound. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { Decoder, Tokenizer } from "../src/index.js";
import { golden, refused } from "./files.js";

const letters = "abcdefghij ".split("");
const plain = {
  added_tokens: [{ id: 11, content: "<end>", special: true }],
  normalizer: null, pre_tokenizer: null, decoder: { type: "Fuse" }, post_processor: null,
  model: { type: "BPE", vocab: Object.fromEntries(letters.map((letter, id) => [letter, id])), merges: [] },
};
const made = (change, bos = null) => new Tokenizer(JSON.stringify({ ...plain, ...change }), bos);

test("text and tokens", () => {
  const tokenizer = made({});
  assert.deepEqual(tokenizer.encode("bad<end> cab"), [1, 0, 3, 11, 10, 2, 0, 1]);
  assert.equal(tokenizer.decode([1, 0, 3, 11, 10, 2]), "bad c");
  assert.equal(tokenizer.decode([]), "");
});

// from the Rust library: such a token is found and decoded in its normalized form
const added = [
  { id: 11, content: "ab", normalized: true }, { id: 12, content: "xb", normalized: false },
  { id: 13, content: "c x", normalized: true, single_word: true }, { id: 14, content: "xj", normalized: true, lstrip: true },
];
const longer = { normalizer: { type: "Replace", pattern: { String: "x" }, content: "de" }, added_tokens: added };
for (const [text, tokens, decoded] of [
  ["cabxb", [2, 11, 12], "cabxb"], ["xab dexb", [3, 4, 11, 10, 3, 4, 12], "deab dexb"], ["c x", [13], "c de"], ["c de", [13], "c de"],
  ["ac x", [0, 2, 10, 3, 4], "ac de"], ["ba  xj", [1, 0, 14], "badej"], ["a dej xj", [0, 14, 14], "adejdej"], ["xxb", [3, 4, 12], "dexb"],
]) {
  test(`added tokens that are normalized: ${text}`, () => {
    assert.deepEqual(made(longer).encode(text), tokens);
    assert.equal(made(longer).decode(tokens), decoded);
  });
}

test("of two added tokens that are normalized to one text, the first is found", () => {
  const two = [{ id: 11, content: "x", normalized: true }, { id: 12, content: "de", normalized: true }];
  assert.deepEqual(made({ ...longer, added_tokens: two }).encode("de x"), [11, 10, 11]);
});

test("runs of unknown letters, and pieces, that surfaces has", async () => {
  const vocab = [["<unk>", 0], ["a", -1], ["b", -2], ["\uffff £", -2], ["\uffff 袁鸠", -2], ["ab", -1.5]];
  const model = { type: "Unigram", unk_id: 0, vocab, surfaces: { "£": 3, "袁鸠": 4, ab: 0 } };
  const tokenizer = made({ model, added_tokens: [] });
  assert.deepEqual(tokenizer.encode("a£b££ba袁鸠aba袁"), [1, 3, 2, 0, 2, 1, 4, 0, 1, 0]);
  for (const surfaces of [{ "£": 6 }, { "£": -1 }, { "£": "3" }, ["£"]]) {
    await refused(() => made({ model: { ...model, surfaces }, added_tokens: [] }), "tokenizer", /surfaces that are tokens/);
  }
});

test("an empty text is the BOS token, or refused", async () => {
  assert.deepEqual(made({}, 11).encode(""), [11]);
  await refused(() => made({}).encode(""), "tokenizer", /without a BOS token/);
});

test("texts that are no UTF-8, and no texts", async () => {
  for (const text of ["\ud800", "a\udc00b", 7, null]) await refused(() => made({}).encode(text), "tokenizer", /expected text in UTF-8/);
});

const unknown = {
  "WordPiece": { model: { type: "WordPiece", vocab: {} } },
  "dropout 0.1": { model: { ...plain.model, dropout: 0.1 } },
  "BertNormalizer": { normalizer: { type: "BertNormalizer" } },
  "FixedLength": { pre_tokenizer: { type: "Sequence", pretokenizers: [{ type: "FixedLength", length: 2 }] } },
  "CTC": { decoder: { type: "CTC" } },
  "BertProcessing": { post_processor: { type: "BertProcessing" } },
  "\\(a\\+\\)\\+\\$": { pre_tokenizer: { type: "Split", pattern: { Regex: "(a+)+$" }, behavior: "Isolated" } },
  "Sometimes": { pre_tokenizer: { type: "Split", pattern: { String: "a" }, behavior: "Sometimes" } },
};
for (const [name, change] of Object.entries(unknown)) {
  test(`${name} is refused by name`, () => refused(() => made(change), "tokenizer", new RegExp(`received .*${name}`)));
}

test("a step with and without a count of one is the same step", () => {
  const cut = made({ pre_tokenizer: { type: "Split", pattern: { Regex: "a{1}b*c|ab+" }, behavior: "Isolated" } });
  assert.deepEqual(cut.encode("ab"), [0, 1]);
});

const nested = (depth) => {
  let part = { type: "NFC" };
  for (let n = 0; n < depth; n++) part = { type: "Sequence", normalizers: [part] };
  return part;
};
const growing = Array.from({ length: 20 }, () => ({ type: "Replace", pattern: { String: "a" }, content: "aa" }));
const cut = (count) => ({ single: Array.from({ length: count }, () => ({ SpecialToken: { id: "x" } })), special_tokens: { x: { ids: [1] } } });
const strange = {
  "parts nested 64 deep": { normalizer: nested(64) },
  "300 parts": { normalizer: { type: "Sequence", normalizers: Array.from({ length: 300 }, () => ({ type: "NFC" })) } },
  "parts that double a text 20 times": { normalizer: { type: "Sequence", normalizers: growing } },
  "a long insertion": { normalizer: { type: "Prepend", prepend: "x".repeat(257) } },
  "merges of strangers": { model: { ...plain.model, merges: [["x", "y"]] } },
  "merges that are none": { model: { ...plain.model, merges: [7] } },
  "a vocabulary of texts": { model: { ...plain.model, vocab: { a: "b" } } },
  "a template that is too long": { post_processor: { type: "TemplateProcessing", ...cut(65) } },
  "a template of unknown tokens": { post_processor: { type: "TemplateProcessing", single: [{ SpecialToken: { id: "y" } }], special_tokens: {} } },
  "an added token without a text": { added_tokens: [{ id: 3 }] },
  "a map of characters that is cut off": { normalizer: { type: "Precompiled", precompiled_charsmap: btoa("\xff\xff\xff\xff") } },
};
for (const [name, change] of Object.entries(strange)) {
  test(`refused: ${name}`, () => refused(() => made(change), "tokenizer"));
}

test("no JSON, and JSON nested 10,000 deep", async () => {
  await refused(() => new Tokenizer("{"), "tokenizer", /the text of a tokenizer\.json/);
  await refused(() => new Tokenizer("[".repeat(10000) + "]".repeat(10000)), "tokenizer");
  await refused(() => new Tokenizer(`{"model": ${"[".repeat(10000)}${"]".repeat(10000)}}`), "tokenizer");
});

test("160,000 merges", () => {
  const vocab = {}, merges = [], names = Array.from({ length: 400 }, (_, n) => `${String.fromCodePoint(0x4e00 + n)}`);
  names.forEach((name, id) => (vocab[name] = id));
  for (const left of names) for (const right of names) {
    vocab[left + right] = names.length + merges.length;
    merges.push([left, right]);
  }
  const tokenizer = made({ model: { type: "BPE", vocab, merges }, added_tokens: [] });
  assert.deepEqual(tokenizer.encode(names[0] + names[5]), [405]);
});

test("punctuation of Unicode 8 that is none any more", () => {
  for (const sign of ["\u166d", "\u{111c9}", "!"]) {
    const model = { type: "BPE", vocab: { a: 0, [sign]: 1, [`a${sign}`]: 2 }, merges: [["a", sign]] };
    const part = { type: "Punctuation", behavior: "Isolated" };
    assert.deepEqual(made({ model, added_tokens: [] }).encode(`a${sign}`), [2]);
    assert.deepEqual(made({ model, added_tokens: [], pre_tokenizer: part }).encode(`a${sign}`), [0, 1]);
  }
});

test("a graph opens whatever its tokenizer is", async () => {
  const decoder = await Decoder.open(golden("tiny.onnx"));
  await refused(() => decoder.tokenizer(), "tokenizer", /a graph with a tokenizer in it; received one without/);
  await decoder.close();
});

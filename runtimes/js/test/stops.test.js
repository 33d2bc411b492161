/** Stop texts of a stream, checked against the whole text. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { Decoder } from "../src/index.js";
import { Until } from "../src/until.js";
import { golden, random, refused } from "./files.js";

const LETTERS = [..."abé€🎉 \n"];

/** A text cut before the first stop that completes, the longest on ties. */
function cut(text, stops) {
  for (let end = 1; end <= text.length; end++) {
    const ended = stops.filter((stop) => text.slice(0, end).endsWith(stop)).map(({ length }) => length);
    if (ended.length) return text.slice(0, end - Math.max(...ended));
  }
  return text;
}

test("pieces of any length, and stops that overlap or begin in vain", () => {
  const chance = random(7), upTo = (most) => 1 + Math.floor(chance() * most);
  const made = (most) => Array.from({ length: upTo(most) }, () => LETTERS[Math.floor(chance() * LETTERS.length)]);
  let found = 0;
  for (let n = 0; n < 2000; n++) {
    const letters = made(30), stops = Array.from({ length: upTo(4) - 1 }, () => made(4).join("")), until = new Until(stops);
    let given = "";
    for (let at = 0; at < letters.length; ) {
      const piece = letters.slice(at, (at += upTo(5))).join(""), before = until.found, fresh = until.feed(piece);
      assert.ok(!before || fresh === "");
      given += fresh;
    }
    given += until.end();
    assert.equal(given, cut(letters.join(""), stops), JSON.stringify([letters, stops]));
    assert.equal(until.found, given !== letters.join(""));
    found += until.found;
  }
  assert.ok(found > 500 && found < 1900, `${found}`);
});

test("a long stop that is held back costs no more with others beside it", (context) => {
  let looks = 0;
  for (const name of ["charCodeAt", "endsWith", "indexOf"]) {
    const right = String.prototype[name];
    context.mock.method(String.prototype, name, function (...given) {
      looks++;
      return right.apply(this, given);
    });
  }
  const letters = "a".repeat(999) + "b", until = new Until([..."abcdefghi"].map((letter) => letter.repeat(1000)));
  let given = "";
  for (let at = 0; at < letters.length; at++) given += until.feed(letters[at]);
  assert.equal(given + until.end(), letters);
  assert.ok(looks < 6 * 9 * letters.length, `${looks}`);
});

test("a stream ends before a stop, of tokens that are parts of characters too", async () => {
  const decoder = await Decoder.open(golden("bytes.onnx")), tokenizer = decoder.tokenizer();
  const tokens = tokenizer.encode("Once upon été a time", { specialTokens: false });
  const text = tokenizer.stream();
  text.stopAt(["é a", "nowhere"]);
  assert.equal(tokens.map((token) => text.feed(token)).join("") + text.end(), "Once upon ét");
  assert.ok(text.stopped);
  const whole = tokenizer.stream();
  whole.stopAt(["time!"]);
  assert.equal(tokens.map((token) => whole.feed(token)).join(""), "Once upon été a ", "what may begin a stop waits");
  assert.equal(whole.end(), "time");
  assert.ok(!whole.stopped);
  const changed = tokenizer.stream(); // other stops keep what was held back
  changed.stopAt(["Onward"]);
  for (const token of tokens.slice(0, 2)) assert.equal(changed.feed(token), "");
  await refused(() => changed.stopAt([""]), "argument");
  changed.stopAt(["upon"]);
  assert.equal(tokens.slice(2).map((token) => changed.feed(token)).join("") + changed.end(), "Once ");
  for (const stops of [[""], [3], ["a".repeat(1025)], new Array(257).fill("a"), "a", null]) await refused(() => whole.stopAt(stops), "argument");
  await decoder.close();
});

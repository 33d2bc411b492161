/** Numbers of texts, and their spellings, are those of the contract. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { numbers, spellings } from "../src/numbers.js";

test("an hour of two digits is a time", () => {
  for (const [text, spelled] of [["09 Uhr", "9:00"], ["00 Uhr", "12 a.m"], ["17", "5 p.m"]]) assert.ok(spellings(numbers(text)[0]).includes(spelled), text);
});

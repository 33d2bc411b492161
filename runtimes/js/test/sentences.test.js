/** Sentences of texts are those of the contract. */

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { test } from "node:test";

import { splitSentences } from "../src/index.js";
import { golden } from "./files.js";

test("golden sentences", async () => {
  for (const [text, sentences] of JSON.parse(await readFile(golden("sentences.json"), "utf8"))) assert.deepEqual(splitSentences(text), sentences);
});

/** Every button of the page, pressed as users do; odd texts; and hosts that send no headers and cache nothing. */

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { basename, dirname, join } from "node:path";
import { after, before, test } from "node:test";

import { done, launch, settings, trouble, visitIn, written } from "./page.js";

const web = process.env.T2R_WEB;
assert.ok(web, "T2R_WEB names a packed folder: run `make test-js`");
let browser;
before(async () => (browser = await launch()));
after(() => browser.close());

const visited = (options, work) => visitIn(browser, web, options, work);
const gone = (response) => response.writeHead(404).end();

test("every button, twice", async () => {
  await visited({}, async ({ page, errors }) => {
    await settings(page, { temperature: 0.6, tokens: 4 });
    const count = await page.locator("button").count();
    for (let n = 0; n < count; n++) {
      await page.locator("button").nth(n).evaluate((button) => (button.click(), button.click()));
      await page.waitForTimeout(50);
      await page.keyboard.press("Escape"); // a race is long
      await done(page);
      assert.equal(await trouble(page), "", await page.locator("button").nth(n).textContent());
    }
    await settings(page, { temperature: 0, tokens: 8 });
    await written(page, "Once upon a time"); // Escape may have come before the last story began
    assert.match(await written(page, "Then a dragon came"), / Then a dragon came/, "a word of its own");
    await page.click("#new");
    assert.match(await written(page, "Once upon a time"), /^Once upon a time, there was a little girl/);
    assert.deepEqual(errors, []);
  });
});

test("an example begins a story, Write goes on with it, the dice tell another, Clear forgets it", async () => {
  await visited({}, async ({ page }) => {
    await settings(page, { temperature: 1, tokens: 30 });
    await page.click(".chip >> nth=1");
    await done(page);
    const first = await page.textContent("#story");
    assert.match(first, /^Lily found a key./);
    const more = await written(page);
    assert.ok(more.startsWith(first) && more.length > first.length);
    await page.fill("#prompt", "and then");
    const seed = await page.inputValue("#seed");
    const other = await written(page, undefined, "#dice");
    assert.ok(other.startsWith("Lily found a key") && !other.startsWith(first), other);
    assert.notEqual(await page.inputValue("#seed"), seed);
    assert.equal(await page.inputValue("#prompt"), "and then", "what was being typed stays");
    await page.click("#new");
    await done(page);
    assert.deepEqual([await page.textContent("#story"), await page.textContent("#numbers")], ["", "memory 606.2 kB, softmax would hold 0 bytes, after 0 tokens"]);
    assert.equal(await page.textContent("#question"), "How does the story begin?");
  });
});

test("a screen reader hears whole sentences", async () => {
  await visited({}, async ({ page }) => {
    await settings(page, { temperature: 0, tokens: 60 });
    await page.evaluate(() => {
      globalThis.heard = [];
      const keep = (changes) => globalThis.heard.push(...changes.flatMap(({ addedNodes }) => [...addedNodes].map((node) => node.textContent)));
      new MutationObserver(keep).observe(document.getElementById("spoken"), { childList: true, subtree: true, characterData: true });
    });
    const story = await written(page, "Once upon a time");
    const heard = await page.evaluate(() => globalThis.heard);
    assert.ok(heard.length >= 3, heard.join("|"));
    for (const sentence of heard.slice(0, -1)) assert.match(sentence, /[.!?]["']?$/);
    assert.equal(`Once upon a time${heard.join(" ")}`.replace(/\s+/g, ""), story.replace(/\s+/g, ""));
    assert.equal(await page.locator("#story [aria-live], #story[aria-live], #story[role=log]").count(), 0);
  });
});

test("odd texts are read, and 100 kB can be stopped", async () => {
  await visited({}, async ({ page, errors }) => {
    await settings(page, { temperature: 0, tokens: 3 });
    for (const text of ["🙂👩‍👩‍👧 é", "\u0000\u202e<b>&amp;", "\n\n\n", "ẞ中文", "\ud800 half"]) {
      await page.evaluate((given) => (document.getElementById("prompt").value = given), text);
      await written(page);
      assert.equal(await trouble(page), "", text);
    }
    await page.evaluate(() => (document.getElementById("prompt").value = "Once upon a time ".repeat(6000)));
    await page.click("#write");
    await page.waitForFunction(() => /^Reading: \d/.test(document.getElementById("status").textContent));
    await page.keyboard.press("Escape");
    await done(page);
    assert.equal(await trouble(page), "");
    assert.match(await page.textContent("#status"), /^Stopped: \d[\d,]* tokens of the text were not read\.$/);
    await written(page, "The end");
    await page.evaluate(() => (document.getElementById("prompt").value = "x".repeat(200_001)));
    await written(page);
    assert.match(await trouble(page), /^This text is too long for this page\./);
    await page.evaluate(() => (document.getElementById("prompt").value = "中文".repeat(100_000))); // a token a byte
    await page.click("#write");
    await page.waitForFunction(() => /^Reading: \d/.test(document.getElementById("status").textContent));
    await page.click("#write");
    await done(page);
    assert.deepEqual([await trouble(page), errors], ["", []]);
  });
});

test("a setting out of its range is named, and nothing that was typed is lost", async () => {
  await visited({}, async ({ page }) => {
    await settings(page, { temperature: 0, tokens: 4 });
    const story = await written(page);
    await page.fill("#prompt", "my words");
    const seed = await page.inputValue("#seed");
    for (const button of ["#write", "#dice", ".chip >> nth=1"]) {
      await settings(page, { tokens: 0 });
      await page.click(button);
      await done(page);
      assert.equal(await trouble(page), "Length is a whole number from 1 to 100,000. Correct it, and try again.");
      assert.equal(await page.evaluate(() => document.activeElement.id), "tokens");
      assert.deepEqual([await page.inputValue("#prompt"), await page.inputValue("#seed")], ["my words", seed], button);
      assert.equal(await page.textContent("#story"), story);
    }
    await settings(page, { tokens: 4, seed: -1 });
    await page.click("#write");
    await done(page);
    assert.match(await trouble(page), /^Dice is a whole number from 0 to 4,294,967,295\./);
    await settings(page, { seed });
    for (const button of ["#dice", ".chip >> nth=1", "#new"]) {
      await page.click(button);
      await done(page);
      assert.equal(await page.inputValue("#prompt"), "my words", button);
    }
    assert.match(await written(page), /^my words/);
    assert.equal(await page.inputValue("#prompt"), "");
  });
});

test("the plots show one text, after a race and after a file too", async () => {
  await visited({}, async ({ page }) => {
    /** The positions of a plot's points, from left to right as they came. */
    const across = () => page.$$eval("#memory polyline", (lines) =>
      lines.map((line) => line.getAttribute("points").split(" ").filter(Boolean).map((point) => Number(point.split(",")[0]))));
    await settings(page, { temperature: 0, tokens: 9 });
    await written(page);
    await page.click("#race");
    await page.waitForFunction(() => document.getElementById("peer-lane").value > 60);
    await page.keyboard.press("Escape");
    await done(page);
    await written(page);
    await page.waitForFunction(() => document.querySelector("#memory polyline.ours")?.points.length === 18);
    for (const line of await across()) assert.deepEqual(line, line.toSorted((a, b) => a - b));
    const [file] = await Promise.all([page.waitForEvent("download"), page.click("#save")]);
    await page.setInputFiles("#load", await file.path());
    await done(page);
    assert.ok(await page.isHidden("#cost"), "there is nothing to plot yet");
    assert.equal(await page.textContent("#question"), "What happens next?");
  });
});

test("a folder on a host that sends no headers, in a browser that keeps nothing: one thread", async () => {
  const query = `${encodeURIComponent(basename(web))}/`;
  await visitIn(browser, dirname(web), { query, serviceWorkers: "block" }, async ({ page, strangers }) => {
    assert.equal(await page.getAttribute("#status", "data-way"), "wasm");
    assert.match(await page.textContent("#about-way"), /one thread/);
    await settings(page, { temperature: 0, tokens: 8 });
    assert.match(await written(page, "Once upon a time"), /^Once upon a time, there was a little girl/);
    assert.deepEqual(strangers, []);
  });
});

test("sentences where parts of the page are missing or are something else", async () => {
  const html = (response) => response.writeHead(200, { "Content-Type": "text/html" }).end("<title>welcome</title>");
  const faults = [
    ["/files.json", html, /^The list of this page's files is damaged\./],
    ["/worker.js", gone, /^A part of this page could not be fetched\. Check the connection/],
    ["/t2r/index.js", gone, /^A part of this page could not be fetched\./],
    ["/vendor/ort-wasm-simd-threaded.wasm", gone, /^A part of this page could not be fetched\./],
    ["/vendor/ort-wasm-simd-threaded.wasm", html, /^A part of this page could not be fetched\./],
    ["/vendor/ort.wasm.bundle.min.mjs", gone, /^A part of this page could not be fetched\./],
  ];
  for (const [path, answer, expected] of faults) {
    await visited({ answers: { [path]: answer }, serviceWorkers: "block" }, async ({ page }) => {
      assert.match(await trouble(page), expected, path);
      assert.equal(await page.getAttribute("#write", "aria-disabled"), "true");
    });
  }
});

test("every kind of error has a sentence of its own or the general one, and none shows code", async () => {
  await visited({}, async ({ page }) => {
    const said = await page.evaluate(async () => {
      const [{ sentence }, { KINDS }] = [await import("./sentences.js"), await import("./t2r/errors.js")];
      return [...KINDS, "other", undefined].map((kind) => sentence({ kind, message: "undefined is not a function" }));
    });
    for (const one of said) assert.match(one, /^[A-Z][^{}<>]*\.$/);
  });
});

test("where less motion is wanted, nothing moves", async () => {
  await visited({ reducedMotion: "reduce" }, async ({ page }) => {
    await settings(page, { temperature: 0, tokens: 8 });
    assert.match(await written(page, "Once upon a time"), /^Once upon a time, there was a little girl/);
    assert.equal(await page.evaluate(() => getComputedStyle(document.getElementById("story"), "::after").animationName), "none");
  });
});

test("the picture for those who share the page is there, of the size that the page says", async () => {
  const bytes = await readFile(join(web, "card.png"));
  assert.equal(bytes.toString("latin1", 1, 4), "PNG");
  await visited({}, async ({ page }) => {
    const said = (name) => page.getAttribute(`meta[property="og:image${name}"]`, "content");
    assert.deepEqual([await said(":width"), await said(":height")], [bytes.readUInt32BE(16), bytes.readUInt32BE(20)].map(String));
    assert.equal(await said(""), "card.png");
  });
});

/** The translator's page, as a visitor sees it: $T2R_WEB/translate, beside translated.txt. */

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { after, before, test } from "node:test";

import { done, launch, nobodyShutOut, settings, trouble, visitIn } from "./page.js";

assert.ok(process.env.T2R_WEB, "T2R_WEB names a packed folder: run `make test-js`");
const web = join(process.env.T2R_WEB, "translate");
let browser;
before(async () => (browser = await launch()));
after(() => browser.close());

const visited = (options, work) => visitIn(browser, web, options, work);

async function translated(page, source) {
  if (source !== undefined) await page.fill("#source", source);
  await page.click("#write");
  await done(page);
  return page.locator("#target span").allTextContents();
}

const sources = (page) => page.locator("#each .from").allTextContents();

test("the translations are Python's, one text to copy, others can be chosen, and nobody else is asked", async () => {
  const expected = (await readFile(join(dirname(process.env.T2R_WEB), "translated.txt"), "utf8")).split("\n");
  await visited({ permissions: ["clipboard-read", "clipboard-write"] }, async ({ page, visitor, strangers, errors, open }) => {
    assert.deepEqual(await translated(page), expected);
    assert.equal(await page.textContent("#target"), expected.join("\n"), "joined as the sentences were");
    await page.locator("#others summary").click();
    const other = page.locator("#each li").first().locator("button").nth(1);
    const text = await other.textContent();
    await other.click();
    assert.equal(await other.getAttribute("aria-pressed"), "true");
    assert.equal(await page.textContent("#target"), [text, ...expected.slice(1)].join("\n"));
    await page.click("#copy");
    await page.waitForFunction(() => document.getElementById("numbers").textContent === "Copied.");
    assert.equal(await page.evaluate(() => navigator.clipboard.readText()), [text, ...expected.slice(1)].join("\n"));
    assert.deepEqual([strangers, errors], [[], []]);
    await page.reload();
    await page.waitForFunction(() => document.getElementById("status").dataset.way);
    await translated(page, "Danke.");
    await visitor.setOffline(true);
    await open();
    assert.deepEqual(await translated(page), expected, "without a net");
  });
});

test("a sentence where the file of weights is not there", async () => {
  const list = JSON.parse(await readFile(join(web, "files.json"), "utf8"));
  const weights = list.files.find(({ name }) => name.startsWith(`${list.graph}.`) && name.endsWith(".data")).name;
  await visited({ answers: { [`/${weights}`]: (response) => response.writeHead(404).end() } }, async ({ page }) => {
    assert.match(await trouble(page), /^A file of the model's weights is missing\./);
  });
});

test("one beam, no text, and a text that is too long", async () => {
  await visited({}, async ({ page }) => {
    await settings(page, {});
    await page.selectOption("#width", "1");
    assert.equal((await translated(page, "Wo ist der Bahnhof?")).length, 1);
    assert.equal(await page.locator("#each button").count(), 1, "no alternatives");
    assert.deepEqual(await translated(page, "\n \n"), []);
    assert.equal(await trouble(page), "");
    await translated(page, "Bahnhof ".repeat(600));
    assert.match(await trouble(page), /^(The text is as long as this model can take|)/);
    await translated(page, "Bahnhof ".repeat(12_500));
    assert.match(await trouble(page), /^This text is too long for this page\./);
  });
});

test("two sentences of a line are two, each beside its source, and odd text is no trouble", async () => {
  await visited({}, async ({ page, errors }) => {
    const two = await translated(page, "Wo ist der Bahnhof? Ich habe heute keine Zeit.");
    assert.equal(two.length, 2);
    assert.equal(await page.textContent("#target"), two.join(" "));
    assert.deepEqual(await sources(page), ["Wo ist der Bahnhof?", "Ich habe heute keine Zeit."]);
    await translated(page, "Ich wurde am 3.\nMärz 1987 geboren.\n\nUnd du");
    assert.deepEqual(await sources(page), ["Ich wurde am 3.\nMärz 1987 geboren.", "Und du"]);
    assert.match(await page.textContent("#target"), /\S\n\n\S/, "a paragraph stays one");
    await translated(page, "\ufeff🙂🙂 \u0000 \u202e ẞ");
    await page.evaluate(() => {
      for (const button of document.querySelectorAll("button, .chip")) button.click(), button.click();
    });
    await page.keyboard.press("Escape");
    await done(page);
    await page.click(".chip >> nth=1");
    await done(page);
    assert.deepEqual(await sources(page), ["Ich habe Hunger."]);
    await page.click("#new");
    assert.equal(await page.textContent("#target"), "");
    assert.deepEqual([await trouble(page), errors], ["", []]);
  });
});

test("what is typed stays, what is searched is in sight, and no translation is left under an error", async () => {
  await visited({}, async ({ page }) => {
    await page.click(".chip >> nth=1");
    await done(page);
    assert.equal(await page.inputValue("#source"), "Ich habe Hunger.", "instead of the examples");
    await page.fill("#source", "Ich sehe ein Haus.");
    await page.evaluate(() => {
      globalThis.seen = [];
      const keep = () => globalThis.seen.push(["status", "target"].map((id) => document.getElementById(id).textContent).join(" "));
      new MutationObserver(keep).observe(document.body, { childList: true, subtree: true, characterData: true });
    });
    await page.click(".chip >> nth=2");
    await done(page);
    const seen = await page.evaluate(() => globalThis.seen);
    assert.ok(seen.includes("Translating: sentence 1 of 1. Escape stops it. …"), seen.join("|"));
    assert.equal(await page.textContent("#status"), "Ready.");
    assert.equal(await page.inputValue("#source"), "Ich sehe ein Haus.");
    assert.match(await page.textContent("#target"), /^[^…]+$/);
    await translated(page, "Bahnhof ".repeat(12_500));
    assert.match(await trouble(page), /^This text is too long for this page\./);
    assert.deepEqual([await page.textContent("#target"), await page.isHidden("#others"), await page.textContent("#numbers")], ["", true, ""]);
  });
});

test("stop ends a search, and how far it is can be seen", async () => {
  await visited({}, async ({ page }) => {
    await settings(page, {});
    await page.selectOption("#width", "8");
    await page.fill("#source", "Ich habe heute keine Zeit.\n".repeat(50));
    await page.click("#write");
    await page.locator("#each li:nth-child(2)").waitFor({ state: "attached" });
    const { value, max } = await page.$eval("#far", ({ value, max }) => ({ value, max }));
    assert.deepEqual([value >= 2, max], [true, 50]);
    assert.equal(await page.textContent("#write"), "Stop");
    await page.click("#write");
    await done(page);
    assert.ok((await sources(page)).length < 50);
    assert.equal(await page.isHidden("#far"), true);
    assert.match(await page.textContent("#numbers"), /^\d+ of 50 sentences, /);
  });
});

for (const colorScheme of ["light", "dark"]) {
  test(`nobody is shut out, ${colorScheme}`, async () => {
    await visited({ colorScheme }, async ({ page }) => {
      await translated(page);
      await page.locator("#others summary").click();
      await nobodyShutOut(page, `translator-${colorScheme}`, () => page.$$eval("#write", (all) => all.map((one) => one.getBoundingClientRect().right)));
    });
  });
}

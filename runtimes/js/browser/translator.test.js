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
  return page.locator("#target li > p").allTextContents();
}

test("the translations are Python's, others can be chosen, and nobody else is asked", async () => {
  const expected = (await readFile(join(dirname(process.env.T2R_WEB), "translated.txt"), "utf8")).split("\n");
  await visited({}, async ({ page, visitor, strangers, errors, open }) => {
    assert.deepEqual(await translated(page), expected);
    await page.locator("#target summary").first().click();
    const other = page.locator("#target li").first().locator("button").nth(1);
    const text = await other.textContent();
    await other.click();
    assert.equal(await other.getAttribute("aria-pressed"), "true");
    assert.equal(await page.locator("#target li > p").first().textContent(), text);
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
    assert.equal(await page.locator("#target details").count(), 0);
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
    assert.equal((await translated(page, "Wo ist der Bahnhof? Ich habe heute keine Zeit.")).length, 2);
    assert.deepEqual(await page.locator("#target .from").allTextContents(), ["Wo ist der Bahnhof?", "Ich habe heute keine Zeit."]);
    await translated(page, "Ich wurde am 3.\nMärz 1987 geboren.\n\nUnd du");
    assert.deepEqual(await page.locator("#target .from").allTextContents(), ["Ich wurde am 3.\nMärz 1987 geboren.", "Und du"]);
    await translated(page, "\ufeff🙂🙂 \u0000 \u202e ẞ");
    await page.evaluate(() => {
      for (const button of document.querySelectorAll("button, .chip")) button.click(), button.click();
    });
    await page.keyboard.press("Escape");
    await done(page);
    await page.click(".chip >> nth=1");
    await done(page);
    assert.deepEqual(await page.locator("#target .from").allTextContents(), ["Ich habe Hunger."]);
    await page.click("#new");
    assert.equal(await page.locator("#target li").count(), 0);
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
    assert.ok(seen.includes("Translating: sentence 1 of 1. Stop or Escape ends it. Wie spät ist es?…"), seen.join("|"));
    assert.equal(await page.textContent("#status"), "Ready.");
    assert.equal(await page.inputValue("#source"), "Ich sehe ein Haus.");
    assert.notEqual(await page.textContent("#target li > p"), "…");
    await translated(page, "Bahnhof ".repeat(12_500));
    assert.match(await trouble(page), /^This text is too long for this page\./);
    assert.deepEqual([await page.locator("#target li").count(), await page.textContent("#numbers")], [0, ""]);
  });
});

test("stop ends a search", async () => {
  await visited({}, async ({ page }) => {
    await settings(page, {});
    await page.selectOption("#width", "8");
    await page.fill("#source", "Ich habe heute keine Zeit.\n".repeat(50));
    await page.click("#write");
    await page.locator("#target li:nth-child(2)").waitFor();
    await page.click("#stop");
    await done(page);
    assert.ok((await page.locator("#target li").count()) < 50);
  });
});

for (const colorScheme of ["light", "dark"]) {
  test(`nobody is shut out, ${colorScheme}`, async () => {
    await visited({ colorScheme }, async ({ page }) => {
      await translated(page);
      await page.locator("#target summary").first().click();
      await nobodyShutOut(page, `translator-${colorScheme}`, () => page.$$eval("#write", (all) => all.map((one) => one.getBoundingClientRect().right)));
    });
  });
}

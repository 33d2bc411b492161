/** What a visitor sees who has just opened the storyteller, and does nothing. */

import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { done, launch, settings, trouble, visitIn, written } from "./page.js";

const web = process.env.T2R_WEB;
assert.ok(web, "T2R_WEB names a packed folder: run `make test-js`");
let browser;
before(async () => (browser = await launch()));
after(() => browser.close());

const visited = (options, work) => visitIn(browser, web, { reducedMotion: "no-preference", ...options }, work);

for (const [width, height] of [[390, 844], [1280, 800]]) {
  test(`a story is being written, in sight at ${width} × ${height}`, async () => {
    await visited({ viewport: { width, height } }, async ({ page, errors }) => {
      await page.waitForFunction(() => document.getElementById("story").textContent.length > 100);
      const story = await page.textContent("#story");
      assert.match(story, /^Once upon a time, there was a/);
      for (const place of ["#story", "#write", "#numbers"]) {
        const box = await page.locator(place).boundingBox();
        assert.ok(box.y >= 0 && box.y + box.height <= height, `${place} is before the fold: ${JSON.stringify(box)}`);
      }
      const [, tokens] = /^memory 606\.2 kB, softmax would hold [\d.]+ [kM]B, after (\d+) tokens$/.exec(await page.textContent("#numbers"));
      assert.ok(Number(tokens) > 4);
      assert.equal(await page.textContent("#spoken"), "", "a screen reader is not talked to before it asks");
      assert.equal(await page.textContent("#write"), "Stop");
      await page.click("#write");
      await done(page);
      assert.equal(await page.textContent("#write"), "Write");
      assert.deepEqual([await page.isVisible("#cost"), await trouble(page), errors], [true, "", []]);
    });
  });
}

test("an example, or what is typed, takes the place of what is being written", async () => {
  await visited({}, async ({ page, errors }) => {
    const writes = (text) => page.waitForFunction((wanted) => document.getElementById("story").textContent.includes(wanted), text);
    await writes("Once upon a time, there");
    await settings(page, { temperature: 0, tokens: 100_000 });
    await page.click(".chip >> nth=1");
    await writes("Lily found a key");
    assert.ok(!(await page.textContent("#story")).includes("Once upon a time, there"));
    await page.waitForFunction(() => document.getElementById("story").textContent.length > 60);
    await page.fill("#prompt", "Then a dragon came");
    await page.keyboard.press("Enter");
    await writes("Then a dragon came");
    assert.match(await page.textContent("#story"), /^Lily found a key.+Then a dragon came/s);
    await page.evaluate(() => {
      for (const name of ["#dice", "#dice", ".chip:nth-child(3)"]) document.querySelector(name).click();
    });
    await writes("The dog was sad"); // the last press counts
    assert.match(await page.textContent("#story"), /^The dog was sad/);
    await page.click("#new");
    await done(page);
    assert.deepEqual([await page.textContent("#story"), await trouble(page), errors], ["", "", []]);
  });
});

test("it goes on by itself past the end of a story", async () => {
  await visited({ reducedMotion: "reduce" }, async ({ page }) => {
    await settings(page, { temperature: 0.6, tokens: 900, seed: 3 });
    const story = await written(page, "Once upon a time");
    const stories = story.split("* * *");
    assert.ok(stories.length >= 2 && stories.every((one) => one.trim().length > 100), story);
  });
});

test("it waits where less motion is wanted, and loads nothing before it is asked where the browser saves data", async () => {
  await visited({ reducedMotion: "reduce" }, async ({ page }) => {
    await done(page);
    assert.deepEqual([await page.textContent("#story"), await page.textContent("#write"), await page.isHidden("#cost")], ["", "Write", true]);
  });
  await visited({ wait: false, query: "none" }, async ({ page, visitor, address, asked }) => {
    await visitor.addInitScript(() => Object.defineProperty(navigator, "connection", { value: { saveData: true } }));
    await page.goto(`${address}?way=wasm`);
    await page.waitForFunction(() => /^Your browser saves data/.test(document.getElementById("status")?.textContent));
    assert.ok(!asked.some((path) => path.endsWith(".onnx")));
    await settings(page, { temperature: 0, tokens: 5 });
    await page.click("#write");
    await page.waitForFunction(() => document.getElementById("story").textContent.length > 20);
    await done(page);
    assert.match(await page.textContent("#story"), /^Once upon a time, there was/);
  });
});

/** What the page keeps for the next visit is never needed for this one: caches that are full or refused, and lists that do not come. */

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { after, before, test } from "node:test";

import { launch, settings, trouble, visitIn, written } from "./page.js";

const web = process.env.T2R_WEB;
assert.ok(web, "T2R_WEB names a packed folder: run `make test-js`");
let browser;
before(async () => (browser = await launch()));
after(() => browser.close());

const visited = (options, work) => visitIn(browser, web, options, work);
const ready = (page) =>
  page.waitForFunction(() => document.getElementById("status")?.dataset.way || document.getElementById("trouble")?.textContent);

/** The page writes, with and without a reload. */
async function writes({ page }) {
  for (let n = 0; n < 2; n++) {
    await ready(page);
    assert.equal(await trouble(page), "");
    await settings(page, { temperature: 0, tokens: 5 });
    assert.match(await written(page, "Once upon a time"), /^Once upon a time, there was/);
    if (!n) await page.reload();
  }
  assert.ok(await page.evaluate(() => navigator.serviceWorker.controller && globalThis.crossOriginIsolated), "by a service worker");
}

test("a full cache", async () => {
  await visited({ wait: false, query: "none" }, async (place) => {
    const { page, visitor, address } = place, session = await visitor.newCDPSession(page);
    await session.send("Storage.overrideQuotaForOrigin", { origin: address.slice(0, -1), quotaSize: 100_000 });
    await page.goto(`${address}?way=wasm`);
    await writes(place);
    const { graph } = JSON.parse(await readFile(join(web, "files.json"), "utf8"));
    const kept = await page.evaluate(async () => {
      const names = await caches.keys(), all = await Promise.all(names.map(async (name) => (await caches.open(name)).keys()));
      return all.flat().map(({ url }) => url);
    });
    assert.ok(!kept.some((url) => url.includes(`/${graph}?`)), "the model does not fit");
  });
});

test("a refused cache", async () => {
  const script = await readFile(join(web, "sw.js"), "utf8");
  const refusing = `CacheStorage.prototype.open = () => Promise.reject(new DOMException("refused", "SecurityError"));\n${script}`;
  const answers = { "/sw.js": (response) => response.writeHead(200, { "Content-Type": "text/javascript" }).end(refusing) };
  await visited({ answers }, writes);
});

test("a list that does not come, where everything was kept", async () => {
  await visited({}, async ({ page, answers, asked }) => {
    await page.reload(); // by now every file goes through the service worker
    await ready(page);
    const faults = [() => {}, (response) => response.writeHead(500).end()];
    for (const fault of faults) {
      answers["/files.json"] = fault;
      asked.length = 0;
      await page.reload();
      await ready(page);
      assert.equal(await trouble(page), "");
      assert.ok(asked.includes("/files.json"));
    }
    await settings(page, { temperature: 0, tokens: 5 });
    assert.match(await written(page, "Once upon a time"), /^Once upon a time, there was/);
  });
});

test("a list that fails at the first visit", async () => {
  await visited({ answers: { "/files.json": (response) => response.writeHead(500).end() } }, async ({ page }) => {
    assert.match(await trouble(page), /^The model could not be fetched\. Check the connection/);
    assert.equal(await page.textContent("#status"), "Not ready.");
  });
});

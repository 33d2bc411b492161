/** The page in a real browser, as a visitor sees it. $T2R_WEB is a folder of `t2r save --as web`, with greedy.txt beside it. */

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { after, before, test } from "node:test";

import { done, launch, nobodyShutOut, settings, trouble, visitIn, written } from "./page.js";

const web = process.env.T2R_WEB;
assert.ok(web, "T2R_WEB names a packed folder: run `make test-js`");
const list = JSON.parse(await readFile(join(web, "files.json"), "utf8"));
const graph = `/${list.graph}`;
let browser;
before(async () => (browser = await launch()));
after(() => browser.close());

const visited = (options, work) => visitIn(browser, web, options, work);

/** Reopen the page with empty caches. */
async function openedAnew({ page, address }) {
  await page.evaluate(async () => Promise.all((await caches.keys()).map((name) => caches.delete(name))));
  await page.goto(`${address}?way=wasm`);
}

const count = async (page) => Number((await page.textContent("#count")).replaceAll(",", ""));
const ready = (page) => page.waitForFunction(() => document.getElementById("status").dataset.way || document.getElementById("trouble").textContent);

test("Escape while the model is loaded is no trouble", async () => {
  await visited({}, async (place) => {
    const { page, answers } = place, bytes = await readFile(join(web, list.graph));
    const asked = new Promise((resolve) => (answers[graph] = resolve));
    await openedAnew(place);
    const held = await asked;
    await page.keyboard.press("Escape");
    held.end(bytes);
    await ready(page);
    assert.equal(await trouble(page), "");
    await settings(page, { temperature: 0, tokens: 5 });
    assert.match(await written(page), /^Once upon a time, there was/);
  });
});

test("how much of the model has come is said", async () => {
  await visited({}, async (place) => {
    const { page, answers } = place, ofGraph = list.files.filter(({ name }) => name === list.graph || name.startsWith(`${list.graph}.`));
    const weights = ofGraph.reduce((most, file) => (file.size > most.size ? file : most)); // in a separate file, or in the graph
    const bytes = await readFile(join(web, weights.name)), half = Math.floor(0.6 * bytes.length);
    const asked = new Promise((resolve) => (answers[`/${weights.name}`] = resolve));
    await openedAnew(place);
    const held = await asked;
    held.writeHead(200, { "Content-Type": "application/octet-stream" });
    held.write(bytes.subarray(0, half));
    await page.waitForFunction(() => /^Loading … \d+\.\d of \d+\.\d MB$/.test(document.getElementById("status").textContent));
    assert.ok(await page.evaluate(() => document.getElementById("loading").position > 0));
    held.end(bytes.subarray(half));
    await ready(page);
    assert.match(await page.textContent("#status"), /^Ready\./);
    assert.ok(await page.isHidden("#loading"));
  });
});

test("a byte order mark in front of a prompt is no text", async () => {
  await visited({}, async ({ page }) => {
    await settings(page, { temperature: 0, tokens: 8 });
    const plain = await written(page, "Once upon a time");
    await page.click("#new");
    await done(page);
    assert.equal(await written(page, "\ufeffOnce upon a time"), plain);
  });
});

test("a reload that passes the service worker by opens the model, with threads or without", async () => {
  await visited({}, async ({ page, visitor }) => {
    const browserOf = await visitor.newCDPSession(page);
    for (let n = 0; n < 2; n++) {
      await page.evaluate(() => delete document.getElementById("status").dataset.way);
      await browserOf.send("Page.reload", { ignoreCache: true });
      await page.waitForFunction(() => document.getElementById("status")?.dataset.way);
    }
    assert.equal(await trouble(page), "");
  });
});

test("the greedy text begins as Python's, and nobody else is asked", async () => {
  const expected = await readFile(join(dirname(web), "greedy.txt"), "utf8");
  const [beginning] = /^.*?named \w+\./.exec(expected); // int8 rounds activations, which differ in the last bit: later tokens may differ
  await visited({ query: "" }, async ({ page, strangers, errors }) => {
    await settings(page, { temperature: 0, tokens: 200 });
    assert.ok((await written(page, "Once upon a time")).startsWith(beginning), beginning);
    assert.equal(await page.textContent("#numbers"), "memory 606.2 kB, softmax would hold 3.3 MB, after 204 tokens");
    assert.equal(await page.getAttribute("#status", "data-way"), "threads");
    assert.deepEqual([strangers, errors], [[], []]);
  });
});

test("one thread where there are no more, with the same text", async () => {
  await visited({}, async ({ page }) => {
    await settings(page, { temperature: 0, tokens: 30 });
    assert.match(await written(page), /^Once upon a time, there was a little girl named Lily\. She loved/);
    assert.equal(await page.getAttribute("#status", "data-way"), "wasm");
  });
});

test("a seed gives one text, and New another beginning", async () => {
  await visited({}, async ({ page }) => {
    await settings(page, { temperature: 1, seed: 5, tokens: 25 });
    const first = await written(page);
    await page.click("#new");
    await done(page);
    assert.equal(await page.textContent("#story"), "");
    assert.equal(await written(page), first);
    await page.click("#new");
    await done(page);
    await settings(page, { seed: 6 });
    assert.notEqual(await written(page), first);
  });
});

test("what is written on has noise of its own", async () => {
  await visited({}, async ({ page }) => {
    const texts = await page.evaluate(async (name) => {
      const { Asker } = await import("./asker.js");
      const written = [], worker = new Asker(new URL("./worker.js", location.href), (said) => written.at(-1).push(said.token));
      await worker.ask("open", name, "wasm");
      for (let n = 0; n < 2; n++) {
        written.push([]);
        await worker.ask("write", "", { temperature: 1e9, seed: 5 }, 12); // only the noise chooses
      }
      return written;
    }, list.graph);
    assert.ok(texts.every((tokens) => tokens.length > 0));
    assert.notDeepEqual(texts[0], texts[1]);
  });
});

test("stop ends within a token, and Write goes on from there", async () => {
  await visited({}, async ({ page }) => {
    await settings(page, { temperature: 1, tokens: 100000, seed: 4 });
    await page.click("#write");
    await page.waitForFunction(() => Number(document.getElementById("count").textContent) >= 5);
    assert.equal(await page.textContent("#write"), "Stop");
    await page.click("#write");
    await done(page);
    assert.equal(await page.textContent("#write"), "Write");
    assert.ok(Number(await page.getAttribute("#write", "data-late")) <= 1, "tokens that were read after the stop arrived");
    const read = await count(page);
    assert.ok(read < 100000);
    await settings(page, { tokens: 3 });
    await written(page);
    assert.equal(await count(page), read + 3);
  });
});

test("a state goes through a file into another page", async () => {
  await visited({}, async ({ page }) => {
    await settings(page, { temperature: 0, tokens: 20 });
    const before = await written(page);
    const [file] = await Promise.all([page.waitForEvent("download"), page.click("#save")]);
    const path = await file.path();
    const behind = (await written(page, "")).slice(before.length);
    await visited({}, async ({ page: other }) => {
      await settings(other, { temperature: 0, tokens: 20 });
      await other.setInputFiles("#load", path);
      await done(other);
      assert.equal(await trouble(other), "");
      assert.equal(await written(other, ""), behind);
      await other.setInputFiles("#load", { name: "x.state", mimeType: "text/plain", buffer: Buffer.from("no state") });
      await done(other);
      assert.equal(await trouble(other), "This file holds no memory of this model, or it is damaged. Nothing has changed.");
    });
  });
});

test("it opens again without a net, and a changed file alone is fetched anew", async () => {
  await visited({ query: "" }, async ({ page, visitor, asked, answers, open }) => {
    await page.reload(); // by now every file goes through the service worker
    await page.waitForFunction(() => document.getElementById("status").dataset.way);
    await settings(page, { temperature: 0, tokens: 12 });
    const first = await written(page);
    await visitor.setOffline(true);
    await open();
    await settings(page, { temperature: 0, tokens: 12 });
    assert.equal(await written(page), first);
    await visitor.setOffline(false);
    const content = Buffer.concat([await readFile(join(web, "style.css")), Buffer.from("/* changed */")]);
    const { createHash } = await import("node:crypto");
    const sha256 = createHash("sha256").update(content).digest("hex");
    const files = list.files.map((file) => (file.name === "style.css" ? { ...file, size: content.length, sha256 } : file));
    answers["/files.json"] = (response) => response.end(JSON.stringify({ ...list, files }));
    answers["/style.css"] = (response) => response.writeHead(200, { "Content-Type": "text/css" }).end(content);
    asked.length = 0;
    await open();
    const always = ["/files.json", "/sw.js", "/translate/files.json"]; // lists, and the script that the browser itself checks
    assert.deepEqual([...new Set(asked)].filter((path) => !always.includes(path)), ["/style.css"]);
  });
});

const faults = {
  "is cut off": async () => (await readFile(join(web, list.graph))).subarray(0, 3000),
  "is damaged": async () => Buffer.from("<html>an error page that some host answers with</html>"),
  "is empty": async () => Buffer.alloc(0),
};
for (const [what, content] of Object.entries(faults)) {
  test(`a sentence where the model ${what}`, async () => {
    const bytes = await content();
    await visited({ answers: { [graph]: (response) => response.end(bytes) } }, async ({ page }) => {
      assert.match(await trouble(page), /^The model's file is damaged or incomplete\. Load the page again/);
      assert.equal(await page.getAttribute("#write", "aria-disabled"), "true");
      assert.equal(await page.textContent("#status"), "Not ready.");
    });
  });
}

test("a sentence where files are not there", async () => {
  const gone = (response) => response.writeHead(404).end();
  await visited({ answers: { [graph]: gone } }, async ({ page }) => {
    assert.match(await trouble(page), /^The model could not be fetched\. Check the connection/);
  });
  await visited({ answers: { "/files.json": gone } }, async ({ page }) => {
    assert.match(await trouble(page), /^The model could not be fetched\./);
  });
});

test("a race: the softmax model remembers more with every token, and the story goes on afterwards", async () => {
  await visited({}, async ({ page }) => {
    await settings(page, { temperature: 0, tokens: 20 });
    const before = await written(page, "Once upon a time"), read = await count(page);
    await page.click("#race");
    await page.waitForFunction(() => document.getElementById("peer-lane").value > 60);
    await page.keyboard.press("Escape");
    await done(page);
    const said = await page.textContent("#memory title");
    const [, ours, peer, unit] = /this model ([\d.]+) kB at token \d+, softmax model ([\d.]+) ([kM])B at token \d+/.exec(said);
    assert.ok(Number(peer) * (unit === "M" ? 1000 : 1) > Number(ours), said);
    assert.match(await page.textContent("#verdict"), /^Stopped\. .* read \d[\d,]* tokens and holds .* In the same time .* read \d[\d,]*, and holds /);
    const after = await written(page);
    assert.equal(await count(page), read + 20);
    await page.click("#new");
    await done(page);
    await settings(page, { tokens: 40 });
    assert.equal(await written(page, "Once upon a time"), after, before);
  });
});

test("two tabs write side by side", async () => {
  await visited({}, async ({ page, visitor, address }) => {
    const other = await visitor.newPage();
    await other.goto(address);
    await other.waitForFunction(() => document.getElementById("status").dataset.way);
    for (const tab of [page, other]) await settings(tab, { temperature: 0, tokens: 40 });
    const [first, second] = await Promise.all([written(page), written(other)]);
    assert.equal(first, second);
  });
});

test("the keyboard alone is enough", async () => {
  await visited({}, async ({ page }) => {
    await settings(page, { temperature: 0, tokens: 100000 });
    await page.focus("#prompt");
    await page.keyboard.press("Enter");
    await page.waitForFunction(() => document.getElementById("story").textContent.length > 60);
    await page.keyboard.press("Escape");
    await done(page);
    assert.equal(await page.evaluate(() => document.activeElement.id), "prompt");
    await settings(page, { tokens: 5 });
    for (const id of ["write", "new"]) {
      await page.focus(`#${id}`);
      await page.keyboard.press("Enter");
      await done(page);
      assert.equal(await page.evaluate(() => document.activeElement.id), id, "the focus stays where it was");
    }
  });
});

for (const colorScheme of ["light", "dark"]) {
  test(`nobody is shut out, ${colorScheme}`, async () => {
    await visited({ colorScheme }, async ({ page }) => {
      await settings(page, { temperature: 0.6, seed: 3, tokens: 120 });
      await page.click("#race");
      await page.waitForFunction(() => document.getElementById("peer-lane").value > 60);
      assert.equal(await page.textContent("#race"), "Stop");
      await page.click("#race");
      await done(page);
      await written(page, "Once upon a time");
      await nobodyShutOut(page, `page-${colorScheme}`, async () => {
        const ends = await page.$$eval(".tries button", (chips) => chips.map((chip) => chip.getBoundingClientRect().right));
        assert.equal(ends.length, 4, "each beginning is there");
        return ends;
      });
    });
  });
}

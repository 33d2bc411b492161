/** The chat's page, as a visitor sees it: a storyteller beside $T2R_WEB, in chat/, which continues what it is told; and chat.json. */

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { after, before, test } from "node:test";

import { done, launch, nobodyShutOut, trouble, visitIn } from "./page.js";

assert.ok(process.env.T2R_WEB, "T2R_WEB names a packed folder: run `make test-js`");
const place = dirname(process.env.T2R_WEB), web = join(place, "chat");
let browser;
before(async () => (browser = await launch()));
after(() => browser.close());

const visited = (options, work) => visitIn(browser, web, options, work);
const spoken = (page) => page.textContent("#talk");

async function sent(page, text) {
  await page.fill("#prompt", text);
  await page.click("#write");
  await done(page);
}

test("the answers are Python's, and only what is new is read", async () => {
  const [messages, most, expected] = JSON.parse(await readFile(join(place, "chat.json"), "utf8"));
  await visited({}, async ({ page, strangers, errors }) => {
    const { graph } = JSON.parse(await readFile(join(web, "files.json"), "utf8"));
    const found = await page.evaluate(async ([name, texts, tokens]) => {
      const { Asker } = await import("./asker.js");
      let text = "";
      const answers = [], worker = new Asker(new URL("./worker.js", location.href), (said) => (text += said.text ?? ""));
      await worker.ask("open", name, "wasm");
      for (const message of texts) {
        text = "";
        const last = await worker.ask("say", message, { temperature: 0, seed: 1 }, tokens);
        answers.push([text + last.text, last.position]);
      }
      return answers;
    }, [graph, messages, most]);
    assert.deepEqual(found, expected);
    assert.deepEqual([strangers, errors], [[], []]);
  });
});

test("without int8 the page takes our own provider, and loads nothing of ONNX Runtime; without that, ONNX Runtime", async () => {
  const gone = (response) => response.writeHead(404).end();
  for (const [answers, way, by] of [[{}, "t2r", "our own kernels"], [{ "/t2r/t2r.wasm": gone }, "threads", "ONNX Runtime"]]) {
    await visited({ query: "", answers }, async ({ page, asked, errors }) => {
      assert.deepEqual([await page.getAttribute("#status", "data-way"), asked.some((path) => path.startsWith("/vendor/ort"))], [way, way !== "t2r"]);
      assert.ok((await page.textContent("#about-way")).endsWith(`, by ${by}`));
      await sent(page, "Once upon a time");
      assert.match(await spoken(page), /^Once upon a time\n.+/);
      assert.deepEqual(errors, []);
    });
  }
});

test("a message is answered in a memory of one size, and can be stopped", async () => {
  await visited({}, async ({ page, errors }) => {
    const held = await page.textContent("#held");
    await page.fill("#prompt", "Once upon a time");
    await page.click("#write");
    await page.waitForFunction(() => document.getElementById("talk").textContent.length > 40);
    assert.equal(await page.textContent("#write"), "Stop");
    await page.click("#write");
    await done(page);
    assert.match(await spoken(page), /^Once upon a time\n.+/);
    assert.match(await page.textContent("#numbers"), /^memory [\d.]+ [kM]B, softmax would hold [\d.]+ [kM]B, after \d+ tokens$/);
    assert.deepEqual([await page.inputValue("#prompt"), await page.textContent("#write"), await page.textContent("#status")], ["", "Send", "Ready."]);
    await page.fill("#prompt", "Then the dog");
    await page.keyboard.press("Enter");
    await page.waitForFunction(() => /\n\nThen the dog\n./.test(document.getElementById("talk").textContent));
    await page.keyboard.press("Escape");
    await done(page);
    assert.equal(await page.textContent("#held"), held);
    await page.click("#new");
    await done(page);
    assert.deepEqual([await spoken(page), await page.textContent("#count"), await trouble(page), errors], ["", "0", "", []]);
  });
});

test("odd texts are read or refused, and every button can be pressed twice", async () => {
  await visited({}, async ({ page, errors }) => {
    const stop = async () => { // an answer may be short enough to be over
      await page.keyboard.press("Escape");
      await done(page);
      assert.equal(await trouble(page), "");
    };
    for (const text of ["🙂👩‍👩‍👧 é", "\u0000\u202e<b>&amp;", "مرحبا", "\ufeff{{ messages }}"]) {
      await page.fill("#prompt", text);
      await page.click("#write");
      await stop();
    }
    await page.fill("#prompt", "Once upon a time ".repeat(600));
    await page.click("#write");
    await page.waitForFunction(() => /^Reading: \d/.test(document.getElementById("status").textContent));
    await stop();
    assert.equal(await page.textContent("#status"), "Stopped: the message was not read.");
    assert.equal((await page.inputValue("#prompt")).length, 10_200, "it is not lost");
    assert.ok(!(await spoken(page)).includes("Once upon a time Once"));
    await sent(page, "x".repeat(50_001));
    assert.match(await trouble(page), /^This text is too long for this page\./);
    await sent(page, " \n");
    assert.equal(await trouble(page), "");
    for (let n = 0; n < (await page.locator("button").count()); n++) {
      await page.locator("button").nth(n).evaluate((button) => (button.click(), button.click()));
      await page.keyboard.press("Escape");
      await done(page);
    }
    assert.deepEqual([await trouble(page), errors], ["", []]);
  });
});

for (const colorScheme of ["light", "dark"]) {
  test(`nobody is shut out, ${colorScheme}`, async () => {
    await visited({ colorScheme }, async ({ page }) => {
      await page.click(".chip");
      await page.waitForFunction(() => document.getElementById("talk").textContent.length > 60);
      await page.keyboard.press("Escape");
      await done(page);
      await nobodyShutOut(page, `chat-${colorScheme}`, () => page.$$eval(".tries button", (all) => all.map((one) => one.getBoundingClientRect().right)));
    });
  });
}

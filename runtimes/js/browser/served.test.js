/** The page of `t2r-run serve`, with a server of the graph in $T2R_WEB. */

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { after, before, test } from "node:test";

import { launch, nobodyShutOut } from "./page.js";

assert.ok(process.env.T2R_WEB, "T2R_WEB names a packed folder: run `make test-js`");
const KEY = "sesame";
let browser, server, address;

before(async () => {
  browser = await launch();
  const { graph } = JSON.parse(await readFile(join(process.env.T2R_WEB, "files.json"), "utf8"));
  const options = ["--port", "0", "--api-key", KEY, "--max-tokens", "100000"];
  server = spawn("python", ["-m", "t2r_runtime", "serve", join(process.env.T2R_WEB, graph), ...options]);
  let printed = "";
  for await (const part of server.stderr) {
    printed += part;
    [address] = /http:\S+:\d+/.exec(printed) ?? [];
    if (address) break;
  }
  assert.ok(address, printed);
  server.stderr.resume();
});
after(async () => {
  server.kill();
  await browser.close();
});

/** Open the page, and pass the key, which it asks for. */
async function visited(work, routes = {}) {
  const context = await browser.newContext();
  const page = await context.newPage();
  const errors = [];
  page.on("pageerror", (error) => errors.push(String(error)));
  for (const [path, answer] of Object.entries(routes)) await page.route(`**${path}*`, answer);
  try {
    await page.goto(`${address}/`);
    await page.waitForFunction(() => document.getElementById("trouble").textContent);
    assert.ok(await page.getByLabel("API key").isVisible());
    assert.match(await page.textContent("#trouble"), /^expected the server's API key/);
    await page.fill("#key", KEY);
    await work(page);
    assert.deepEqual(errors, []);
  } finally {
    await context.close();
  }
}

const send = async (page, text) => {
  await page.fill("#text", text);
  await page.press("#text", "Enter");
};
const idle = (page) => page.waitForFunction(() => document.getElementById("send").textContent !== "Stop");

test("a text is continued, its counts are shown, and nobody is shut out", async () => {
  await visited(async (page) => {
    await page.fill("#most", "9");
    await send(page, "Once upon a time");
    await page.locator("#log small").waitFor();
    assert.match(await page.textContent("#log small"), /^\d+ tokens read.*; 9 written; \d+\.\d s$/);
    assert.equal(await page.textContent("#send"), "Continue");
    assert.equal(await page.inputValue("#text"), "");
    await nobodyShutOut(page, "served", () => page.$$eval("button, textarea, #most", (all) =>
      all.map((each) => each.getBoundingClientRect().right)));
    await page.click("#new");
    assert.equal(await page.locator("#log p").count(), 0);
  });
});

test("Stop keeps what is written", async () => {
  await visited(async (page) => {
    await page.fill("#most", "100000");
    await page.fill("#text", "Once upon a time");
    await page.click("#send");
    await page.waitForFunction(() => document.querySelector("#log .assistant")?.textContent.length > 20);
    await page.$eval("#send", (button) => button.click());  // text that arrives moves it, so that a pointer may miss it
    await idle(page);
    assert.equal(await page.locator("#log p").count(), 2);
    assert.equal(await page.locator("#log small").count(), 0, "it did not come to its end");
    assert.equal(await page.textContent("#trouble"), "");
  }, { "/v1/completions": (route) => route.continue({ postData: { ...route.request().postDataJSON(), ignore_eos: true } }) });
});

test("an error is the server's own sentence, and the message stays", async () => {
  await visited(async (page) => {
    await page.fill("#most", "9007199254740991");
    await send(page, "Once");
    await idle(page);
    assert.match(await page.textContent("#trouble"), /^expected .*max_tokens/);
    assert.equal(await page.inputValue("#text"), "Once");
    assert.equal(await page.locator("#log p").count(), 0);
  });
});

test("a chat sends all messages, and a new conversation none of the old ones", async () => {
  const asked = [];
  const event = (data) => `data: ${JSON.stringify(data)}\n\n`;
  const usage = { prompt_tokens: 7, completion_tokens: 2, prompt_tokens_details: { cached_tokens: 5 } };
  const routes = {
    "/tokenizer_info": (route) => route.fulfill({ json: { chat_template: "{{ messages }}" } }),
    "/v1/chat/completions": (route) => {
      asked.push(route.request().postDataJSON().messages.map(({ content }) => content));
      const parts = ["<b>", "é 日本"].map((content) => event({ choices: [{ delta: { content } }] }));
      const body = `${parts.join("")}${event({ choices: [], usage })}data: [DONE]\n\n`;
      return route.fulfill({ contentType: "text/event-stream", body });
    },
  };
  await visited(async (page) => {
    for (const text of ["one", "two\n<i>"]) {
      await send(page, text);
      await idle(page);
    }
    assert.match(await page.textContent("#log p:nth-child(2)"), /^<b>é 日本7 tokens read, 5 of them kept from before; 2 written/);
    await page.click("#new");
    await send(page, "three");
    await idle(page);
  }, routes);
  assert.deepEqual(asked, [["one"], ["one", "<b>é 日本", "two\n<i>"], ["three"]]);
});

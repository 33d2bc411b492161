/** A page in a headless Chromium, served by the test's own server, whose responses can be replaced. */

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

import { chromium } from "playwright-core";

import { serve } from "../demo/serve.js";

const EXECUTABLE = fileURLToPath(new URL("../../../.ci/chromium", import.meta.url));
const OPENED = 240_000; // ms, timeout: several tests may share two cores
export const WEBGPU = ["--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader", "--enable-features=Vulkan"];

export function launch(more = []) {
  return chromium.launch({ executablePath: EXECUTABLE, args: ["--no-sandbox", ...more] });
}

/**
 * Start a server and open its page in a new context. Requests to other hosts and page errors are recorded.
 * @param options `query` after the address: without one the page itself finds the best way to run, which on a busy machine
 *   may be slow; `answers`, path → a function of the response; `wait`, until the model is ready or has failed; and options
 *   of a browser context. By default less motion is wanted, so that the storyteller waits.
 */
async function visit(browser, folder, { query = "?way=wasm", answers = {}, wait = true, ...context } = {}) {
  const server = await serve(folder, 0, (path, response) => {
    asked.push(path);
    if (!answers[path]) return false;
    answers[path](response);
    return true;
  });
  const asked = [], strangers = [], errors = [];
  const address = `http://127.0.0.1:${server.address().port}/`;
  const visitor = await browser.newContext({ serviceWorkers: "allow", reducedMotion: "reduce", ...context });
  visitor.setDefaultTimeout(OPENED);
  const page = await visitor.newPage();
  visitor.on("request", (request) => {
    if (!request.url().startsWith(address) && !/^(data|blob):/.test(request.url())) strangers.push(request.url());
  });
  page.on("pageerror", (error) => errors.push(String(error)));
  const close = async () => {
    await visitor.close();
    server.closeAllConnections();
    await new Promise((resolve) => server.close(resolve));
  };
  const open = async () => {
    await page.goto(`${address}${query}`);
    if (!wait) return;
    await page.waitForFunction(
      () => document.getElementById("status")?.dataset.way || document.getElementById("trouble")?.textContent);
  };
  await open();
  return { page, visitor, address, asked, strangers, errors, answers, server, open, close };
}

/** Visit, run `work`, and always close. Options as of visit. */
export async function visitIn(browser, folder, options, work) {
  const place = await visit(browser, folder, options);
  try {
    await work(place);
  } finally {
    await place.close();
  }
}

export async function settings(page, values) {
  await page.evaluate(() => (document.querySelector("details").open = true));
  for (const [name, value] of Object.entries(values)) await page.fill(`#${name}`, String(value));
}

/** Press Write and wait until it is done. */
export async function written(page, prompt, button = "#write") {
  if (prompt !== undefined) await page.fill("#prompt", prompt);
  await page.click(button);
  await done(page);
  return page.textContent("#story");
}

export function done(page) {
  return page.waitForFunction(() => !document.body.dataset.busy);
}

export function trouble(page) {
  return page.textContent("#trouble");
}

const SIZES = [{ width: 360, height: 740 }, { width: 768, height: 1024 }, { width: 1280, height: 900 }, { width: 1600, height: 1000 }];

/**
 * Assert that nothing of a page is out of reach in any width, in the colours that it was opened with: no sideways scrolling,
 * `right`, the right edges of what must be in sight, inside, and no violation that axe finds. $T2R_SHOTS is a folder for
 * pictures.
 */
export async function nobodyShutOut(page, name, right) {
  await page.evaluate(await readFile(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8"));
  for (const size of SIZES) {
    await page.setViewportSize(size);
    assert.ok((await page.evaluate(() => document.documentElement.scrollWidth)) <= size.width, "no scrolling sideways");
    const ends = await right();
    assert.ok(Math.max(...ends) <= size.width, `each is in sight at ${size.width} pixels: ${ends}`);
    const { violations } = await page.evaluate(() => globalThis.axe.run());
    assert.deepEqual(violations.map(({ id, nodes }) => [id, nodes.map((node) => node.html)]), [], `at ${size.width} pixels`);
    if (process.env.T2R_SHOTS) {
      await page.evaluate(() => scrollTo(0, 0));
      await page.screenshot({ path: join(process.env.T2R_SHOTS, `${name}-${size.width}.png`), fullPage: true });
    }
  }
}

/** Runs the programs of docs/embedding.md verbatim. */

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";

import { serve } from "../demo/serve.js";
import { launch } from "./page.js";

const web = process.env.T2R_WEB;
assert.ok(web, "T2R_WEB names a packed folder: run `make test-js`");
const js = fileURLToPath(new URL("..", import.meta.url));
const page = await readFile(join(js, "../../docs/embedding.md"), "utf8");
const STORY = /^, there was a little girl named Lily\. She loved to play with her toys/;

function program(language) {
  const found = [...page.matchAll(new RegExp(`^\`\`\`${language}\\n(.*?)^\`\`\`$`, "gms"))];
  assert.equal(found.length, 1);
  return found[0][1];
}

test("the program for Node", async () => {
  const folder = await mkdtemp(join(js, ".docs-")); // inside the package, which it imports by name
  try {
    await writeFile(join(folder, "story.js"), program("js"));
    const { stdout } = await promisify(execFile)(process.execPath, [join(folder, "story.js")], { cwd: web });
    assert.match(stdout, STORY);
  } finally {
    await rm(folder, { recursive: true });
  }
});

test("the page for a browser", async () => {
  const html = program("html"), browser = await launch();
  const server = await serve(web, 0, (path, response) =>
    path === "/small.html" && Boolean(response.writeHead(200, { "Content-Type": "text/html" }).end(html)));
  try {
    const shown = await browser.newPage();
    await shown.goto(`http://127.0.0.1:${server.address().port}/small.html`);
    await shown.waitForFunction(() => document.title === "The end", null, { timeout: 120_000 });
    assert.match((await shown.textContent("#story")).slice("Once upon a time".length), STORY);
  } finally {
    await browser.close();
    server.closeAllConnections();
    server.close();
  }
});

/** Runs the programs of docs/embedding.md verbatim. */

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { copyFile, mkdir, mkdtemp, readFile, rm, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
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

test("the lines for esbuild: a worker on WebAssembly, which fetches less than 15 MB", async () => {
  const readme = await readFile(join(js, "README.md"), "utf8"), [lines] = /^ +npx esbuild .*\n +cp .*$/m.exec(readme);
  const folder = await mkdtemp(join(tmpdir(), "t2r-")), site = join(folder, "site"), browser = await launch();
  let server;
  try {
    await mkdir(join(folder, "node_modules"));
    for (const name of [".bin", "onnxruntime-web"]) await symlink(join(js, "node_modules", name), join(folder, "node_modules", name));
    await symlink(js, join(folder, "node_modules", "t2r-runtime"));
    await writeFile(join(folder, "page.js"), `import { WorkerDecoder } from "t2r-runtime";
      const decoder = await WorkerDecoder.open("tiny.onnx");
      document.title = String(await decoder.generate([1, 3], 9, { temperature: 0, stopTokens: [] }));`);
    await promisify(execFile)("sh", ["-ec", lines], { cwd: folder });
    await copyFile(join(js, "../../models/tiny/tiny.onnx"), join(site, "tiny.onnx"));
    await writeFile(join(site, "index.html"), `<script type="module" src="page.js"></script>`);
    server = await serve(site);
    const shown = await browser.newPage(), sizes = [];
    shown.context().on("response", (response) => sizes.push(response.body().then(({ length }) => length, () => 0)));
    await shown.goto(`http://127.0.0.1:${server.address().port}/`);
    await shown.waitForFunction(() => /^\d+(,\d+){8}$/.test(document.title), null, { timeout: 120_000 });
    const bytes = (await Promise.all(sizes)).reduce((all, one) => all + one, 0);
    assert.ok(bytes > 14e6 && bytes < 15e6, `${bytes}`);
  } finally {
    await browser.close();
    server?.closeAllConnections();
    server?.close();
    await rm(folder, { recursive: true });
  }
});

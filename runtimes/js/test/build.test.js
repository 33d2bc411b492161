/** demo/build.js: a page with all that it loads, which knows its address. */

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { mkdtemp, readFile, readdir, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";

const program = fileURLToPath(new URL("../demo/build.js", import.meta.url));
let folder;
before(async () => (folder = await mkdtemp(join(tmpdir(), "t2r-"))));
after(() => rm(folder, { recursive: true }));

/** The index of a page that was built with these arguments. */
async function built(name, ...more) {
  await promisify(execFile)(process.execPath, [program, join(folder, name), ...more]);
  return readFile(join(folder, name, "index.html"), "utf8");
}

const picture = (index) => /<meta property="og:image" content="([^"]*)">/.exec(index)?.[1];

test("the picture is named whole where the address is known", async () => {
  assert.equal(picture(await built("plain")), "card.png");
  assert.equal(picture(await built("there", "https://example.org/a b/$&")), "https://example.org/a%20b/$&amp;/card.png");
  assert.equal(picture(await built("slash", "https://example.org/story/")), "https://example.org/story/card.png");
});

test("a translator's page has its own index and all modules of the other", async () => {
  assert.match(await built("translator", "translator"), /German to English/);
  const names = await readdir(join(folder, "translator"));
  for (const name of ["asker.js", "files.js", "sentences.js", "ways.js", "t2r", "vendor"]) assert.ok(names.includes(name), name);
});

test("a chat's page has the package that renders templates, and its worker knows where", async () => {
  assert.match(await built("chat", "chat"), /An experiment, not an assistant/);
  const names = await readdir(join(folder, "chat", "vendor"));
  for (const name of ["jinja.js", "jinja.LICENSE", "tokenizers.LICENSE"]) assert.ok(names.includes(name), name);
  assert.match(await readFile(join(folder, "chat/t2r/worker.js"), "utf8"), /import\("\.\.\/vendor\/jinja\.js"\)/);
});

test("wrong arguments end in 2", async () => {
  for (const more of [["nonsense"], ["translator", "ftp://x"], ["https://example.org", "more"], ["http://"]]) {
    await assert.rejects(built("wrong", ...more), (error) => error.code === 2 && error.stderr.startsWith("usage:"));
  }
});

test("the package from the repository has its licence", async () => {
  const { stdout } = await promisify(execFile)("npm", ["pack", "--dry-run", "--json"], { cwd: fileURLToPath(new URL("..", import.meta.url)) });
  const names = JSON.parse(stdout)[0].files.map(({ path }) => path);
  for (const name of ["LICENSE", "NOTICE", "src/index.js", "types/index.d.ts"]) assert.ok(names.includes(name), name);
});

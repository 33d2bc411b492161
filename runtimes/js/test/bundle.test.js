/** Bundles of the package: a browser's contains nothing of Node, and a program for Node runs. */

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { basename, join } from "node:path";
import { after, before, test } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";

import resolver from "enhanced-resolve";
import { build } from "esbuild";
import { build as viteBuild } from "vite";

import { Decoder } from "../src/index.js";
import { golden } from "./files.js";

const js = fileURLToPath(new URL("..", import.meta.url));
const PEERS = ["onnxruntime-node", "onnxruntime-web/wasm", "onnxruntime-web/webgpu", "@huggingface/jinja"];
const PROGRAM = `
import { Decoder } from "t2r-runtime";
const decoder = await Decoder.open(${JSON.stringify(golden("tiny.onnx"))});
console.log(String(await decoder.generate([1, 3], 9, { temperature: 0 })));
`;
let folder;
before(async () => (folder = await mkdtemp(join(js, ".docs-")))); // inside the package, which it imports by name
after(() => rm(folder, { recursive: true }));

/** A program bundled by esbuild, and the names of the files in it. */
async function bundled(platform) {
  await writeFile(join(folder, "program.js"), PROGRAM);
  const outfile = join(folder, `${platform}.mjs`);
  const options = { platform, format: "esm", bundle: true, outfile, external: PEERS, metafile: true, logLevel: "silent" };
  const { metafile, outputFiles } = await build({ ...options, entryPoints: [join(folder, "program.js")], write: false });
  await writeFile(outfile, outputFiles[0].contents);
  return { outfile, text: outputFiles[0].text, inputs: Object.keys(metafile.inputs).map((name) => basename(name)) };
}

test("a browser's has nothing of Node", async () => {
  const { text, inputs } = await bundled("browser");
  assert.ok(inputs.includes("platform_browser.js") && !inputs.includes("platform_node.js"));
  assert.match(text, /onnxruntime-web\/webgpu/);
  assert.doesNotMatch(text, /["']node:|onnxruntime-node/);
});

test("Node's runs", async () => {
  const { outfile, inputs } = await bundled("node");
  assert.ok(inputs.includes("platform_node.js") && !inputs.includes("platform_browser.js"));
  const { stdout } = await promisify(execFile)(process.execPath, [outfile]);
  const decoder = await Decoder.open(golden("tiny.onnx"));
  assert.equal(stdout, `${await decoder.generate([1, 3], 9, { temperature: 0 })}\n`);
  await decoder.close();
});

test("vite's has nothing of Node, and bundles the worker", async () => {
  const entry = join(folder, "worked.js");
  await writeFile(entry, `export { Decoder, WorkerDecoder } from "t2r-runtime";`);
  const rollupOptions = { external: PEERS };
  const bundle = await viteBuild({
    root: folder, configFile: false, logLevel: "error", worker: { format: "es", rollupOptions },
    build: { write: false, minify: false, target: "esnext", lib: { entry, formats: ["es"] }, rollupOptions },
  });
  const files = [bundle].flat().flatMap(({ output }) => output), texts = files.map((file) => String(file.code ?? file.source)).join("\n");
  assert.match(texts, /onnxruntime-web\/webgpu/);
  assert.doesNotMatch(texts, /["']node:|onnxruntime-node/);
  assert.match(texts, /acknowledged/, "the worker's script, as a file or within the page's");
});

for (const [conditions, found] of [[["browser", "import"], "platform_browser.js"], [["node", "import"], "platform_node.js"]]) {
  test(`webpack's resolver, ${conditions}`, () => {
    const resolve = resolver.create.sync({ conditionNames: conditions });
    assert.equal(basename(resolve(join(js, "src"), "#platform")), found);
    assert.equal(resolve(js, "t2r-runtime"), join(js, "src", "index.js"));
  });
}

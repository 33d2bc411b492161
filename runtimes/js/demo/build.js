/**
 * node demo/build.js FOLDER [translator | chat] [ADDRESS]: the page with all that it loads, for `t2r save --as web:page=FOLDER`;
 * a translator and a chat have their own. ADDRESS is where the folder will be, for link previews. Nothing is
 * bundled: files are copied, and package names in imports become relative paths, since a worker resolves no others.
 */

import { cp, mkdir, readFile, readdir, rm, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url)), js = dirname(here);
const packages = join(js, "node_modules");
const ORT = ["ort.wasm.bundle.min.mjs", "ort.webgpu.bundle.min.mjs"]; // the default bundle is wrong in int8 on WebGPU
const WASM = ["ort-wasm-simd-threaded.wasm", "ort-wasm-simd-threaded.mjs", "ort-wasm-simd-threaded.asyncify.wasm", "ort-wasm-simd-threaded.asyncify.mjs"];
const IMPORTS = { "@huggingface/tokenizers": "../vendor/tokenizers.min.mjs", "@huggingface/jinja": "../vendor/jinja.js", "#platform": "./platform_browser.js" };

const [folder, ...more] = process.argv.slice(2);
const kind = ["translator", "chat"].includes(more[0]) ? more.shift() : null, [address] = more;
if (!folder || more.length > 1 || (address && !/^https?:\/\/[^/]/.test(address))) {
  console.error("usage: node demo/build.js FOLDER [translator | chat] [http…]");
  process.exit(2);
}
await rm(folder, { recursive: true, force: true });
await cp(join(here, "page"), folder, { recursive: true });
if (kind) await cp(join(here, kind), folder, { recursive: true });
if (address) {
  const index = join(folder, "index.html"), picture = new URL("card.png", address.replace(/\/?$/, "/")).href;
  const quoted = picture.replaceAll("&", "&amp;").replaceAll('"', "&quot;");
  await writeFile(index, (await readFile(index, "utf8")).replace('content="card.png"', () => `content="${quoted}"`));
}
await mkdir(join(folder, "t2r"));
await mkdir(join(folder, "vendor"));
for (const name of await readdir(join(js, "src"))) {
  if (name === "platform_node.js") continue;
  if (name.endsWith(".wasm")) {
    await cp(join(js, "src", name), join(folder, "t2r", name));
    continue;
  }
  let text = await readFile(join(js, "src", name), "utf8");
  for (const [from, to] of Object.entries(IMPORTS)) text = text.replace(new RegExp(`(from |import\\()"${from}"`, "g"), `$1"${to}"`);
  await writeFile(join(folder, "t2r", name), text);
}
const vendor = [
  ...[...ORT, ...WASM].map((name) => ["onnxruntime-web/dist", name]),
  ["@huggingface/tokenizers/dist", "tokenizers.min.mjs"],
  ["@huggingface/tokenizers", "LICENSE", "tokenizers.LICENSE"],
  // which renders chat templates
  ...(kind === "chat" ? [["@huggingface/jinja/dist", "index.js", "jinja.js"], ["@huggingface/jinja", "LICENSE", "jinja.LICENSE"]] : []),
];
for (const [place, name, as = name] of vendor) {
  const content = await readFile(join(packages, place, name));
  // browsers would look for a source map beside it
  const whole = name.endsWith("js") ? content.toString().replace(/\/\/# sourceMappingURL=.*\s*$/, "") : content;
  await writeFile(join(folder, "vendor", as), whole);
}
await cp(join(js, "../../NOTICE"), join(folder, "vendor/NOTICE")); // it contains ONNX Runtime's licence

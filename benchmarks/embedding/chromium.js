/**
 * node chromium.js GRAPH THREADS TOKEN PAGE: a greedy text in a headless Chromium, in WebAssembly. PAGE is a folder that
 * runtimes/js/demo/build.js wrote.
 */

import { createReadStream, readFileSync } from "node:fs";
import { basename } from "node:path";
import { fileURLToPath } from "node:url";

import { launch } from "../../runtimes/js/browser/page.js";
import { serve as host } from "../../runtimes/js/demo/serve.js";
import { serve } from "./protocol.js";

// without these a page has one thread, and a clock of a tenth of a millisecond
const ISOLATED = { "Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Embedder-Policy": "require-corp" };
const [graph, threads, token, folder] = process.argv.slice(2);
const script = readFileSync(fileURLToPath(new URL("./greedy.js", import.meta.url)));
const page = `<!doctype html><title>greedy</title><script type="module">
  import { Decoder } from "./t2r/index.js";
  import { withOrt } from "./ways.js";
  import { greedy } from "./greedy.js";
  const options = await withOrt("wasm");
  options.ort.env.wasm.numThreads = ${Number(threads)};
  globalThis.answer = greedy(await Decoder.open(new URL("model/${basename(graph)}", location.href), options), ${Number(token)});
</script>`;
const server = await host(folder, 0, (path, response) => {
  for (const [name, value] of Object.entries(ISOLATED)) response.setHeader(name, value);
  if (path === "/greedy.html") response.writeHead(200, { "Content-Type": "text/html" }).end(page);
  else if (path === "/greedy.js") response.writeHead(200, { "Content-Type": "text/javascript" }).end(script);
  else if (path.startsWith("/model/")) createReadStream(new URL(encodeURIComponent(basename(path)), `file://${graph}`)).pipe(response);
  else return false;
  return true;
});
const browser = await launch();
try {
  const shown = await browser.newPage();
  shown.on("pageerror", (error) => {
    console.error(String(error));
    process.exit(2);
  });
  await shown.goto(`http://127.0.0.1:${server.address().port}/greedy.html`);
  await shown.waitForFunction(() => globalThis.answer, null, { timeout: 240_000 });
  await serve((word, count) => shown.evaluate(([word, count]) => globalThis.answer(word, count), [word, count]));
} finally {
  await browser.close();
  server.closeAllConnections();
  server.close();
}

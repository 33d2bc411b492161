/** node demo/serve.js FOLDER [PORT]: a folder over HTTP on this machine alone, with nothing kept between two requests. */

import { readFile, stat } from "node:fs/promises";
import { createServer } from "node:http";
import { extname, join, normalize, sep } from "node:path";
import { fileURLToPath } from "node:url";

const TYPES = {
  ".html": "text/html; charset=utf-8", ".js": "text/javascript", ".mjs": "text/javascript", ".css": "text/css", ".json": "application/json",
  ".wasm": "application/wasm",
};

/** @returns {Promise<import("node:http").Server>} listening; `onRequest` hears of every path, and may answer itself */
export function serve(folder, port = 0, onRequest = () => false) {
  const server = createServer(async (request, response) => {
    const path = decodeURIComponent(new URL(request.url, "http://localhost").pathname);
    const file = normalize(join(folder, path.endsWith("/") ? `${path}index.html` : path));
    if (onRequest(path, response)) return;
    try {
      if (!file.startsWith(normalize(folder) + sep) || !(await stat(file)).isFile()) throw new Error("no file");
      const content = await readFile(file);
      response.writeHead(200, { "Content-Type": TYPES[extname(file)] ?? "application/octet-stream", "Cache-Control": "no-cache" });
      response.end(content);
    } catch {
      response.writeHead(404).end("not there");
    }
  });
  return new Promise((resolve) => server.listen(port, "127.0.0.1", () => resolve(server)));
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const [folder = "build/web", port = "8000"] = process.argv.slice(2);
  const server = await serve(folder, Number(port));
  console.log(`http://127.0.0.1:${server.address().port}/ serves ${folder}`);
}

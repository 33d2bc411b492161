/** node demo/serve.js FOLDER [PORT]: serves a folder over HTTP, on the loopback interface only. */

import { readFile, realpath, stat } from "node:fs/promises";
import { createServer } from "node:http";
import { basename, extname, join, sep } from "node:path";
import { fileURLToPath } from "node:url";

const TYPES = {
  ".html": "text/html; charset=utf-8", ".js": "text/javascript", ".mjs": "text/javascript", ".css": "text/css", ".json": "application/json",
  ".wasm": "application/wasm",
};

/**
 * @param {string} folder
 * @param {number} port 0 is any free one
 * @param {(path: string, response: import("node:http").ServerResponse) => boolean} onRequest gets every decoded path; true: it has responded
 * @returns {Promise<import("node:http").Server>} listening
 * @throws {Error} the folder does not exist, or the port is taken
 */
export async function serve(folder, port = 0, onRequest = () => false) {
  const root = await realpath(folder);
  if (!(await stat(root)).isDirectory()) throw new Error(`${folder} is not a folder`);
  const server = createServer(async (request, response) => {
    let status = 400; // until the request is parsed
    try {
      const path = pathOf(request.url);
      status = 404;
      if (!onRequest(path, response)) await answer(root, path, response);
    } catch {
      if (!response.headersSent) response.writeHead(status);
      response.end(status === 400 ? "not a request" : "not there");
    }
  });
  return new Promise((resolve, reject) => {
    server.once("error", reject);
    server.listen(port, "127.0.0.1", () => resolve(server));
  });
}

/** The decoded path of a request's target, which is a path or a whole address. @throws {Error} it is neither */
function pathOf(target) {
  const encoded = target.startsWith("/") ? target.replace(/[?#].*/s, "") : new URL(target).pathname;
  return decodeURIComponent(encoded);
}

/** @throws {Error} no such file, or one outside the root after resolving links */
async function answer(root, path, response) {
  const file = await realpath(join(root, path)), found = await stat(file);
  if (file !== root && !file.startsWith(root.endsWith(sep) ? root : root + sep)) throw new Error("outside of the folder");
  if (found.isDirectory() && !path.endsWith("/")) {
    // relative to the parent folder, so that no path redirects to another host
    response.writeHead(301, { Location: `./${encodeURIComponent(basename(path))}/` }).end();
  } else if (found.isDirectory()) {
    await answer(root, `${path}index.html`, response);
  } else if (found.isFile() && !path.endsWith("/")) {
    const content = await readFile(file);
    response.writeHead(200, { "Content-Type": TYPES[extname(file)] ?? "application/octet-stream", "Cache-Control": "no-cache" });
    response.end(content);
  } else {
    throw new Error("not a file");
  }
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const [folder = "build/web", port = "8000"] = process.argv.slice(2);
  try {
    const server = await serve(folder, Number(port));
    console.log(`http://127.0.0.1:${server.address().port}/ serves ${folder}`);
  } catch (error) {
    console.error(`error: cannot serve ${folder} on port ${port}: ${error.message}`);
    process.exitCode = 2;
  }
}

/** demo/serve.js: no request stops it, and nothing outside its folder is served. */

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { mkdir, mkdtemp, rm, symlink, writeFile } from "node:fs/promises";
import { connect } from "node:net";
import { tmpdir } from "node:os";
import { basename, join, relative } from "node:path";
import { after, before, test } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";

import { serve } from "../demo/serve.js";
import { random } from "./files.js";

let above, site, server;
before(async () => {
  above = await mkdtemp(join(tmpdir(), "t2r-"));
  site = join(above, "site");
  await mkdir(join(site, "in ner"), { recursive: true });
  await writeFile(join(above, "secret.txt"), "secret");
  await writeFile(join(site, "index.html"), "front");
  await writeFile(join(site, "in ner", "index.html"), "inner");
  await symlink(join(above, "secret.txt"), join(site, "link.txt"));
  await symlink(above, join(site, "up"));
  await symlink("index.html", join(site, "same.html"));
  server = await serve(`${site}/`);
});
after(async () => {
  server.closeAllConnections();
  server.close();
  await rm(above, { recursive: true });
});

/** The response to these raw bytes. */
function sent(bytes) {
  return new Promise((resolve) => {
    const socket = connect(server.address().port, "127.0.0.1"), parts = [];
    socket.on("data", (part) => parts.push(part));
    socket.on("error", () => {}); // the server may close before it has read everything
    socket.on("close", () => resolve(Buffer.concat(parts).toString("latin1")));
    socket.write(bytes); // a half-closed connection would be dropped unanswered
  });
}

async function got(target) {
  const answer = await sent(`GET ${target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n`);
  return [Number(answer.slice(9, 12)), answer.split("\r\n\r\n").slice(1).join("\r\n\r\n"), answer];
}

test("files, index files and links inside of the folder are served", async () => {
  for (const target of ["/", "/index.html", "/?way=wasm", "/same.html", "http://other/index.html"]) {
    assert.match((await got(target))[2], /^HTTP\/1.1 200 .*front/s, target);
  }
  assert.match((await got("/in%20ner/"))[2], /200 .*inner/s);
  const [status, , answer] = await got("/in%20ner");
  assert.deepEqual([status, /^Location: (.*)\r$/m.exec(answer)[1]], [301, "./in%20ner/"]);
});

test("nothing outside of the folder is served, not through a link either", async () => {
  const secret = ["/link.txt", "/up/secret.txt", "/../secret.txt", "/%2e%2e/secret.txt", "/..%2fsecret.txt", "/in%20ner/../../secret.txt", `/up/${basename(above)}`];
  for (const target of [...secret, "/up", "/up/", "/none", "/index.html/", "/a%00b", `/${"a".repeat(5000)}`]) {
    const [status, body] = await got(target);
    assert.deepEqual([status, body.includes("secret")], [404, false], target);
  }
});

test("a request that is malformed is answered, and the server goes on", async () => {
  for (const target of ["/%", "/%ff", "http://[", "*", "%"]) assert.equal((await got(target))[0], 400, target);
  for (const target of ["//", "////"]) assert.ok((await got(target))[0] < 500, target);
  assert.equal((await got("/"))[0], 200);
});

test("no redirect leads to another host", async () => {
  for (const target of ["//up", "//in%20ner", "////in%20ner", "/in%20ner/../..//in%20ner"]) {
    const location = /^Location: (.*)\r$/m.exec((await got(target))[2])?.[1];
    assert.ok(location === undefined || location.startsWith("./"), `${target} → ${location}`);
  }
});

test("600 random requests", async () => {
  const next = random(17);
  const parts = ["/", "//", "%", "%2e", "%ff", "%00", "..", "?", "#", "[", "]", "http://", ":", "@", "\\", " ", "index.html", "in%20ner", "up", "\u00e9", ";", "\t"];
  const methods = ["GET", "HEAD", "POST", "OPTIONS", "", "get"], ends = ["HTTP/1.1", "HTTP/1.0", "HTTP/9", ""];
  const one = (list) => list[Math.floor(next() * list.length)];
  for (let n = 0; n < 60; n++) {
    const lines = Array.from({ length: 10 }, () => {
      const target = Array.from({ length: Math.floor(next() * 8) }, () => one(parts)).join("");
      return `${one(methods)} ${target} ${one(ends)}\r\nHost: x\r\nConnection: close\r\n\r\n`;
    });
    for (const answer of await Promise.all(lines.map((line) => sent(Buffer.from(line, "latin1"))))) {
      assert.ok(answer === "" || /^HTTP\/1.1 [2-4]\d\d /.test(answer), answer);
      assert.ok(!answer.includes("secret"));
    }
  }
  assert.equal((await got("/"))[0], 200);
});

test("started on a folder that does not exist, it says so in a line and ends with 2", async () => {
  const script = fileURLToPath(new URL("../demo/serve.js", import.meta.url));
  const ended = promisify(execFile)(process.execPath, [script, join(relative(process.cwd(), above), "none"), "0"]);
  await assert.rejects(ended, ({ code, stderr }) => {
    assert.deepEqual([code, stderr.split("\n").length], [2, 2], stderr);
    return true;
  });
});

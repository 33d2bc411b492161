/** Caches the listed files for offline use, each under its hash: only changed files are fetched again. */

const LIST = "files.json";
const ISOLATED = { "Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Embedder-Policy": "require-corp" }; // for threads
const home = new URL("./", self.location.href);
const CACHE = `t2r-files ${home.pathname}`; // another folder has its own

self.addEventListener("install", (event) => event.waitUntil(self.skipWaiting()));
self.addEventListener("activate", (event) => event.waitUntil(self.clients.claim()));
self.addEventListener("fetch", (event) => {
  const url = new URL(event.request.url);
  if (event.request.method !== "GET" || !url.href.startsWith(home.href)) return;
  const name = decodeURIComponent(url.pathname.slice(home.pathname.length)) || "index.html";
  event.respondWith(name === LIST ? freshList() : file(name, event.request));
});

/** The server's list; offline, the cached one. Files no longer listed are removed from the cache. */
async function freshList() {
  const cache = await caches.open(CACHE);
  try {
    const answer = await fetch(new URL(LIST, home), { cache: "no-store" });
    if (!answer.ok) throw new Error(`the answer ${answer.status}`);
    const text = await answer.text(), { files } = JSON.parse(text);
    await cache.put(new URL(LIST, home), made(text, "application/json"));
    const kept = new Set([new URL(LIST, home).href, ...files.map((entry) => key(entry).href)]);
    for (const request of await cache.keys()) if (!kept.has(request.url)) await cache.delete(request);
    return made(text, "application/json");
  } catch (error) {
    return (await cache.match(new URL(LIST, home))) ?? failed(503, error);
  }
}

async function file(name, request) {
  const cache = await caches.open(CACHE);
  let listed = await cache.match(new URL(LIST, home));
  if (!listed || request.mode === "navigate") listed = await freshList();
  const entry = listed.ok ? (await listed.clone().json()).files.find((one) => one.name === name) : undefined;
  if (!entry) return fetch(request).catch((error) => failed(503, error));
  const found = await cache.match(key(entry));
  if (found) return found;
  try {
    const answer = await fetch(new URL(encodeURI(name), home), { cache: "no-store" });
    if (!answer.ok) return isolated(answer);
    const bytes = await whole(answer, name);
    const wrong = bytes.byteLength !== entry.size || (await sha256(bytes)) !== entry.sha256;
    if (wrong) return made(bytes, answer.headers.get("Content-Type")); // the page reports the error; the file is not cached
    const kept = made(bytes, answer.headers.get("Content-Type"));
    await cache.put(key(entry), kept.clone());
    return kept;
  } catch (error) {
    return failed(503, error);
  }
}

/** All bytes of a response; progress is posted to the pages. */
async function whole(answer, name) {
  const parts = [], reader = answer.body.getReader(), pages = await self.clients.matchAll({ type: "window", includeUncontrolled: true });
  let bytes = 0;
  for (let part = await reader.read(); !part.done; part = await reader.read()) {
    parts.push(part.value);
    bytes += part.value.length;
    for (const page of pages) page.postMessage({ name, bytes });
  }
  return new Blob(parts).arrayBuffer();
}

function key({ name, sha256: hash }) {
  return new URL(`${encodeURI(name)}?${hash}`, home);
}

function made(body, type) {
  return new Response(body, { headers: { ...ISOLATED, "Content-Type": type ?? "application/octet-stream" } });
}

function isolated(answer) {
  const headers = new Headers(answer.headers);
  for (const [name, value] of Object.entries(ISOLATED)) headers.set(name, value);
  return new Response(answer.body, { status: answer.status, statusText: answer.statusText, headers });
}

function failed(status, error) {
  return new Response(String(error), { status });
}

async function sha256(bytes) {
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
  return Array.from(digest, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

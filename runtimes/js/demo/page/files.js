/** The files of a page: their list, how much of them has come, and keeping them for the next visit. */

import { failure } from "./sentences.js";

/** files.json, and how large the model is. @throws {Error} file, list */
export async function listed() {
  const answer = await fetch("files.json", { cache: "no-store" }).catch((error) => {
    throw Object.assign(error, { kind: "file" });
  });
  if (!answer.ok) throw failure("file", `the answer ${answer.status}`);
  const list = await answer.json().catch((error) => {
    throw failure("list", error.message);
  });
  if (!Array.isArray(list?.files) || typeof list.graph !== "string") throw failure("list", "no list of files");
  const ofModel = list.files.filter(({ name }) => isOfModel(list, name));
  return { ...list, modelBytes: ofModel.reduce((all, file) => all + file.size, 0) };
}

/**
 * How much of the model and of ONNX Runtime has come, until `done` is called: the service worker tells. Where there is none,
 * the bar has no end.
 */
export function showDownload(list, status, bar) {
  const sizes = new Map(list.files.map(({ name, size }) => [name, size]));
  const wanted = new Set(list.files.map(({ name }) => name).filter((name) => isOfModel(list, name)));
  const come = new Map();
  let shown = -1;
  const hear = ({ data: { name, bytes } }) => {
    if (!wanted.has(name) && !name?.endsWith(".wasm")) return;
    wanted.add(name);
    come.set(name, bytes);
    const [sum, total] = [come, new Map([...wanted].map((one) => [one, sizes.get(one) ?? 0]))].map((all) =>
      [...all.values()].reduce((before, one) => before + one, 0));
    const now = Math.floor((100 * sum) / total);
    if (now === shown) return;
    shown = now;
    status.textContent = `Loading … ${(sum / 1e6).toFixed(1)} of ${(total / 1e6).toFixed(1)} MB`;
    bar.max = total;
    bar.value = sum;
  };
  navigator.serviceWorker?.addEventListener("message", hear);
  return () => {
    navigator.serviceWorker?.removeEventListener("message", hear);
    bar.hidden = true;
  };
}

function isOfModel({ graph }, name) {
  return name === graph || name.startsWith(`${graph}.`);
}

const PATIENCE = 3000; // ms: a browser may register what never becomes ready
const RELOADED = "t2r-reloaded"; // in the tab's storage: it is done once, whatever comes of it

/**
 * Files are kept for later by a service worker; its answers also carry the headers that threads need, on any host. The first
 * visit, and a reload that passes the service worker by, are without them: the page is loaded once more, and runs in one thread
 * if that does not help.
 */
export async function keepFiles() {
  if (!("serviceWorker" in navigator) || !window.isSecureContext) return;
  const had = navigator.serviceWorker.controller;
  await navigator.serviceWorker.register("sw.js");
  await Promise.race([navigator.serviceWorker.ready, new Promise((resolve) => setTimeout(resolve, PATIENCE))]);
  if (window.crossOriginIsolated) sessionStorage.removeItem(RELOADED);
  else if (!had && !sessionStorage.getItem(RELOADED)) {
    sessionStorage.setItem(RELOADED, "yes");
    location.reload();
    await new Promise(() => {});
  }
}

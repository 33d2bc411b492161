/** Generates one sequence token by token, for decoders and translators: contract/generation.md. */

import { numbersOf } from "./arguments.js";
import { T2RError, isWhole, shown } from "./errors.js";
import { requireRoom, requireTokens } from "./signature.js";

/**
 * Check the arguments of a generation. Nothing is read.
 * @param {{signature: import("./types.js").Signature, batch: number, position: number}} at where to continue from
 * @param {import("./sampler.js").Sampler} sampler
 * @param {import("./types.js").Tokens} prompt
 * @param {number} maxTokens
 * @throws {T2RError} sampling, batch, token, position
 */
export function requestOf({ signature, batch, position }, sampler, prompt, maxTokens) {
  if (!isWhole(maxTokens, 1)) {
    throw new T2RError("sampling", "a number of tokens of at least 1", shown(maxTokens), "correct it");
  }
  if (batch !== 1) throw new T2RError("batch", "one sequence to generate", `${batch}`, "pass as many as the decoder has, or reset it");
  const ids = numbersOf(prompt, "a prompt of tokens");
  requireTokens(signature, ids, "a prompt of tokens");
  const stop = numbersOf(sampler.options.stopTokens ?? signature.eosTokens, "stop tokens");
  requireTokens(signature, stop, "stop tokens", 0);
  requireRoom(signature, position, ids.length + maxTokens - 1);
  return { ids, sampler, stop: new Set(stop), maxTokens, banned: signature.bannedTokens ?? [], largest: signature.topK ?? 0 };
}

/**
 * Yield the tokens of a request as they are chosen. The last is not read.
 * @param {ReturnType<typeof requestOf>} request
 * @param {(rows: number[][], wanted: import("./states.js").Wanted) => Promise<any>} read returns the logits, or the largest, as States.run does
 * @param {() => ArrayLike<number>} occurred returns the tokens so far, oldest first
 * @param {import("./ahead.js").Ahead | null} ahead makes drafts
 */
export async function* tokensOf(request, read, occurred, ahead = null) {
  const { ids, sampler, stop, maxTokens, banned, largest } = request;
  const few = sampler.limit > 0 && sampler.limit + banned.length <= largest; // the graph's top-k is enough
  const wanted = few ? "top" : "logits";
  if (ids.length > 1) await read([ids.slice(0, -1)], null);
  let next = ids.slice(-1);
  try {
    for (let left = maxTokens; ; ) {
      const found = ahead ? await ahead.logits(left, wanted) : await read([next], wanted);
      const token = few ? pickOfFew(sampler, found, banned) : pickOfAll(sampler, found, banned, occurred);
      ahead?.chose(token);
      yield token;
      if (--left === 0 || stop.has(token)) return;
      next = [token];
    }
  } finally {
    await ahead?.finish();
  }
}

/** Collect a stream's tokens. It ends when `watch` returns false; an aborted signal's reason is thrown. */
export async function collected(stream, { watch, signal }) {
  const tokens = [];
  for await (const token of stream) {
    tokens.push(token);
    if (watch && (await watch(token)) === false) break;
    signal?.throwIfAborted();
  }
  return tokens;
}

function pickOfFew(sampler, { logits, tokens }, banned) {
  tokens.forEach((token, place) => {
    if (banned.includes(token)) logits[place] = -Infinity;
  });
  return sampler.pick(logits, [], tokens);
}

export function pickOfAll(sampler, logits, banned, occurred) {
  for (const token of banned) logits[token] = -Infinity;
  return sampler.pick(logits, sampler.looksBack ? occurred() : []);
}

/** Compile-time checks of the types: nothing here is run. */

import { Batch, Decoder, KINDS, PrefixCache, Sampler, T2RError, Tokenizer, Translator, WorkerDecoder, readModelFile, readSignature } from "t2r-runtime";
import type { BeamOptions, Kind, OpenOptions, SamplingOptions, Signature, State, StateSpec, Translation } from "t2r-runtime";

type IsAny<T> = 0 extends 1 & T ? true : false;
/** The members of T whose type is any, or that take or return any. */
type Untyped<T> = {
  [K in keyof T]-?: T[K] extends (...given: infer A) => infer R
    ? true extends IsAny<A[number]> | IsAny<Awaited<R>> ? K : never
    : IsAny<T[K]> extends true ? K : never;
}[keyof T];
type Typed<T> = [Untyped<T>] extends [never] ? true : Untyped<T>;

/** Nothing public is any. */
export const typed: [
  Typed<Decoder>, Typed<Translator>, Typed<Tokenizer>, Typed<ReturnType<Tokenizer["stream"]>>, Typed<T2RError>, Typed<Signature>,
  Typed<State>, Typed<StateSpec>, Typed<OpenOptions>, Typed<SamplingOptions>, Typed<BeamOptions>, Typed<Translation>,
  Typed<Pick<typeof Decoder, "open">>, Typed<Pick<typeof Translator, "open">>, Typed<Sampler>,
  Typed<WorkerDecoder>, Typed<Pick<typeof WorkerDecoder, "open">>, Typed<Batch>, Typed<PrefixCache>,
] = [true, true, true, true, true, true, true, true, true, true, true, true, true, true, true, true, true, true, true];
// @ts-expect-error any is detected
export const untyped: Typed<{ decode(ids: any): string }> = true;

export async function used(bytes: Uint8Array): Promise<string> {
  const decoder = await Decoder.open(new URL("file:///story.onnx"), { provider: "cpu", threads: 1, prefill: false, onProgress: ({ loaded, total }) => void (loaded / (total ?? 1)) });
  const { eosTokens: ends }: Signature = decoder.signature;
  const tokenizer: Tokenizer = decoder.tokenizer(), text = tokenizer.stream();
  let story = "";
  for await (const token of decoder.stream(tokenizer.encode("Once"), 40, { temperature: 0.6, stopTokens: ends })) story += text.feed(token);
  const token: number | null = await decoder.loadState(await decoder.saveState(null));
  const seen: Float32Array = await decoder.readVectors(new Float32Array(decoder.signature.inputSize ?? 0));
  story += seen.length;
  const { logits } = await decoder.topK([[token ?? 0]]);
  const kinds: readonly Kind[] = KINDS;
  const found = readSignature(readModelFile(bytes).metadata);
  new Sampler({ seed: 3n }).pick(logits);
  const translator = await Translator.open("de-en.onnx");
  const [best]: Translation[] = await translator.translate([3, 2], { width: 5 });
  story += best?.tokens.length;
  for await (const token of translator.stream([3, 2], 40, { temperature: 0.6 })) story += token;
  story += (await translator.generate([3, 2], 40)).length;
  const away: Pick<Decoder, "generate" | "stream" | "step" | "loadState"> = await WorkerDecoder.open("story.onnx", { ort: "/ort.mjs" });
  story += (await away.generate([1], 2)).length;
  const batch = new Batch(decoder), handle: number = await batch.add([1, 3], 9, { seed: 1 });
  for (const [other, next] of await batch.step()) story += other === handle ? next : "";
  const cache = new PrefixCache(decoder.fork(), { maxBytes: 1 << 20, block: 64 });
  cache.adapt(null);
  story += (await cache.generate([1, 3], 4)).length + cache.reused;
  await decoder.take([[decoder, [0, 0]]]);
  await decoder.adapt([null, decoder.signature.adapters?.[0] ?? null]);
  const { signal } = new AbortController();
  story += (await decoder.prefill([1], { signal })).length + (await batch.add([1], 2, {}, { signal }));
  for await (const token of decoder.stream([1], 2, {}, { signal })) story += token;
  await (await WorkerDecoder.open("story.onnx", { signal })).loadState("story.state", { signal });
  await decoder.generate([1], 2, {}, { onToken: (token: number) => token < 3, signal });
  await translator.translate([3], {}, { onStep: (newest: number[]) => newest.length > 0, signal });
  // @ts-expect-error a search has no tokens of one text
  await translator.translate([3], {}, { onToken: () => true });
  // @ts-expect-error a token is a number
  await decoder.step("1");
  // @ts-expect-error there is no such option
  await decoder.generate([1], 2, { heat: 1 });
  // @ts-expect-error a kind is one of a closed list
  throw new T2RError("other", "a", "b", `${kinds.length} ${found.vocabSize} ${story}`);
}

/** What the types promise, for the compiler alone: nothing here is run. */

import { Decoder, KINDS, Sampler, T2RError, Tokenizer, Translator, readModelFile, readSignature } from "t2r-runtime";
import type { Kind, Signature, Translation } from "t2r-runtime";

export async function used(bytes: Uint8Array): Promise<string> {
  const decoder = await Decoder.open(new URL("file:///story.onnx"), { provider: "cpu", threads: 1, generation: false, onProgress: ({ loaded, total }) => void (loaded / (total ?? 1)) });
  const { eos_tokens: ends }: Signature = decoder.signature;
  const tokenizer: Tokenizer = decoder.tokenizer(), text = tokenizer.stream();
  let story = "";
  for await (const token of decoder.stream(tokenizer.encode("Once"), 40, { temperature: 0.6, stop_tokens: ends })) story += text.feed(token);
  const token: number | null = await decoder.loadState(await decoder.saveState(null));
  const { logits } = await decoder.topK([[token ?? 0]]);
  const kinds: readonly Kind[] = KINDS;
  const found = readSignature(readModelFile(bytes).metadata);
  new Sampler({ seed: 3n }).pick(logits);
  const translator = await Translator.open("de-en.onnx");
  const [best]: Translation[] = await translator.translate([3, 2], { width: 5 });
  story += best?.tokens.length;
  for await (const token of translator.stream([3, 2], 40, { temperature: 0.6 })) story += token;
  story += (await translator.generate([3, 2], 40)).length;
  const { signal } = new AbortController();
  await decoder.generate([1], 2, {}, { onToken: (token: number) => token < 3, signal });
  await translator.translate([3], {}, { onStep: (newest: number[]) => newest.length > 0, signal });
  // @ts-expect-error a search has no tokens of one text
  await translator.translate([3], {}, { onToken: () => true });
  // @ts-expect-error a token is a number
  await decoder.step("1");
  // @ts-expect-error there is no such option
  await decoder.generate([1], 2, { heat: 1 });
  // @ts-expect-error a kind is one of a closed list
  throw new T2RError("other", "a", "b", `${kinds.length} ${found.vocab_size} ${story}`);
}

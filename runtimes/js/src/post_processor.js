/** The special tokens around a text, by the `post_processor` of a tokenizer.json. */

const PROCESSORS = {
  Sequence: ({ processors }) => {
    const all = processors.map(processorOf);
    return (ids) => all.reduce((rest, one) => one(rest), ids);
  },
  TemplateProcessing: ({ single, special_tokens: special }) => (ids) =>
    single.flatMap(({ SpecialToken: token }) => (token ? special[token.id].ids : ids)),
  RobertaProcessing: ({ cls, sep }) => (ids) => [cls[1], ...ids, sep[1]],
  ByteLevel: () => (ids) => ids,
};

/** @param {object | null} part of a tokenizer.json, checked @returns {(ids: number[]) => number[]} */
export function processorOf(part) {
  return part === null ? (ids) => ids : PROCESSORS[part.type](part);
}

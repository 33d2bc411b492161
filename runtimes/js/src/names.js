/** Converts between JavaScript's names and the metadata's: noRepeatNgram and no_repeat_ngram. */

/** A name in camelCase. @param {string} name @returns {string} */
export function camel(name) {
  return name.replace(/_([a-z0-9])/g, (_, letter) => letter.toUpperCase());
}

/** A name in snake_case. @param {string} name @returns {string} */
export function snake(name) {
  return name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
}

/** A plain object with its keys in camelCase. @param {object} values @returns {Record<string, any>} */
export function camelCased(values) {
  return Object.fromEntries(Object.entries(values).map(([name, value]) => [camel(name), value]));
}

/**
 * Records as JSON texts, for pages that parse them: JSON.parse rounds numbers of over 53 bits.
 *
 * @module
 */

const TOKEN = /"[^"\\]*(?:\\.[^"\\]*)*"|[[\]{},]/g;
const RECORDS = '"records":[';

/**
 * Return the texts of the records in a message of the type `records`.
 *
 * @param {string} message
 * @returns {string[]}
 */
export function splitRecords(message) {
  const texts = [];
  let start = message.indexOf(RECORDS) + RECORDS.length;
  let depth = 0;
  const tokens = new RegExp(TOKEN);
  tokens.lastIndex = start;
  for (let match; depth >= 0 && (match = tokens.exec(message)); ) {
    const [token] = match;
    if (token === "[" || token === "{") depth++;
    else if (token === "]" || token === "}") depth--;
    if (depth < 0 || (depth === 0 && token === ",")) {
      texts.push(message.slice(start, match.index));
      start = tokens.lastIndex;
    }
  }
  return texts;
}

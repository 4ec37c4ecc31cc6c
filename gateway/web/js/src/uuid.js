/**
 * Return a random identifier.
 *
 * `crypto.randomUUID` is missing on pages of plain HTTP, except on localhost.
 */
export function createUuid() {
  if (globalThis.crypto.randomUUID) return crypto.randomUUID();
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

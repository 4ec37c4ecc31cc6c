const FIRST_BACKOFF_MS = 500;
const MAX_BACKOFF_MS = 30_000;

/**
 * Return a random delay before the next attempt, with full jitter: a thousand clients of a server
 * that restarts do not come back at once.
 *
 * @param {number} attempt How many attempts failed.
 * @returns {number} Milliseconds.
 */
export function drawBackoff(attempt) {
  return Math.random() * Math.min(MAX_BACKOFF_MS, FIRST_BACKOFF_MS * 2 ** attempt);
}

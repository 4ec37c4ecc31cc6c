/**
 * Web Locks as signs of life. The browser releases a lock when its page or worker ends, also when
 * it crashes, and no event reports that otherwise.
 *
 * @module
 */

/**
 * Hold a lock as long as this page or worker lives.
 *
 * @param {string} name
 * @returns {Promise<void>} Resolves once the lock is held. It resolves at once where there are no
 *   locks, which is on pages of plain HTTP: nobody can wait for the lock there either.
 */
export function holdLock(name) {
  if (!globalThis.navigator?.locks) return Promise.resolve();
  return new Promise((resolve) => {
    navigator.locks.request(name, () => (resolve(), new Promise(() => {})));
  });
}

/**
 * Call back when the holder of a lock has ended.
 *
 * @param {string} name
 * @param {() => void} callback
 */
export function whenReleased(name, callback) {
  globalThis.navigator?.locks?.request(name, () => void callback());
}

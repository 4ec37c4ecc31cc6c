/**
 * Events about many partitions at once. A page gets one event for each partition all the same.
 *
 * @module
 */

/** What a grouped event consists of, by its type. */
export const GROUPED_EVENT_TYPES = { "partitions-ready": "ready", "partitions-error": "error" };

/**
 * Return the single `ready` or `error` events that a grouped event stands for, in order.
 *
 * @param {string} type A key of GROUPED_EVENT_TYPES.
 * @param {{ topics: object[] }} event
 * @returns {object[]}
 */
export function splitGroupedEvent(type, { topics }) {
  return topics.flatMap(({ topic, code, resolved, partitions, offsets }) =>
    partitions.map((partition, n) => {
      if (type === "partitions-ready") return { topic, partition, offset: offsets[n], resolved };
      const problem = `${topic}-${partition} cannot be read for now (${code})`;
      return { topic, partition, code, message: `${problem}; the stream goes on by itself` };
    }),
  );
}

/** All partitions of the feed, by key, and what their states are called. */

export const STATES = ["leaderless", "recovering", "stalled", "resolving", "ready", "streaming"];
export const TROUBLED = new Set(["leaderless", "recovering", "stalled"]);
export const STATE_HELP = {
  leaderless: "no leader",
  recovering: "cannot be read now",
  stalled: "its leader does not answer",
  resolving: "its start is looked for",
  ready: "can be read, nothing new",
  streaming: "records are coming",
};

const FIELDS = ["cluster", "topic", "partition", "state", "cause", "since", "retryAt", "lag", "leader"];

export class Partitions {
  #byKey = new Map();

  get size() {
    return this.#byKey.size;
  }

  get(key) {
    return this.#byKey.get(key);
  }

  values() {
    return this.#byKey.values();
  }

  clear() {
    this.#byKey.clear();
  }

  /** Takes rows and removed keys of an event. Returns whether any came or went. */
  apply(rows = [], removed = []) {
    const before = this.#byKey.size;
    for (const [cluster, topic, partition] of removed) {
      this.#byKey.delete(buildKey(cluster, topic, partition));
    }
    let hasChanged = this.#byKey.size !== before;
    for (const row of rows) {
      const key = buildKey(row[0], row[1], row[2]);
      hasChanged ||= !this.#byKey.has(key);
      const made = { key, topicName: nameTopic(row[0], row[1]) };
      FIELDS.forEach((name, index) => (made[name] = row[index]));
      this.#byKey.set(key, made);
    }
    return hasChanged;
  }

  /** Counts by state. */
  countStates() {
    const counts = new Map(STATES.map((state) => [state, 0]));
    for (const row of this.#byKey.values()) counts.set(row.state, (counts.get(row.state) ?? 0) + 1);
    return counts;
  }
}

function buildKey(cluster, topic, partition) {
  return `${cluster}\0${topic}\0${partition}`;
}

export function nameTopic(cluster, topic) {
  return cluster ? `${cluster}/${topic}` : topic;
}

import { useEffect, useState, useSyncExternalStore } from "react";
import { Stream } from "/gateway.js";

/**
 * A stream of the gateway while the component is mounted.
 *
 * path, filter, fields: what to show. They may change at any time: the connection stays, and
 *   `records` begins anew with what is of the new choice.
 * limit: so many of the newest records are shown.
 * keep: a name; records and position are kept under it in sessionStorage, so that a reload, or
 *   mounting again, goes on from there.
 * All other options are those of the gateway's `Stream`; they count when the component mounts.
 *
 * Returns { records, missed, state, error }: the newest record first; what will not come (gaps).
 */
export function useStream(path, { filter, fields, ...options } = {}) {
  const view = JSON.stringify({ path, filter: filter ?? null, fields: fields ?? null });
  const [feed] = useState(() => new Feed(view, options));
  useEffect(() => feed.show(view), [feed, view]);
  return useSyncExternalStore(feed.subscribe, feed.snapshot);
}

/** What a component sees of a stream: it is changed once a frame, however much comes. */
class Feed {
  #view;
  #limit;
  #stream;
  #shown;
  #next; // becomes #shown with the next frame
  #frame = null;
  #notify;

  constructor(view, { limit = 100, keep, ...options }) {
    const { path, filter, fields } = JSON.parse(view);
    const kept = keep && JSON.parse(sessionStorage.getItem(keep));
    const store = {
      load: () => kept?.position,
      // With what was made of the records before it, or the two may differ after a reload.
      save: (position) =>
        sessionStorage.setItem(keep, JSON.stringify({ position, records: this.#next.records })),
    };
    this.#view = view;
    this.#limit = limit;
    this.#shown = { records: kept?.records ?? [], missed: [], state: "connecting", error: null };
    this.#next = this.#shown;
    this.#stream = new Stream(path, {
      ...options,
      filter: filter ?? undefined,
      fields: fields ?? undefined,
      store: keep && store,
      onrecord: (record) => this.#add(record),
      ongap: (gap) => this.#missed(gap),
      // Also where the position that was kept is of another choice.
      onbegin: ({ changed, view }) => (changed || view) && this.#change({ records: [] }),
      onstate: (state) => this.#change({ state }),
      onerror: (error) => this.#change({ error }),
    });
  }

  /** React calls this at mounting and its result at unmounting; in StrictMode twice in a row,
   * which the stream does not mind: closed, it knows where it stood. */
  subscribe = (notify) => {
    this.#notify = notify;
    this.#stream.connect();
    return () => {
      this.#stream.close();
      cancelAnimationFrame(this.#frame);
      this.#frame = null;
    };
  };

  snapshot = () => this.#shown;

  show(view) {
    if (view === this.#view) return;
    this.#view = view;
    this.#change({ error: null });
    this.#stream.change(JSON.parse(view));
  }

  #add(record) {
    this.#change({ records: [record, ...this.#next.records.slice(0, this.#limit - 1)] });
  }

  #missed(gap) {
    const missed = [...this.#next.missed, gap];
    const anew = gap.reason === "position-refused"; // of a Kafka that is gone, and so are these
    this.#change(anew ? { missed, records: [] } : { missed });
  }

  /** A hidden page gets no frames: no more than `limit` records wait for it. */
  #change(what) {
    this.#next = { ...this.#next, ...what };
    this.#frame ??= requestAnimationFrame(() => {
      this.#frame = null;
      this.#shown = this.#next;
      this.#notify();
    });
  }
}

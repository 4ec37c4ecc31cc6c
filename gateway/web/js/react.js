"use client";
// A React hook for streams of the gateway, described in react.d.ts.
import { useEffect, useState, useSyncExternalStore } from "react";
import { Stream } from "./gateway.js";

const MAX_GAPS = 100;

/** Return what a component shows of a stream, which is open while the component is mounted. */
export function useStream(path, { filter, fields, ...options } = {}) {
  const view = JSON.stringify({ path, filter: filter ?? null, fields: fields ?? null });
  const [feed] = useState(() => new Feed(view, options));
  useEffect(() => feed.show(view), [feed, view]);
  return useSyncExternalStore(feed.subscribe, feed.getSnapshot, feed.getSnapshot);
}

/** What a component shows of a stream. It changes at most once a frame, however much comes. */
class Feed {
  #view;
  #limit;
  #stream;
  #shown;
  #next; // becomes #shown with the next frame
  #frame = null;
  #notify = () => {};

  constructor(view, { limit = 100, keep, ...options }) {
    const { path, filter, fields } = JSON.parse(view);
    // On a server that renders the page there is no sessionStorage, and nothing is subscribed.
    const storage = keep ? globalThis.sessionStorage : undefined;
    const kept = storage && JSON.parse(storage.getItem(keep));
    const store = {
      load: () => kept?.position,
      // With the records before it, or the two could differ after a reload.
      save: (position) =>
        storage.setItem(keep, JSON.stringify({ position, records: this.#next.records })),
    };
    const records = kept?.records ?? [];
    this.#view = view;
    this.#limit = limit;
    this.#shown = { records, missed: [], state: "connecting", trouble: null, error: null };
    this.#next = this.#shown;
    this.#stream = new Stream(path, {
      ...options,
      filter: filter ?? undefined,
      fields: fields ?? undefined,
      store: storage && store,
      onrecord: (record) => this.#add(record),
      ongap: (gap) => this.#addGap(gap),
      // Also if the position that was kept is of another view.
      onbegin: ({ changed, view }) => (changed || view) && this.#change({ records: [] }),
      onstate: (state, about) => this.#change({ state, trouble: about.hint ? about : null }),
      // A trouble is no error: it passes, and `trouble` with it.
      onerror: (error) => error.details?.attempts || this.#change({ error }),
    });
  }

  /**
   * Open the stream. React calls this when the component mounts, and the returned function when it
   * unmounts; in StrictMode twice in a row, where the stream continues from its position.
   */
  subscribe = (notify) => {
    this.#notify = notify;
    this.#stream.connect();
    return () => {
      this.#stream.close();
      cancelAnimationFrame(this.#frame);
      this.#frame = null;
    };
  };

  getSnapshot = () => this.#shown;

  show(view) {
    if (view === this.#view) return;
    this.#view = view;
    this.#change({ error: null });
    this.#stream.change(JSON.parse(view));
  }

  #add(record) {
    this.#change({ records: [record, ...this.#next.records.slice(0, this.#limit - 1)] });
  }

  #addGap(gap) {
    const missed = [...this.#next.missed, gap].slice(-MAX_GAPS);
    // The records are of a Kafka that is gone, too.
    const isRestart = gap.reason === "position-refused";
    this.#change(isRestart ? { missed, records: [] } : { missed });
  }

  /** Show a change with the next frame. A hidden page has none: `limit` records wait for it. */
  #change(parts) {
    this.#next = { ...this.#next, ...parts };
    this.#frame ??= requestAnimationFrame(() => {
      this.#frame = null;
      this.#shown = this.#next;
      this.#notify();
    });
  }
}

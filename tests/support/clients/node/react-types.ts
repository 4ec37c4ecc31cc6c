// What a user of the React hook writes; compiled, never run.
import { type Gap, type StateDetails } from "gateway.js";
import { useStream, type StreamView, type UseStreamOptions } from "gateway.js/react";

interface Order {
  order: string;
  total: number;
}

export function listTotals(customer: string | undefined): number[] {
  const options: UseStreamOptions<Order> = {
    from: "earliest",
    filter: customer === undefined ? undefined : { key: customer },
    fields: null,
    limit: 20,
    keep: "orders",
    worker: "/gateway.js",
  };
  const view: StreamView<Order> = useStream<Order>("/events/orders", options);
  const trouble: StateDetails | null = view.trouble;
  const missed: readonly Gap[] = view.missed;
  void [trouble?.hint, missed[0]?.reason, view.error?.message, view.state === "live"];
  return view.records.map(({ total }) => total);
}

// @ts-expect-error: the hook has the callbacks
useStream("/events/orders", { onrecord: () => undefined });
// @ts-expect-error: an order has no such field
useStream<Order>("/events/orders").records.map(({ price }) => price);

import { StrictMode, useState } from "react";
import { useStream } from "gateway.js/react";
import { createRoot } from "react-dom/client";

const CUSTOMERS = ["ada", "edsger", "frances", "grace", "hedy", "katherine", "linus", "radia"];

function Orders({ customer }) {
  const path = customer ? `/events/orders/${customer}` : "/events/orders";
  const { records, missed, state, trouble, error } = useStream(path, {
    worker: "/gateway.js", // the gateway's own file, for one connection of all tabs
    from: "earliest",
    limit: 20,
    keep: "orders",
  });
  return (
    <>
      <p className="state" role="status" data-state={state}>{state}</p>
      {missed.map((gap, n) => (
        <p className="gap" role="alert" key={n}>
          Some orders will not come ({gap.reason}).
        </p>
      ))}
      {trouble && <p className="error" role="alert">{trouble.hint}</p>}
      {error && <p className="error" role="alert">{error.message}</p>}
      <table>
        <thead>
          <tr>
            <th scope="col">Order</th>
            <th scope="col">Customer</th>
            <th scope="col">Status</th>
            <th scope="col" className="number">Total</th>
          </tr>
        </thead>
        <tbody>
          {records.map(({ order, customer, status, total }) => (
            <tr key={`${order} ${status}`}>
              <td>{order}</td>
              <td>{customer}</td>
              <td>{status}</td>
              <td className="number">{total.toFixed(2)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </>
  );
}

function Page() {
  const [customer, choose] = useState("");
  const [isOpen, open] = useState(true);
  return (
    <>
      <h1>Orders</h1>
      <div className="bar">
        <label>
          Customer{" "}
          <select value={customer} onChange={(event) => choose(event.target.value)}>
            <option value="">everyone</option>
            {CUSTOMERS.map((name) => <option key={name}>{name}</option>)}
          </select>
        </label>
        <button type="button" onClick={() => open(!isOpen)}>{isOpen ? "Close" : "Open"}</button>
      </div>
      {isOpen && <Orders customer={customer} />}
    </>
  );
}

createRoot(document.body).render(<StrictMode><Page /></StrictMode>);

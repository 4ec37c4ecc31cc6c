/** The console: signs in, follows the feed, and shows one section at a time. */

import { credentials, follow, requestJson } from "./api.js";
import { ClientsView } from "./clients.js";
import { ConfigurationView } from "./configuration.js";
import { DeadLettersView } from "./dead-letters.js";
import { byId, setText } from "./format.js";
import { GroupsView } from "./groups.js";
import { IncidentsView } from "./incidents.js";
import { JobsView } from "./jobs.js";
import { OverviewView } from "./overview.js";
import { RecordsView } from "./records.js";
import { TrialView } from "./trial.js";

const views = {
  overview: new OverviewView(),
  clients: new ClientsView(),
  incidents: new IncidentsView(),
  try: new TrialView(),
  records: new RecordsView(),
  groups: new GroupsView(),
  "dead-letters": new DeadLettersView(),
  jobs: new JobsView(),
  configuration: new ConfigurationView(),
};
let isFollowing = false;
let isAdmitted = false; // views ask for nothing before
const missing = new Set(); // sections of what is not configured

/** Sections of what is not configured are not offered. */
function offerSections({ sections }) {
  for (const [id, isConfigured] of Object.entries(sections)) {
    document.querySelector(`#sections a[href="#${id}"]`).parentElement.hidden = !isConfigured;
    if (isConfigured) missing.delete(id);
    else missing.add(id);
  }
}

function showSection() {
  const wanted = location.hash.slice(1);
  const name = wanted in views && !missing.has(wanted) ? wanted : "overview";
  for (const id of Object.keys(views)) byId(id).hidden = id !== name;
  for (const link of document.querySelectorAll("#sections a")) {
    if (link.hash === `#${name}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  for (const [id, view] of Object.entries(views)) {
    (isAdmitted && id === name ? view.show : view.hide)?.call(view);
  }
}

function setState(state, error) {
  const target = byId("connection");
  target.dataset.state = state;
  setText("connection", state === "refused" ? "not signed in" : state);
  if (state === "refused") askForToken(error);
}

function askForToken(error) {
  isFollowing = isAdmitted = false;
  showSection();
  byId("sign-in").hidden = error.status !== 401;
  byId("views").hidden = true;
  byId("message").hidden = !(error.status !== 401 || credentials.get());
  setText("message", error.message);
  if (error.status === 401) byId("token").focus();
  credentials.clear();
}

async function start() {
  if (isFollowing) return;
  isFollowing = true;
  let about;
  try {
    about = await requestJson("console/about");
  } catch (error) {
    if ([401, 403].includes(error.status)) {
      setState("refused", error);
      return;
    }
    isFollowing = false;
    setTimeout(start, 1000);
    return;
  }
  byId("sign-in").hidden = byId("message").hidden = true;
  byId("views").hidden = false;
  setText("name", about.name);
  setText("version", about.version);
  document.title = `${about.name} – gateway console`;
  for (const view of Object.values(views)) view.start?.(about);
  offerSections(about);
  isAdmitted = true;
  showSection();
  await follow("console/events", onEvent, setState);
}

function onEvent(name, event) {
  for (const view of Object.values(views)) view.apply?.(event, name === "snapshot");
}

byId("sign-in").addEventListener("submit", (event) => {
  event.preventDefault();
  credentials.set(byId("user").value.trim(), byId("token").value.trim());
  byId("token").value = "";
  start();
});
addEventListener("hashchange", () => {
  showSection();
  byId("main").focus({ preventScroll: true });
  scrollTo(0, 0);
});
showSection();
start();

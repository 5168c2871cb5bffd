// Which page is shown, and the line at the top that says whether it is live.

import { h, replace, tick, timeOf, visible } from "./dom.js";
import { api } from "./api.js";
import { signInPage, TeamList } from "./pages.js";
import { store } from "./store.js";
import { TeamPage } from "./team.js";

const main = document.getElementById("main");
const top = document.getElementById("top");
let role = null;
let page = null;
let isConnected = false;

const connection = h("span", { class: "connection", role: "status" });
const facts = h("span", { class: "topfacts" });
const crumbs = h("nav", { class: "crumbs", "aria-label": "Where you are" });
const theme = h("button", { type: "button", class: "quiet", onclick: () => turnTheme() }, "Theme");
const leave = h("button", { type: "button", class: "quiet", hidden: true, onclick: () => signOut() }, "Sign out");
replace(top, crumbs, facts, h("span", { class: "spring" }), connection, theme, leave);

function turnTheme() {
  const order = ["auto", "light", "dark"];
  const next = order[(order.indexOf(localStorage.getItem("theme") ?? "auto") + 1) % order.length];
  localStorage.setItem("theme", next);
  applyTheme();
}

function applyTheme() {
  const chosen = localStorage.getItem("theme") ?? "auto";
  if (chosen === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = chosen;
  theme.textContent = { auto: "◐", light: "☼", dark: "☾" }[chosen] ?? "◐";
  theme.setAttribute("aria-label", `Theme: ${chosen}`);
  theme.title = `Theme: ${chosen}`;
}

const WORDS = new Map([
  ["live", ["●", "live"]],
  ["connecting", ["◌", "reconnecting"]],
  ["gone", ["✕", "not there"]],
  ["signed-out", ["✕", "signed out"]],
]);

function showConnection() {
  const isLive = store.state === "live" && !store.trouble;
  const [mark, word] = store.trouble ? ["!", "state not known"] : WORDS.get(store.state);
  const since = isLive ? "" : `, as of ${timeOf(store.seen / 1000)}`;
  connection.className = `connection ${isLive ? "tone-done" : "tone-warn"}`;
  connection.dataset.state = store.trouble ? "trouble" : store.state;
  connection.title = visible(store.trouble ?? "");
  replace(connection, h("span", { "aria-hidden": "true" }, mark), ` ${word}${since}`);
  document.body.classList.toggle("stale", !isLive);
}

function showTop() {
  const where = page instanceof TeamPage ? page : null;
  const title = where ? (store.teams?.find((team) => team.teamId === where.team)?.title ?? where.team.slice(0, 8)) : null;
  replace(crumbs, h("a", { href: "#/", class: "brand" }, "Teams"), title ? [h("span", { "aria-hidden": "true" }, "/"), h("span", { class: "crumb", title: visible(title) }, visible(title))] : null);
  replace(facts, where ? where.summary() : null);
  document.title = title ? `${title} · Teams` : "Teams";
}

function route() {
  if (role === null) return;
  const [, kind, team, session] = location.hash.split("/").map(decode);
  if (page instanceof TeamPage) {
    if (kind === "team" && page.team === team) {
      if (session && session !== page.session) page.open(session, true);
      return;
    }
    page.leave();
  }
  if (kind === "team" && team) {
    // The list names the Team, so it is followed too.
    store.follow({ teams: [team], list: true });
    page = new TeamPage(team, session || null, role);
    page.on("team", new Set(["roster", "tasks"]));
  } else {
    store.follow({ teams: [], list: true });
    page = new TeamList();
    page.update(store.teams);
  }
  replace(main, page.element);
  showTop();
}

function decode(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return "";
  }
}

for (const type of ["team", "sessions", "log", "state", "teams"]) {
  store.addEventListener(type, ({ detail }) => {
    if (type === "state") {
      if (store.state === "signed-out" && role !== null) signIn();
      showConnection();
    }
    if (page instanceof TeamPage) page.on(type, detail);
    else if (type === "teams" && page instanceof TeamList) page.update(store.teams);
    if (type !== "log") showTop();
  });
}

function enter(found) {
  role = found;
  leave.hidden = false;
  connection.hidden = false;
  if (!isConnected) {
    isConnected = true;
    store.connect();
  } else store.port.postMessage({ kind: "nudge" });
  page = null;
  route();
  showConnection();
}

function signIn() {
  if (page instanceof TeamPage) page.leave();
  role = null;
  page = null;
  leave.hidden = true;
  connection.hidden = true;
  replace(main, signInPage(enter));
  showTop();
}

async function signOut() {
  await api.signOut().catch(() => {});
  location.assign("/");
  location.reload();
}

async function begin() {
  applyTheme();
  // A token in the fragment never reaches a server's log; it is exchanged and taken out of the address at once.
  const given = /^#token=(.+)$/.exec(location.hash)?.[1];
  if (given) history.replaceState(null, "", "/");
  try {
    enter((given ? await api.signIn(decode(given)) : await api.role()).role);
  } catch {
    signIn();
  }
}

addEventListener("hashchange", route);
setInterval(tick, 1000);
begin();

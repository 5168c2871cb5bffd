// What this tab knows: newest views by Team, live status by Session, logs of the conversations that were opened.

import { setClock } from "./dom.js";
import { Feed } from "./feed.js";
import { Log } from "./log.js";

class Store extends EventTarget {
  constructor() {
    super();
    this.state = "connecting";
    this.seen = Date.now();
    this.trouble = null;
    this.teams = null;
    this.views = new Map();
    this.statuses = new Map();
    this.logs = new Map();
    this.following = { teams: [], list: false };
    this.port = null;
    this.name = crypto.randomUUID?.() ?? String(Math.random());
  }

  connect() {
    this.port = openPort();
    this.port.onmessage = ({ data }) => this.hear(data);
    this.port.start?.();
    const lock = `tab ${this.name}`;
    navigator.locks?.request(lock, () => new Promise(() => {}));
    this.lock = navigator.locks ? lock : null;
    addEventListener("pagehide", () => this.port.postMessage({ kind: "bye", tab: this.name }));
    addEventListener("pageshow", (event) => event.persisted && this.ask());
    addEventListener("online", () => this.port.postMessage({ kind: "nudge" }));
    document.addEventListener("visibilitychange", () => document.visibilityState === "visible" && this.port.postMessage({ kind: "nudge" }));
  }

  follow({ teams = [], list = false }) {
    this.following = { teams, list };
    this.ask();
  }

  // Open a conversation: its newest page first, then everything that comes.
  open(session) {
    const known = this.logs.get(session);
    if (known) return known;
    const log = new Log(session, () => this.emit("log", session));
    this.logs.set(session, log);
    log.load().then(() => this.ask());
    return log;
  }

  forget(keep) {
    for (const session of this.logs.keys()) if (session !== keep) this.logs.delete(session);
    this.ask();
  }

  ask() {
    const sessions = [...this.logs.values()].filter((log) => log.isLoaded).map((log) => [log.session, log.lastSeq]);
    this.port.postMessage({ kind: "follow", tab: this.name, lock: this.lock, sessions, ...this.following });
    this.lock = null; // one watch is enough
  }

  hear(message) {
    if (message.kind === "state") {
      this.state = message.state;
      this.seen = message.seen;
      this.emit("state");
      return;
    }
    const { event, data } = message;
    if (event === "hello") setClock(data.skew);
    else if (event === "teams") {
      this.teams = data.teams;
      this.emit("teams");
    } else if (event === "team") this.takeTeam(data);
    else if (event === "sessions") {
      for (const session of data.sessions) this.statuses.set(session.id, session);
      this.emit("sessions", data.sessions.map((session) => session.id));
    } else if (event === "log") this.logs.get(data.sessionId)?.append(data.events);
    else if (event === "delta") this.logs.get(data.sessionId)?.stream(data);
    else if (event === "fault") this.logs.get(data.sessionId)?.fail(data.message);
    else if (event === "resync") for (const session of data.sessions) this.logs.get(session)?.clear();
    else if (event === "trouble") {
      this.trouble = data.message ?? null;
      this.emit("state");
    }
  }

  // Only a collection with another version is replaced; the others stay the objects that they were.
  takeTeam(view) {
    const before = this.views.get(view.teamId);
    const next = { ...view };
    const touched = new Set();
    for (const name of ["roster", "tasks", "failure"]) {
      if (before && before.versions[name] === view.versions[name]) next[name] = before[name];
      else touched.add(name);
    }
    if (before?.closed !== view.closed) touched.add("closed");
    this.views.set(view.teamId, next);
    this.emit("team", touched);
  }

  emit(type, detail) {
    this.dispatchEvent(new CustomEvent(type, { detail }));
  }
}

function openPort() {
  if (typeof SharedWorker === "function") {
    const address = "/web/feed-worker.js";
    const policy = globalThis.trustedTypes?.createPolicy("panel", { createScriptURL: () => address });
    return new SharedWorker(policy ? policy.createScriptURL("") : address, { type: "module", name: "feed" }).port;
  }
  const channel = new MessageChannel();
  new Feed().attach(channel.port1);
  return channel.port2;
}

export const store = new Store();

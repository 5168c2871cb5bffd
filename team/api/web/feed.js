// One stream for all tabs of a browser. Runs in a shared worker, or in the page where there is none.
//
// A tab says what it follows; the stream asks for the union, from the lowest cursor. Each tab is sent what lies behind
// its own cursor, so that no event reaches it twice and none is missed.

const SILENCE_MS = 25_000;
const FIRST_PAUSE_MS = 400;
const LONGEST_PAUSE_MS = 5_000;

export class Feed {
  constructor() {
    this.tabs = new Map();
    this.views = new Map(); // what a new tab is shown at once: the newest frame of each kind and Team
    this.statuses = new Map();
    this.cursors = new Map();
    this.asked = "";
    this.state = "connecting";
    this.pause = FIRST_PAUSE_MS;
    this.attempt = null;
    this.timer = null;
    this.seen = Date.now();
  }

  attach(port) {
    const tab = { port, teams: [], sessions: new Map(), list: false };
    port.onmessage = ({ data }) => this.hear(tab, data);
    port.start?.();
  }

  hear(tab, message) {
    if (message.kind === "follow") {
      this.tabs.set(message.tab, tab);
      tab.teams = message.teams;
      tab.list = message.list;
      tab.sessions = new Map(message.sessions);
      tab.port.postMessage({ kind: "state", state: this.state, seen: this.seen });
      if (this.views.has("hello")) tab.port.postMessage(this.views.get("hello"));
      for (const team of tab.teams) this.show(tab, team);
      if (tab.list && this.views.has("teams")) tab.port.postMessage(this.views.get("teams"));
      if (message.lock) this.watch(message.tab, message.lock);
      this.open();
    } else if (message.kind === "bye") this.drop(message.tab);
    else if (message.kind === "nudge") this.open(this.state !== "live");
  }

  show(tab, team) {
    const view = this.views.get(`team ${team}`);
    if (view) tab.port.postMessage(view);
    const sessions = this.statuses.get(team);
    if (sessions) tab.port.postMessage(frame("sessions", { teamId: team, sessions: [...sessions.values()] }));
  }

  // A tab that was closed or has crashed gives its lock back.
  watch(name, lock) {
    navigator.locks?.request(lock, () => this.drop(name));
  }

  drop(name) {
    if (this.tabs.delete(name)) this.open();
  }

  wanted() {
    const teams = new Set();
    const sessions = new Map();
    let list = false;
    for (const tab of this.tabs.values()) {
      for (const team of tab.teams) teams.add(team);
      for (const [id, after] of tab.sessions) sessions.set(id, Math.min(after, sessions.get(id) ?? after));
      list ||= tab.list;
    }
    return { teams, sessions, list };
  }

  // Open the stream again when something is asked for that the present one does not carry.
  open(force = false) {
    const { teams, sessions, list } = this.wanted();
    const asked = JSON.stringify([[...teams].sort(), [...sessions.keys()].sort(), list]);
    const behind = [...sessions].some(([id, after]) => after < (this.cursors.get(id) ?? Infinity));
    if (!force && asked === this.asked && !behind) return;
    this.asked = asked;
    this.attempt?.abort();
    clearTimeout(this.timer);
    this.cursors = new Map(sessions);
    if (teams.size === 0 && sessions.size === 0 && !list) return;
    this.attempt = new AbortController();
    this.run(this.attempt, teams, list);
  }

  async run(attempt, teams, list) {
    const query = new URLSearchParams();
    for (const team of teams) query.append("team", team);
    for (const [id, after] of this.cursors) query.append("session", `${id}:${after}`);
    if (list) query.set("teams", "true");
    let silence = null;
    const alive = () => {
      this.seen = Date.now();
      clearTimeout(silence);
      silence = setTimeout(() => attempt.abort(), SILENCE_MS);
    };
    let lost = "connecting";
    try {
      alive();
      const answer = await fetch(`/v1/stream?${query}`, { signal: attempt.signal, cache: "no-store", headers: { "Team-Panel": "1" } });
      if (answer.status === 401) lost = "signed-out";
      else if (answer.status === 404) lost = "gone";
      else if (answer.ok) {
        this.pause = FIRST_PAUSE_MS;
        this.tell("live");
        await this.read(answer.body.getReader(), attempt, alive);
      }
    } catch {
      // Whatever broke the connection, the next one goes on from the cursor.
    } finally {
      clearTimeout(silence);
    }
    if (attempt !== this.attempt) return;
    this.tell(lost);
    this.timer = setTimeout(() => this.open(true), this.pause * (0.75 + Math.random() / 2));
    this.pause = Math.min(this.pause * 2, LONGEST_PAUSE_MS);
  }

  async read(reader, attempt, alive) {
    const decoder = new TextDecoder();
    let rest = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done || attempt !== this.attempt) return;
      alive();
      const blocks = (rest + decoder.decode(value, { stream: true })).split("\n\n");
      rest = blocks.pop();
      for (const block of blocks) this.take(block);
    }
  }

  take(block) {
    let event = "message";
    let data = "";
    for (const line of block.split("\n")) {
      if (line.startsWith("event: ")) event = line.slice(7);
      else if (line.startsWith("data: ")) data = line.slice(6);
    }
    if (data) this.deliver(event, JSON.parse(data));
  }

  deliver(event, data) {
    if (event === "log") return this.deliverLog(data);
    if (event === "hello") {
      data.skew = data.now - Date.now() / 1000;
      this.views.set("hello", frame(event, data));
    }
    if (event === "resync") for (const id of data.sessions) this.reset(id);
    if (event === "team") this.views.set(`team ${data.teamId}`, frame(event, data));
    if (event === "teams") this.views.set("teams", frame(event, data));
    if (event === "sessions") {
      const known = this.statuses.get(data.teamId) ?? new Map();
      for (const session of data.sessions) known.set(session.id, session);
      this.statuses.set(data.teamId, known);
    }
    for (const tab of this.tabs.values()) {
      const team = data.teamId;
      if (team && !tab.teams.includes(team)) continue;
      if (event === "teams" && !tab.list) continue;
      if (data.sessionId && !tab.sessions.has(data.sessionId)) continue;
      tab.port.postMessage(frame(event, data));
    }
    return undefined;
  }

  deliverLog({ sessionId, events }) {
    this.cursors.set(sessionId, events.at(-1).seq);
    for (const tab of this.tabs.values()) {
      const after = tab.sessions.get(sessionId);
      if (after === undefined) continue;
      const fresh = events.filter((event) => event.seq > after);
      if (fresh.length === 0) continue;
      tab.sessions.set(sessionId, fresh.at(-1).seq);
      tab.port.postMessage(frame("log", { sessionId, events: fresh }));
    }
  }

  reset(id) {
    this.cursors.set(id, 0);
    for (const tab of this.tabs.values()) if (tab.sessions.has(id)) tab.sessions.set(id, 0);
  }

  tell(state) {
    this.state = state;
    for (const tab of this.tabs.values()) tab.port.postMessage({ kind: "state", state, seen: this.seen });
  }
}

function frame(event, data) {
  return { kind: "frame", event, data };
}

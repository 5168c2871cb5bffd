// Turns over time, a line for each member: queued, executing on which worker, waiting.

import { clock, duration, h, replace, timeOf, visible } from "./dom.js";
import { api } from "./api.js";

const LIVE_MS = 1_000;
const STATES = new Map([
  ["queued", "queued"],
  ["running", "working"],
  ["parked", "waiting"],
]);
const RANGES = [
  [300, "5 min"],
  [3600, "1 h"],
  [86400, "1 day"],
  [Infinity, "all"],
];

export class Timeline {
  constructor(team) {
    this.team = team;
    this.turns = [];
    this.range = Infinity;
    this.isVisible = false;
    this.isStale = true;
    this.body = h("div", { class: "timeline" });
    const ranges = h("div", { class: "ranges", role: "group", "aria-label": "Range" }, RANGES.map(([seconds, text]) => h("button", { type: "button", class: "quiet", "aria-pressed": String(seconds === this.range), onclick: (event) => this.choose(seconds, event.currentTarget) }, text)));
    const legend = h("div", { class: "legend", "aria-hidden": "true" }, [...STATES].map(([name, word]) => h("span", { class: `key span-${name}` }, word)));
    this.element = h("section", { class: "tabpane", id: "pane-timeline", "aria-label": "Turns over time" }, h("div", { class: "timelinehead" }, ranges, legend), this.body);
  }

  choose(seconds, button) {
    this.range = seconds;
    for (const other of button.parentElement.children) other.setAttribute("aria-pressed", String(other === button));
    this.draw();
  }

  show(isVisible, labels) {
    this.labels = labels;
    this.isVisible = isVisible;
    if (isVisible) this.refresh();
  }

  touch() {
    this.isStale = true;
    if (this.isVisible) this.refresh();
  }

  // At most one read a second, however many things change.
  async refresh() {
    if (!this.isStale || this.isReading) return;
    this.isReading = true;
    this.isStale = false;
    try {
      this.turns = (await api.timeline(this.team)).turns;
      this.draw();
    } catch {
      this.isStale = true;
    }
    setTimeout(() => {
      this.isReading = false;
      if (this.isStale && this.isVisible) this.refresh();
    }, LIVE_MS);
  }

  draw() {
    const now = clock();
    const all = this.turns.flatMap((turn) => turn.spans);
    if (all.length === 0) {
      replace(this.body, h("p", { class: "empty" }, "No turns yet."));
      return;
    }
    const last = Math.max(...all.map((span) => span.until ?? now));
    const first = Math.max(Math.min(...all.map((span) => span.since)), last - this.range);
    const width = Math.max(1, last - first);
    const lines = new Map();
    for (const turn of this.turns) {
      const line = lines.get(turn.sessionId) ?? [];
      line.push(turn);
      lines.set(turn.sessionId, line);
    }
    const rows = [...this.labels].filter(([session]) => lines.has(session)).map(([session, name]) => {
      const track = h("div", { class: "track", role: "list", "aria-label": `Turns of ${visible(name)}` });
      for (const turn of lines.get(session)) {
        for (const span of turn.spans) {
          const until = span.until ?? now;
          if (until < first) continue;
          const start = Math.max(span.since, first);
          const text = `turn ${turn.ordinal}: ${STATES.get(span.state) ?? span.state}${span.worker ? ` on ${span.worker}` : ""}, ${duration(until - span.since)} from ${timeOf(span.since)}${turn.reason && span.until ? `, ended ${turn.reason}` : ""}`;
          track.append(h("span", { class: `span span-${span.state}${span.until ? "" : " open"}`, role: "listitem", title: text, "aria-label": text, style: { left: `${(100 * (start - first)) / width}%`, width: `${Math.max(0.15, (100 * (until - start)) / width)}%` } }, span.worker ? h("span", { class: "spanlabel" }, visible(span.worker)) : null));
        }
      }
      return h("div", { class: "lane" }, h("span", { class: "lanename" }, visible(name)), track);
    });
    const marks = [0, 0.25, 0.5, 0.75, 1].map((part) => h("span", {}, timeOf(first + part * width)));
    replace(this.body, rows, h("div", { class: "axis", "aria-hidden": "true" }, h("span", { class: "lanename" }), h("div", { class: "marks" }, marks)));
  }
}

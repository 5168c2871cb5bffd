// One Team: roster and board beside conversation, timeline and dependencies.

import { clip, h, replace, visible } from "./dom.js";
import { api } from "./api.js";
import { closeTeam, interrupt, openMenu, selectModel } from "./actions.js";
import { Board, Graph } from "./board.js";
import { Conversation } from "./conversation.js";
import { Roster } from "./roster.js";
import { store } from "./store.js";
import { Timeline } from "./timeline.js";
import { baseName, tokens } from "./words.js";

const TABS = [
  ["conversation", "Conversation"],
  ["timeline", "Timeline"],
  ["graph", "Dependencies"],
];
const PANES = [["roster", "Members"], ["conversation", "Talk"], ["board", "Board"], ["timeline", "Timeline"], ["graph", "Graph"]];
const USAGE_MS = 4_000;

export class TeamPage {
  constructor(team, session, role) {
    this.team = team;
    this.session = session ?? team;
    this.canAct = role === "operator";
    this.roster = new Roster({ onOpen: (id) => this.open(id), onMenu: (entry, status, button) => this.menu(entry, status, button) });
    this.board = new Board();
    this.graph = new Graph();
    this.timeline = new Timeline(team);
    this.conversation = new Conversation({ canAct: this.canAct });
    this.failure = h("div", { class: "failure", role: "alert", hidden: true });
    this.tabs = h("div", { class: "tabs", role: "tablist", "aria-label": "Views" });
    this.nav = h("nav", { class: "panes", "aria-label": "Views" });
    this.center = h("div", { class: "center" }, this.tabs, this.conversation.element, this.timeline.element, this.graph.element);
    this.grid = h("div", { class: "grid" }, this.roster.element, this.center, this.board.element);
    this.element = h("div", { class: "teampage" }, this.failure, this.grid, this.nav);
    this.used = null;
    this.makeTabs();
    this.choose("conversation", "conversation");
    this.open(this.session, false);
  }

  get view() {
    return store.views.get(this.team);
  }

  get statuses() {
    const found = new Map();
    for (const entry of this.view?.roster ?? []) if (store.statuses.has(entry.sessionId)) found.set(entry.sessionId, store.statuses.get(entry.sessionId));
    for (const status of store.statuses.values()) if (status.parentId && found.has(status.parentId)) found.set(status.id, status);
    return found;
  }

  makeTabs() {
    replace(this.tabs, TABS.map(([name, text]) => h("button", { type: "button", role: "tab", id: `tab-${name}`, "aria-controls": `pane-${name}`, onclick: () => this.choose(name, name) }, text)));
    this.tabs.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      const names = TABS.map(([name]) => name);
      const next = names[(names.indexOf(this.tab) + step + names.length) % names.length];
      this.choose(next, next);
      document.getElementById(`tab-${next}`).focus();
      event.preventDefault();
    });
    replace(this.nav, PANES.map(([name, text]) => h("button", { type: "button", data: { pane: name }, onclick: () => this.choose(TABS.some(([tab]) => tab === name) ? name : this.tab, name) }, text)));
  }

  // `tab` is what the middle shows on a wide screen, `pane` the one thing that a narrow screen shows.
  choose(tab, pane) {
    this.tab = tab;
    this.element.dataset.pane = pane;
    for (const [name] of TABS) {
      const button = this.tabs.querySelector(`#tab-${name}`);
      const isChosen = name === tab;
      button.setAttribute("aria-selected", String(isChosen));
      button.tabIndex = isChosen ? 0 : -1;
      this.center.querySelector(`#pane-${name}`).hidden = !isChosen;
    }
    for (const button of this.nav.children) button.setAttribute("aria-pressed", String(button.dataset.pane === pane));
    this.timeline.show(tab === "timeline", this.labels());
    if (tab === "conversation") this.conversation.list.plan();
  }

  labels() {
    const labels = new Map((this.view?.roster ?? []).map((entry) => [entry.sessionId, entry.target]));
    for (const status of this.statuses.values()) if (!labels.has(status.id)) labels.set(status.id, status.label);
    return labels;
  }

  entry() {
    const found = this.view?.roster.find((entry) => entry.sessionId === this.session);
    if (found) return found;
    const status = store.statuses.get(this.session);
    return status ? { target: status.label, sessionId: status.id, phase: "active", isOutside: true } : null;
  }

  open(session, isChosen = true) {
    this.session = session;
    store.forget(session);
    this.conversation.show(store.open(session), this.entry());
    if (isChosen) {
      history.replaceState(null, "", `#/team/${encodeURIComponent(this.team)}/${encodeURIComponent(session)}`);
      this.choose("conversation", "conversation");
    }
    this.updateRoster();
  }

  menu(entry, status, button) {
    const isLead = entry.sessionId === this.team;
    openMenu(button, [
      { text: "Open the conversation", run: () => this.open(entry.sessionId) },
      { text: "Interrupt…", isDisabled: !status.turn, run: () => interrupt(entry) },
      { text: "Change model…", run: () => selectModel(entry, status) },
      ...(isLead ? [{ text: "Close the Team…", isDangerous: true, run: () => closeTeam(this.team) }] : []),
    ]);
  }

  updateRoster() {
    const { view } = this;
    this.roster.update({ view, statuses: this.statuses, selected: this.session, isLive: store.state === "live" && !store.trouble, usage: this.used, canAct: this.canAct });
    this.conversation.header(this.entry(), store.statuses.get(this.session));
  }

  on(type, detail) {
    if (type === "team") {
      const { view } = this;
      if (!view) return;
      if (detail.has("roster")) {
        this.conversation.show(this.conversation.log, this.entry());
        this.timeline.labels = this.labels();
      }
      this.board.update(view.tasks);
      this.graph.update(view.tasks);
      this.failure.hidden = !view.failure;
      this.failure.textContent = view.failure ? `The Team's log cannot be read further; this is its last valid state. ${visible(view.failure)}` : "";
      this.updateRoster();
    } else if (type === "sessions") {
      this.updateRoster();
      this.timeline.labels = this.labels();
      this.timeline.touch();
      this.touchUsage();
    } else if (type === "log" && detail === this.session) this.conversation.update();
    else if (type === "state") this.updateRoster();
  }

  // What a Team used changes with every answer; the sums are read now and then.
  touchUsage() {
    if (this.usageTimer) return;
    const read = async () => {
      try {
        this.used = usageBySession(await api.usage(this.team));
        this.updateRoster();
      } catch {
        this.used = null;
      }
    };
    if (this.used === null) read();
    this.usageTimer = setTimeout(() => {
      this.usageTimer = null;
      read();
    }, USAGE_MS);
  }

  summary() {
    const { view } = this;
    const lead = store.statuses.get(this.team);
    const used = this.used ? [...this.used.values()].reduce((sum, row) => sum + row.input + row.output, 0) : 0;
    return [
      lead?.cwd ? h("span", { class: "fact path", title: visible(lead.cwd) }, clip(baseName(lead.cwd), 48)) : null,
      view?.closed ? h("span", { class: "tag bad" }, "closed") : null,
      used ? h("span", { class: "fact" }, `${tokens(used)} tokens`) : null,
    ];
  }

  leave() {
    clearTimeout(this.usageTimer);
    this.timeline.show(false, new Map());
    store.forget(null);
  }
}

function usageBySession(answer) {
  const found = new Map();
  for (const row of answer.sessions ?? []) found.set(row.sessionId, { input: row.inputTokens ?? 0, output: row.outputTokens ?? 0 });
  return found;
}

// The roster: who is there, what each does, why it waits, and what went wrong.

import { ago, clip, dateOf, h, reconcile, replace, visible } from "./dom.js";
import { describe, modelName, tokens } from "./words.js";

export class Roster {
  constructor({ onOpen, onMenu }) {
    this.onOpen = onOpen;
    this.onMenu = onMenu;
    this.list = h("ul", { class: "roster", "aria-label": "Members" });
    this.count = h("span", { class: "count" });
    this.element = h("section", { class: "pane", id: "pane-roster", "aria-labelledby": "roster-title" }, h("div", { class: "panehead" }, h("h2", { id: "roster-title" }, "Members"), this.count), this.list);
  }

  update({ view, statuses, selected, isLive, usage, canAct }) {
    if (!view) return;
    const known = new Set(view.roster.map((entry) => entry.sessionId));
    const entries = [...view.roster];
    for (const status of statuses.values()) {
      if (!known.has(status.id)) entries.push({ target: status.label, sessionId: status.id, phase: "active", isOutside: true });
    }
    const owned = ownedBy(view.tasks);
    const working = entries.filter((entry) => statuses.get(entry.sessionId)?.turn?.state === "running").length;
    this.count.textContent = `${view.roster.length} in the Team, ${working} working`;
    reconcile(this.list, entries, (entry) => entry.sessionId, () => h("li", { class: "member" }), (row, entry) => {
      const status = statuses.get(entry.sessionId);
      const tasks = owned.get(entry.target) ?? [];
      const used = spent(usage?.get(entry.sessionId));
      const stamp = JSON.stringify([entry, status, tasks, selected === entry.sessionId, isLive, used, canAct]);
      if (row.stamp === stamp) return;
      const focused = row.contains(document.activeElement) ? document.activeElement.dataset.role : null;
      row.stamp = stamp;
      this.fill(row, { entry, status, tasks, isSelected: selected === entry.sessionId, isLive, used, canAct });
      if (focused) row.querySelector(`[data-role="${focused}"]`)?.focus();
    });
  }

  fill(row, { entry, status, tasks, isSelected, isLive, used, canAct }) {
    const state = describe(entry, status);
    const tone = isLive ? state.tone : `${state.tone} stale`;
    row.className = `member tone-${tone}${isSelected ? " selected" : ""}`;
    row.dataset.state = state.word;
    const role = entry.isOutside ? "subagent" : entry.target === "lead" ? "lead" : "teammate";
    const isIdleOwner = tasks.length > 0 && status && !status.turn;
    const facts = [
      status?.model ? h("span", { class: "fact model", title: `Model ${visible(status.model)}` }, clip(modelName(status.model), 48)) : null,
      entry.provider ? h("span", { class: "fact", title: "How it was created" }, entry.provider) : null,
      status?.pending ? h("span", { class: `fact${status.held ? " warn" : ""}` }, `${status.pending} ${status.held ? "held" : "unread"}`) : null,
      used ? h("span", { class: "fact", title: `${used.input} tokens in, ${used.output} out` }, `${tokens(used.input + used.output)} tokens`) : null,
      tasks.length ? h("span", { class: `fact${isIdleOwner ? " warn" : ""}` }, `${isIdleOwner ? "idle, owns" : "owns"} ${tasks.join(", ")}`) : null,
    ];
    const open = h(
      "button",
      { type: "button", class: "memberopen", data: { role: "open" }, "aria-current": isSelected ? "true" : null, onclick: () => this.onOpen(entry.sessionId) },
      h("span", { class: "mark", "aria-hidden": "true" }, state.mark),
      h("span", { class: "name" }, visible(entry.target)),
      h("span", { class: "role" }, role),
      h("span", { class: "state" }, state.word, state.since ? [" ", ago(state.since)] : null),
      state.detail || state.until ? h("span", { class: "detail", title: visible(state.detail) }, clip(state.detail, 220), state.until ? h("span", {}, " until ", h("time", {}, dateOf(state.until))) : null) : null,
      entry.description ? h("span", { class: "description" }, clip(entry.description, 200)) : null,
      h("span", { class: "facts" }, facts),
    );
    const menu = canAct && status
      ? h("button", { type: "button", class: "icon", data: { role: "menu" }, "aria-label": `Actions for ${visible(entry.target)}`, "aria-haspopup": "menu", onclick: (event) => this.onMenu(entry, status, event.currentTarget) }, "⋯")
      : null;
    replace(row, open, menu);
  }
}

// A Session that used nothing reads as one whose usage is not known yet: its row need not change when that arrives.
function spent(usage) {
  return usage && usage.input + usage.output > 0 ? usage : null;
}

function ownedBy(tasks) {
  const owned = new Map();
  for (const task of tasks) {
    if (!task.ownerName || task.status === "completed") continue;
    const list = owned.get(task.ownerName) ?? [];
    list.push(task.id);
    owned.set(task.ownerName, list);
  }
  return owned;
}

// The board by status, and the drawing of what depends on what.

import { clip, h, reconcile, replace, svg, visible } from "./dom.js";
import { taskState } from "./words.js";

const GROUPS = [
  ["in_progress", "In progress"],
  ["ready", "Ready"],
  ["blocked", "Blocked"],
  ["completed", "Completed"],
];

export class Board {
  constructor() {
    this.groups = new Map();
    this.count = h("span", { class: "count" });
    this.empty = h("p", { class: "empty" }, "No tasks yet.");
    const body = h("div", { class: "board" }, this.empty);
    for (const [name, title] of GROUPS) {
      const count = h("span", { class: "count" });
      const list = h("ul", { class: "tasks", "aria-label": `${title} tasks` });
      const group = h("section", { class: "group", data: { group: name } }, h("h3", {}, title, " ", count), list);
      this.groups.set(name, { group, list, count });
      body.append(group);
    }
    this.bar = h("div", { class: "bar", role: "img" });
    this.element = h("section", { class: "pane", id: "pane-board", "aria-labelledby": "board-title" }, h("div", { class: "panehead" }, h("h2", { id: "board-title" }, "Board"), this.count), this.bar, body);
  }

  update(tasks) {
    if (this.tasks === tasks) return;
    this.tasks = tasks;
    const sorted = new Map(GROUPS.map(([name]) => [name, []]));
    for (const task of tasks) sorted.get(taskState(task).group).push(task);
    const done = sorted.get("completed").length;
    this.count.textContent = tasks.length ? `${done} of ${tasks.length} completed` : "";
    this.empty.hidden = tasks.length > 0;
    this.bar.setAttribute("aria-label", `${done} of ${tasks.length} tasks completed`);
    this.bar.hidden = tasks.length === 0;
    this.bar.style.setProperty("--done", tasks.length ? String(done / tasks.length) : "0");
    for (const [name, { group, list, count }] of this.groups) {
      const found = sorted.get(name);
      group.hidden = found.length === 0;
      count.textContent = String(found.length);
      reconcile(list, found, (task) => task.id, () => h("li", { class: "task" }), fillTask);
    }
  }
}

function fillTask(row, task) {
  const stamp = JSON.stringify(task);
  if (row.stamp === stamp) return;
  row.stamp = stamp;
  const state = taskState(task);
  row.className = `task tone-${state.tone}`;
  row.id = `row-${task.id}`;
  row.dataset.task = task.id;
  const open = task.openBlockers ?? [];
  const all = task.blockedBy ?? [];
  const finished = all.filter((id) => !open.includes(id));
  const wasOpen = row.querySelector("details")?.open ?? false;
  replace(
    row,
    h("div", { class: "taskhead" }, h("span", { class: "mark", "aria-hidden": "true" }, state.mark), h("span", { class: "taskid" }, task.id), h("span", { class: "state" }, state.word), h("span", { class: "owner" }, task.ownerName ? `owner ${visible(task.ownerName)}` : "no owner")),
    h("p", { class: "subject" }, clip(task.subject, 220)),
    open.length ? h("p", { class: "blockers" }, `waits for ${open.join(", ")}`) : null,
    finished.length && task.status !== "completed" ? h("p", { class: "blockersdone" }, `after ${finished.join(", ")} (completed)`) : null,
    (task.writeScopeWarnings ?? []).map((warning) => h("p", { class: "overlap" }, `⚠ ${visible(warning.scope)} overlaps ${warning.taskId} (${visible(warning.otherScope)})`)),
    h("details", { open: wasOpen }, h("summary", {}, "Details"), h("p", { class: "taskdescription" }, clipped(task.description)), (task.writeScopes ?? []).length ? h("p", { class: "scopes" }, "writes ", task.writeScopes.map((scope) => h("code", {}, visible(scope)))) : null, h("p", { class: "revision" }, `revision ${task.revision}`)),
  );
}

function clipped(text) {
  const shown = visible(text);
  return shown.length > 4000 ? `${shown.slice(0, 4000)}…` : shown;
}

const WIDTH = 196;
const HEIGHT = 46;
const GAP_X = 56;
const GAP_Y = 14;

export class Graph {
  constructor() {
    this.canvas = h("div", { class: "graph", tabindex: "0" });
    this.element = h("section", { class: "tabpane", id: "pane-graph", "aria-label": "Dependencies" }, this.canvas);
  }

  update(tasks) {
    if (this.tasks === tasks) return;
    this.tasks = tasks;
    if (tasks.length === 0) {
      replace(this.canvas, h("p", { class: "empty" }, "No tasks yet."));
      return;
    }
    const places = layOut(tasks);
    const width = Math.max(...[...places.values()].map((place) => place.x)) + WIDTH + 16;
    const height = Math.max(...[...places.values()].map((place) => place.y)) + HEIGHT + 16;
    const edges = [];
    const nodes = [];
    for (const task of tasks) {
      const to = places.get(task.id);
      for (const id of task.blockedBy ?? []) {
        const from = places.get(id);
        if (!from) continue;
        const isOpen = (task.openBlockers ?? []).includes(id);
        const [x1, y1, x2, y2] = [from.x + WIDTH, from.y + HEIGHT / 2, to.x, to.y + HEIGHT / 2];
        edges.push(svg("path", { class: isOpen ? "edge open" : "edge", "marker-end": "url(#arrow)", d: `M${x1} ${y1} C${x1 + GAP_X / 2} ${y1} ${x2 - GAP_X / 2} ${y2} ${x2} ${y2}` }));
      }
      const state = taskState(task);
      nodes.push(
        svg("g", { class: `node tone-${state.tone}`, transform: `translate(${to.x} ${to.y})`, role: "listitem", "aria-label": label(task, state) },
          svg("title", {}, label(task, state)),
          svg("rect", { width: WIDTH, height: HEIGHT, rx: 6 }),
          svg("text", { x: 10, y: 18, class: "nodehead" }, `${state.mark} ${task.id}${task.ownerName ? ` · ${clip(task.ownerName, 14)}` : ""}`),
          svg("text", { x: 10, y: 36 }, clip(task.subject, 26))),
      );
    }
    const arrow = svg("defs", {}, svg("marker", { id: "arrow", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto" }, svg("path", { d: "M0 0 8 4 0 8z", class: "arrowhead" })));
    replace(this.canvas, svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "list", "aria-label": "Tasks and what they wait for" }, arrow, edges, nodes));
  }
}

function label(task, state) {
  const open = task.openBlockers ?? [];
  return `${task.id}, ${state.word}${open.length ? `, waits for ${open.join(", ")}` : ""}: ${clip(task.subject, 120)}`;
}

// Each task one column right of the last of its blockers. The graph has no cycle, and a shown one would end anyway.
function layOut(tasks) {
  const known = new Map(tasks.map((task) => [task.id, task]));
  const columns = new Map(tasks.map((task) => [task.id, 0]));
  for (let round = 0, moved = true; moved && round < tasks.length; round += 1) {
    moved = false;
    for (const task of tasks) {
      const column = Math.max(0, ...(task.blockedBy ?? []).filter((id) => known.has(id)).map((id) => columns.get(id) + 1));
      if (column > columns.get(task.id)) {
        columns.set(task.id, column);
        moved = true;
      }
    }
  }
  const filled = new Map();
  const places = new Map();
  for (const task of tasks) {
    const column = columns.get(task.id);
    const row = filled.get(column) ?? 0;
    filled.set(column, row + 1);
    places.set(task.id, { x: 8 + column * (WIDTH + GAP_X), y: 8 + row * (HEIGHT + GAP_Y) });
  }
  return places;
}

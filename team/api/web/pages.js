// The pages besides a Team: signing in, and the list of Teams.

import { ago, clip, dateOf, h, reconcile, replace, visible } from "./dom.js";
import { api } from "./api.js";

export function signInPage(onSignedIn) {
  const token = h("input", { id: "token", type: "password", autocomplete: "current-password", required: true, spellcheck: "false" });
  const problem = h("p", { class: "problem", role: "alert", hidden: true });
  const go = h("button", { type: "submit", class: "primary" }, "Sign in");
  const form = h(
    "form",
    {
      class: "signin",
      onsubmit: async (event) => {
        event.preventDefault();
        go.disabled = true;
        problem.hidden = true;
        try {
          onSignedIn((await api.signIn(token.value.trim())).role);
        } catch (error) {
          problem.textContent = error.message;
          problem.hidden = false;
          go.disabled = false;
          token.select();
        }
      },
    },
    h("h1", {}, "Sign in"),
    h("p", {}, "The operator token is in the file that ", h("code", {}, "team up"), " names, or in TEAM_OPERATOR_TOKEN."),
    h("label", { for: "token" }, "Token"),
    token,
    problem,
    go,
  );
  queueMicrotask(() => token.focus());
  return form;
}

export class TeamList {
  constructor() {
    this.list = h("ul", { class: "teams", "aria-label": "Teams" });
    this.empty = h("p", { class: "empty" }, "Loading…");
    this.element = h("section", { class: "teamlist", "aria-labelledby": "teams-title" }, h("h1", { id: "teams-title" }, "Teams"), this.empty, this.list);
  }

  update(teams) {
    if (teams === null) return;
    this.empty.hidden = teams.length > 0;
    replace(this.empty, "No Team yet. Start one: ", h("code", {}, 'team run --profile team "…"'));
    reconcile(this.list, teams, (team) => team.teamId, () => h("li", {}), fillTeam);
  }
}

function fillTeam(row, team) {
  const stamp = JSON.stringify(team);
  if (row.stamp === stamp) return;
  row.stamp = stamp;
  const isRunning = team.status === "running";
  const tone = team.fault ? "bad" : isRunning ? "busy" : "idle";
  const word = team.fault ? "unreadable" : team.closed ? "closed" : isRunning ? `${team.running} working or waiting` : "inactive";
  replace(
    row,
    h(
      "a",
      { class: `teamrow tone-${tone}`, href: `#/team/${encodeURIComponent(team.teamId)}` },
      h("span", { class: "mark", "aria-hidden": "true" }, team.fault ? "✕" : isRunning ? "●" : "○"),
      h("span", { class: "title" }, team.title ? clip(team.title, 140) : "(no prompt yet)"),
      h("span", { class: "state" }, word),
      h("span", { class: "facts" }, `${team.members} ${team.members === 1 ? "teammate" : "teammates"}`, team.tasks ? ` · ${team.completed}/${team.tasks} tasks` : "", ` · ${visible(team.profile ?? "")} · `, h("span", { title: dateOf(team.created) }, ago(team.created), " ago")),
      team.fault ? h("span", { class: "detail" }, clip(team.fault, 300)) : null,
    ),
  );
}

// One Session's conversation, and the way to prompt it.

import { announce, clip, h, replace, visible } from "./dom.js";
import { api, newKey } from "./api.js";
import { renderRow } from "./cards.js";
import { VirtualList } from "./virtual.js";
import { describe, sourceName } from "./words.js";

export class Conversation {
  constructor({ canAct }) {
    this.list = new VirtualList({ label: "Conversation", render: renderRow, onStart: () => this.log?.loadEarlier() });
    this.title = h("h2", { id: "conversation-title" });
    this.state = h("span", { class: "state" });
    this.earlier = h("button", { type: "button", class: "quiet", onclick: () => this.log?.loadEarlier() }, "Earlier");
    this.latest = h("button", { type: "button", class: "latest", hidden: true, onclick: () => this.list.toEnd() }, "↓ Latest");
    this.problem = h("p", { class: "problem", role: "alert", hidden: true });
    this.queue = h("ul", { class: "queue", "aria-label": "Accepted, not read yet" });
    this.empty = h("p", { class: "empty" }, "Nothing was said yet.");
    this.form = canAct ? this.composer() : h("p", { class: "composer looking" }, "You may look and change nothing.");
    this.element = h("section", { class: "tabpane conversation", id: "pane-conversation", "aria-labelledby": "conversation-title" }, h("div", { class: "panehead" }, this.title, this.state, this.earlier), this.problem, h("div", { class: "listbox" }, this.list.element, this.empty, this.latest), this.queue, this.form);
    this.list.element.addEventListener("scroll", () => this.mark(), { passive: true });
  }

  composer() {
    this.text = h("textarea", { id: "prompt", rows: "2", "aria-label": "Message", placeholder: "Prompt this member…", maxlength: "60000" });
    this.delivery = h("select", { "aria-label": "When it is read" }, h("option", { value: "turn" }, "as its own turn"), h("option", { value: "steer" }, "at the next step"));
    this.sendButton = h("button", { type: "submit", class: "primary" }, "Send");
    this.sendProblem = h("p", { class: "problem", role: "alert", hidden: true });
    this.key = newKey();
    const form = h("form", { class: "composer", onsubmit: (event) => { event.preventDefault(); this.send(); } }, this.text, h("div", { class: "composerrow" }, this.delivery, h("span", { class: "hint" }, "Ctrl+Enter sends"), this.sendButton), this.sendProblem);
    this.text.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
        event.preventDefault();
        this.send();
      }
    });
    this.text.addEventListener("input", () => {
      // Another text is another message; the same one sent again after a lost answer is not.
      this.key = newKey();
    });
    return form;
  }

  async send() {
    const text = this.text.value;
    if (!text.trim() || this.sendButton.disabled || !this.log) return;
    this.sendButton.disabled = true;
    this.sendProblem.hidden = true;
    try {
      await api.prompt(this.log.session, text, this.delivery.value, this.key);
      this.text.value = "";
      this.key = newKey();
      this.list.toEnd();
      announce("Sent");
    } catch (error) {
      this.sendProblem.textContent = error.message;
      this.sendProblem.hidden = false;
    } finally {
      this.sendButton.disabled = false;
    }
  }

  show(log, entry) {
    if (this.log !== log) this.list.clear();
    this.log = log;
    this.title.textContent = clip(entry?.target ?? "Conversation", 80);
    if (this.text) this.text.placeholder = `Prompt ${clip(entry?.target ?? "this Session", 40)}…`;
    this.update();
  }

  header(entry, status) {
    if (!entry) return;
    const state = describe(entry, status);
    this.state.className = `state tone-${state.tone}`;
    this.state.textContent = `${state.mark} ${state.word}`;
  }

  update() {
    const { log } = this;
    if (!log) return;
    const rows = log.rows();
    this.list.set(rows);
    this.earlier.hidden = !log.hasEarlier;
    this.empty.hidden = rows.length > 0;
    this.empty.textContent = log.isLoaded ? "Nothing was said yet." : "Loading…";
    const trouble = log.fault ?? log.trouble;
    this.problem.hidden = !trouble;
    this.problem.textContent = visible(trouble ?? "");
    replace(this.queue, [...log.pending].map(([, item]) => h("li", {}, h("b", {}, clip(sourceName(item.source), 60)), " ", clip(item.content.map((block) => block.text ?? "").join(" "), 160))));
    this.queue.hidden = log.pending.size === 0;
    this.mark();
  }

  mark() {
    this.latest.hidden = this.list.isAtEnd || !this.log?.items.length;
  }
}

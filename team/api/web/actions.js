// Dialogs: every change is confirmed once and sent once. A key is drawn when the dialog opens, so a second press, or a
// second try after a lost answer, repeats nothing.

import { announce, h, replace, visible } from "./dom.js";
import { api, newKey } from "./api.js";

export function confirm({ title, text, field, action, isDangerous, run }) {
  return new Promise((resolve) => {
    const key = newKey();
    const problem = h("p", { class: "problem", role: "alert", hidden: true });
    const input = field ? h("input", { id: "dialog-field", type: "text", value: field.value ?? "", placeholder: field.placeholder ?? "", autocomplete: "off", spellcheck: "false", maxlength: "400" }) : null;
    const go = h("button", { type: "submit", class: isDangerous ? "primary danger" : "primary" }, action);
    const back = h("button", { type: "button", onclick: () => dialog.close() }, "Cancel");
    const form = h("form", { method: "dialog" }, h("h2", { id: "dialog-title" }, title), h("p", {}, text), field ? [h("label", { for: "dialog-field" }, field.label), input] : null, problem, h("div", { class: "buttons" }, back, go));
    const dialog = h("dialog", { "aria-labelledby": "dialog-title" }, form);
    let done = false;
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      if (go.disabled) return;
      go.disabled = true;
      problem.hidden = true;
      try {
        await run(key, input?.value.trim());
        done = true;
        dialog.close();
      } catch (error) {
        problem.textContent = error.message;
        problem.hidden = false;
        go.disabled = false;
      }
    });
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(done);
    });
    document.body.append(dialog);
    dialog.showModal();
    (input ?? back).focus();
  });
}

export function interrupt(entry) {
  const name = visible(entry.target);
  return confirm({
    title: `Interrupt ${name}?`,
    text: "Its open turn ends as aborted. Unread messages and its tasks stay; the next message goes on with them.",
    action: "Interrupt",
    isDangerous: true,
    run: async (key) => {
      await api.interrupt(entry.sessionId, key);
      announce(`${name} was interrupted`);
    },
  });
}

export function selectModel(entry, status) {
  const name = visible(entry.target);
  return confirm({
    title: `Model of ${name}`,
    text: "The model of its next requests. What was said so far is kept.",
    field: { label: "Model", value: status.model ?? "", placeholder: "openai-chat:NAME" },
    action: "Change model",
    run: async (key, model) => {
      await api.selectModel(entry.sessionId, model, key);
      announce(`${name} uses ${model}`);
    },
  });
}

export function closeTeam(team) {
  return confirm({
    title: "Close this Team?",
    text: "Every open turn of it is stopped and nothing new is admitted. A prompt to the Lead opens it again.",
    action: "Close the Team",
    isDangerous: true,
    run: async (key) => {
      await api.close(team, key);
      announce("The Team is closed");
    },
  });
}

// A menu under a button, with the keys that a menu has.
export function openMenu(button, items) {
  const menu = h("div", { class: "menu", role: "menu" });
  const close = (focus = true) => {
    menu.remove();
    removeEventListener("pointerdown", outside, true);
    button.setAttribute("aria-expanded", "false");
    if (focus) button.focus();
  };
  const outside = (event) => {
    if (!menu.contains(event.target)) close(false);
  };
  replace(menu, items.map(({ text, run, isDangerous, isDisabled }) => h("button", { type: "button", role: "menuitem", class: isDangerous ? "danger" : "", disabled: isDisabled, onclick: () => { close(); run(); } }, text)));
  menu.addEventListener("keydown", (event) => {
    const entries = [...menu.querySelectorAll("button:not(:disabled)")];
    const at = entries.indexOf(document.activeElement);
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) entries[(at + step + entries.length) % entries.length]?.focus();
    else if (event.key === "Escape" || event.key === "Tab") close();
    else return;
    event.preventDefault();
  });
  const place = button.getBoundingClientRect();
  document.body.append(menu);
  menu.style.setProperty("top", `${Math.min(place.bottom + 4, innerHeight - menu.offsetHeight - 8)}px`);
  menu.style.setProperty("left", `${Math.max(8, Math.min(place.right - menu.offsetWidth, innerWidth - menu.offsetWidth - 8))}px`);
  button.setAttribute("aria-expanded", "true");
  addEventListener("pointerdown", outside, true);
  menu.querySelector("button:not(:disabled)")?.focus();
}

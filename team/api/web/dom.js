// Elements, text and times. Text from anywhere only ever becomes a text node.

export function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  assign(element, properties);
  element.append(...children.flat(9).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

const SVG = "http://www.w3.org/2000/svg";

export function svg(tag, properties = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined) element.setAttribute(name, String(value));
  }
  element.append(...children.flat(9).filter((child) => child !== null && child !== undefined));
  return element;
}

function assign(element, properties) {
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "class") element.className = value;
    else if (name === "style") for (const [key, text] of Object.entries(value)) element.style.setProperty(key, text);
    else if (name === "data") for (const [key, text] of Object.entries(value)) element.dataset[key] = text;
    else if (value === true) element.setAttribute(name, "");
    else element.setAttribute(name, String(value));
  }
}

export function replace(element, ...children) {
  element.replaceChildren(...children.flat(9).filter((child) => child !== null && child !== undefined && child !== false));
}

// Keep one child of `parent` per item: made once, updated in place, moved only when the order changes.
export function reconcile(parent, items, keyOf, make, update) {
  const rows = (parent.rows ??= new Map());
  const wanted = new Set(items.map(keyOf));
  for (const [key, row] of rows) {
    if (!wanted.has(key)) {
      row.remove();
      rows.delete(key);
    }
  }
  let place = parent.firstChild;
  for (const item of items) {
    const key = keyOf(item);
    let row = rows.get(key);
    if (row === undefined) {
      row = make(item);
      rows.set(key, row);
    }
    update(row, item);
    if (row === place) place = place.nextSibling;
    else parent.insertBefore(row, place);
  }
}

const ANSI = /\u001b(?:\[[0-?]*[ -/]*[@-~]|\][^\u0007\u001b]*(?:\u0007|\u001b\\)?|[@-Z\\-_])/g;
const CONTROLS = /[\u0000-\u0008\u000b-\u001f\u007f]/g;
const DIRECTIONS = /[\u202a-\u202e\u2066-\u2069]/g;

// Terminal colours go, what would be invisible or turn the line around is shown.
export function visible(text) {
  return String(text)
    .replace(ANSI, "")
    .replace(/\r\n?/g, "\n")
    .replace(CONTROLS, (found) => (found === "\u007f" ? "\u2421" : String.fromCharCode(0x2400 + found.charCodeAt(0))))
    .replace(DIRECTIONS, (found) => `⟨U+${found.charCodeAt(0).toString(16).toUpperCase()}⟩`);
}

export function clip(text, limit) {
  const shown = visible(text).replace(/\s+/g, " ").trim();
  return shown.length > limit ? `${shown.slice(0, limit - 1)}…` : shown;
}

let skew = 0; // seconds that the coordinator's clock is ahead of this one

export function setClock(ahead) {
  skew = ahead;
}

export function clock() {
  return Date.now() / 1000 + skew;
}

export function duration(seconds) {
  const whole = Math.max(0, Math.floor(seconds));
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min`;
  if (whole < 86400) return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
  return `${Math.floor(whole / 86400)} d`;
}

export function timeOf(value) {
  const moment = typeof value === "number" ? new Date(value * 1000) : new Date(value);
  return Number.isNaN(moment.getTime()) ? "" : moment.toLocaleTimeString([], { hour12: false });
}

export function dateOf(seconds) {
  const moment = new Date(seconds * 1000);
  const today = moment.toDateString() === new Date().toDateString();
  return today ? timeOf(seconds) : moment.toLocaleString([], { hour12: false, dateStyle: "medium", timeStyle: "short" });
}

// "Since" texts grow older without anything being sent.
export function ago(seconds) {
  return h("time", { class: "ago", data: { since: String(seconds) }, title: dateOf(seconds) }, duration(clock() - seconds));
}

export function tick() {
  for (const element of document.querySelectorAll("time.ago")) {
    const text = duration(clock() - Number(element.dataset.since));
    if (element.textContent !== text) element.textContent = text;
  }
  for (const element of document.querySelectorAll("time.until")) {
    const left = Number(element.dataset.until) - clock();
    element.textContent = left > 0 ? duration(left) : "now";
  }
}

export function announce(text) {
  document.getElementById("announcer").textContent = text;
}

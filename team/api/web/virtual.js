// A list of any length that holds only the rows in view. Rows have any height; it is measured once they are there.
//
// While the reader is at the end the list stays at the end; else the row that is read stays where it is.

import { h } from "./dom.js";

const ESTIMATE = 72;
const OVERSCAN = 600;
const AT_END = 60;

export class VirtualList {
  constructor({ label, render, onStart }) {
    this.render = render;
    this.onStart = onStart;
    this.items = [];
    this.heights = new Map();
    this.offsets = [0];
    this.shown = new Map();
    this.isAtEnd = true;
    this.lastTop = 0;
    this.canvas = h("div", { class: "canvas", role: "list" });
    this.element = h("div", { class: "scroller", tabindex: "0", role: "log", "aria-label": label, "aria-live": "off" }, this.canvas);
    this.element.addEventListener("scroll", () => this.scrolled(), { passive: true });
    this.sizes = new ResizeObserver((entries) => this.measured(entries));
    this.sizes.observe(this.element);
    this.isPlanned = false;
  }

  set(items) {
    const anchor = this.isAtEnd ? null : this.anchor();
    this.items = items;
    this.layOut();
    if (anchor) this.restore(anchor);
    this.plan();
  }

  clear() {
    for (const row of this.shown.values()) row.element.remove();
    this.shown.clear();
    this.heights.clear();
    this.isAtEnd = true;
    this.set([]);
  }

  toEnd() {
    this.isAtEnd = true;
    this.plan();
  }

  layOut() {
    const offsets = new Array(this.items.length + 1);
    let at = 0;
    for (let index = 0; index < this.items.length; index += 1) {
      offsets[index] = at;
      at += this.heights.get(this.items[index].key) ?? ESTIMATE;
    }
    offsets[this.items.length] = at;
    this.offsets = offsets;
    this.canvas.style.setProperty("height", `${at}px`);
    // A list that became shorter has moved by itself.
    this.lastTop = Math.min(this.lastTop, this.element.scrollTop);
  }

  indexAt(offset) {
    let low = 0;
    let high = this.items.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.offsets[middle + 1] <= offset) low = middle + 1;
      else high = middle;
    }
    return Math.min(low, Math.max(0, this.items.length - 1));
  }

  anchor() {
    const top = this.element.scrollTop;
    const index = this.indexAt(top);
    const item = this.items[index];
    return item ? { key: item.key, delta: top - this.offsets[index] } : null;
  }

  restore({ key, delta }) {
    const index = this.items.findIndex((item) => item.key === key);
    if (index >= 0) this.element.scrollTop = this.offsets[index] + delta;
  }

  scrolled() {
    const { scrollTop, clientHeight, scrollHeight } = this.element;
    // Only a reader who moves up leaves the end: rows of another height than was estimated do not.
    if (scrollHeight - scrollTop - clientHeight < AT_END) this.isAtEnd = true;
    else if (scrollTop < this.lastTop - 1) this.isAtEnd = false;
    this.lastTop = scrollTop;
    if (scrollTop < OVERSCAN) this.onStart?.();
    this.plan();
  }

  measured(entries) {
    const anchor = this.isAtEnd ? null : this.anchor();
    let changed = false;
    for (const { target } of entries) {
      const key = target.itemKey;
      if (key === undefined || !target.isConnected) continue;
      const height = target.offsetHeight;
      if (height > 0 && this.heights.get(key) !== height) {
        this.heights.set(key, height);
        changed = true;
      }
    }
    if (changed) this.layOut();
    if (changed && anchor) this.restore(anchor);
    this.plan();
  }

  plan() {
    if (this.isPlanned) return;
    this.isPlanned = true;
    requestAnimationFrame(() => {
      this.isPlanned = false;
      this.draw();
    });
  }

  draw() {
    if (this.isAtEnd) {
      this.element.scrollTop = this.element.scrollHeight;
      this.lastTop = this.element.scrollTop;
    }
    const top = this.element.scrollTop;
    const first = this.indexAt(Math.max(0, top - OVERSCAN));
    const bottom = top + (this.element.clientHeight || 800) + OVERSCAN;
    let end = first;
    while (end < this.items.length && this.offsets[end] < bottom) end += 1;
    const wanted = new Set(this.items.slice(first, end).map((item) => item.key));
    for (const [key, row] of this.shown) {
      if (wanted.has(key)) continue;
      this.sizes.unobserve(row.element);
      row.element.remove();
      this.shown.delete(key);
    }
    // Rows stand in the document in the order in which they are read.
    let place = this.canvas.firstChild;
    for (let index = first; index < end; index += 1) {
      const item = this.items[index];
      let row = this.shown.get(item.key);
      if (!row) {
        const element = h("div", { class: "row", role: "listitem" });
        element.itemKey = item.key;
        row = { element, version: -1 };
        this.shown.set(item.key, row);
        this.sizes.observe(element);
      }
      if (row.element === place) place = place.nextSibling;
      else this.canvas.insertBefore(row.element, place);
      if (row.version !== item.version) {
        row.version = item.version;
        this.render(row.element, item);
      }
      row.element.style.setProperty("transform", `translateY(${this.offsets[index]}px)`);
      row.element.setAttribute("aria-posinset", String(index + 1));
      row.element.setAttribute("aria-setsize", String(this.items.length));
    }
  }
}

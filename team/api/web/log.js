// The log of one Session as a conversation: events in, items out. An item is what one row of the list shows.

import { api } from "./api.js";
import { modelName } from "./words.js";

const PAGE = 400;

export class Log {
  constructor(session, changed) {
    this.session = session;
    this.changed = changed;
    this.reset();
  }

  reset() {
    this.items = [];
    this.firstSeq = 1;
    this.lastSeq = 0;
    this.isLoaded = false;
    this.isLoading = false;
    this.fault = null;
    this.trouble = null;
    this.live = null;
    this.pending = new Map();
    this.results = new Map();
    this.cards = new Map();
  }

  async load() {
    for (let pause = 500; ; pause = Math.min(pause * 2, 5000)) {
      try {
        const page = await api.tail(this.session, null, PAGE);
        this.firstSeq = page.firstSeq;
        this.lastSeq = page.events.at(-1)?.seq ?? page.firstSeq - 1;
        this.fault = page.fault ?? null;
        this.trouble = null;
        this.isLoaded = true;
        this.items = this.itemsOf(page.events);
        this.changed();
        return;
      } catch (error) {
        this.trouble = error.message;
        this.changed();
        await new Promise((resolve) => setTimeout(resolve, pause));
      }
    }
  }

  get hasEarlier() {
    return this.isLoaded && this.firstSeq > 1;
  }

  async loadEarlier() {
    if (!this.hasEarlier || this.isLoading) return;
    this.isLoading = true;
    try {
      const page = await api.tail(this.session, this.firstSeq, PAGE);
      this.firstSeq = page.firstSeq;
      this.items = this.itemsOf(page.events).concat(this.items);
    } catch (error) {
      this.trouble = error.message;
    } finally {
      this.isLoading = false;
      this.changed();
    }
  }

  append(events) {
    if (!this.isLoaded) return;
    const fresh = events.filter((event) => event.seq > this.lastSeq);
    if (fresh.length === 0) return;
    this.lastSeq = fresh.at(-1).seq;
    for (const item of this.itemsOf(fresh)) this.items.push(item);
    this.changed();
  }

  clear() {
    this.reset();
    this.isLoaded = true;
    this.changed();
  }

  fail(message) {
    this.fault = message;
    this.changed();
  }

  // Streamed text: a newer request of the turn replaces what an older one left, a gap is shown as one.
  stream(delta) {
    const { turnId, step, epoch, attempt } = delta;
    const done = this.answered;
    if (done && done.turnId === turnId && step <= done.step) return;
    const live = this.live;
    const isSame = live && live.turnId === turnId && live.step === step && live.epoch === epoch && live.attempt === attempt;
    if (live && live.turnId === turnId && !isSame && isOlder(delta, live)) return;
    if (isSame) {
      if (delta.offset + delta.text.length <= live.length) return;
      if (delta.offset > live.length) live.text += " … ";
      live.text += delta.text;
    } else {
      this.live = { key: `live ${turnId} ${step}`, kind: "live", turnId, step, epoch, attempt, text: (delta.offset > 0 ? "… " : "") + delta.text, version: 0 };
    }
    this.live.length = delta.offset + delta.text.length;
    this.live.version += 1;
    this.changed();
  }

  rows() {
    return this.live ? [...this.items, this.live] : this.items;
  }

  itemsOf(events) {
    const items = [];
    for (const event of events) this.take(event, items);
    return items;
  }

  take({ seq, time, type, data }, items) {
    const add = (kind, more) => items.push({ key: `${seq}`, seq, time, kind, version: 0, ...more });
    switch (type) {
      case "user/message":
        this.pending.delete(data.messageId);
        add("user", { content: data.content, source: data.source });
        break;
      case "assistant/message":
        this.endLive(data.turnId, data.step);
        // An answer of calls alone is told by its cards.
        if (data.interrupted || data.finishReason !== "tool-calls" || data.content.some((block) => block.type !== "tool-call")) add("assistant", { content: data.content, model: data.model, usage: data.usage, interrupted: data.interrupted, finish: data.finishReason });
        for (const block of data.content) if (block.type === "tool-call") this.addCard(block, seq, time, items);
        break;
      case "tool/result":
        this.giveResult(data, time);
        break;
      case "agent/inbox/inserted":
        this.pending.set(data.messageId, { content: data.content, source: data.source, delivery: data.delivery });
        break;
      case "agent/inbox/claimed":
      case "agent/inbox/discarded":
        this.pending.delete(data.messageId);
        break;
      case "turn/start":
        add("turn", { text: "Turn begins", tone: "plain" });
        break;
      case "turn/end":
        this.endLive(data.turnId, Infinity);
        add("turn", { text: `Turn ended: ${data.reason}${data.code ? ` (${data.code})` : ""}`, detail: data.message, tone: data.reason === "completed" ? "plain" : "bad" });
        break;
      case "turn/parked":
        add("note", { text: `Waits: ${data.waits.map((wait) => wait.kind).join(", ")}` });
        break;
      case "turn/resumed":
        add("note", { text: "Goes on" });
        break;
      case "session/model":
        add("note", { text: `Model: ${modelName(data.model)}` });
        break;
      case "session/cwd":
        add("note", { text: `Directory: ${data.cwd}` });
        break;
      case "session/compacted":
        add("note", { text: "The history before this was summarised", detail: data.summary });
        break;
      case "team/member":
        add("note", { text: `${data.member.name}: ${data.member.phase}`, detail: data.member.error });
        break;
      case "team/task":
        add("note", { text: `${data.task.id} ${data.task.status.replace("_", " ")}: ${data.task.subject}` });
        break;
      default:
        break;
    }
  }

  addCard(block, seq, time, items) {
    const card = { key: `call ${block.callId}`, seq, time, kind: "tool", call: block, result: this.results.get(block.callId) ?? null, version: 0 };
    this.cards.set(block.callId, card);
    items.push(card);
  }

  giveResult(data, time) {
    const result = { outcome: data.outcome, content: data.content, time };
    this.results.set(data.callId, result);
    const card = this.cards.get(data.callId);
    if (card) {
      card.result = result;
      card.version += 1;
    }
  }

  endLive(turnId, step) {
    this.answered = { turnId, step };
    if (this.live && (this.live.turnId !== turnId || this.live.step <= step)) this.live = null;
  }
}

function isOlder(one, other) {
  if (one.step !== other.step) return one.step < other.step;
  if (one.epoch !== other.epoch) return one.epoch < other.epoch;
  return one.attempt < other.attempt;
}

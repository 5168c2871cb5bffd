// Rows of a conversation: messages, tool calls as cards, turns and notes.

import { clip, h, replace, timeOf, visible } from "./dom.js";
import { markdown } from "./markdown.js";
import { modelName, sourceName, tokens } from "./words.js";

const LONG = 12_000;

export function renderRow(element, item) {
  switch (item.kind) {
    case "user":
      replace(element, userRow(item));
      break;
    case "assistant":
      replace(element, assistantRow(item));
      break;
    case "live":
      renderLive(element, item);
      break;
    case "tool":
      renderCard(element, item);
      break;
    case "turn":
      replace(element, h("div", { class: `turnline ${item.tone}` }, h("span", {}, visible(item.text)), stamp(item)), item.detail ? h("p", { class: "turndetail" }, visible(item.detail)) : null);
      break;
    default:
      replace(element, h("div", { class: "note" }, h("span", {}, clip(item.text, 400)), item.detail ? h("span", { class: "notedetail" }, clip(item.detail, 600)) : null, stamp(item)));
  }
}

function stamp(item) {
  return h("time", { class: "stamp", title: item.time ?? "" }, timeOf(item.time ?? ""));
}

function blocksOf(content) {
  return content.map((block) => {
    if (block.type === "text") return longText(block.text, markdown);
    if (block.type === "reasoning") return h("details", { class: "reasoning" }, h("summary", {}, "Reasoning"), longText(block.text, plain));
    if (block.type === "tool-call") return null;
    return h("pre", { class: "code" }, visible(JSON.stringify(block, null, 2)));
  });
}

function plain(text) {
  return h("div", { class: "plain" }, visible(text));
}

// A long text is shown in part until it is asked for.
function longText(text, show) {
  if (text.length <= LONG) return show(text);
  const box = h("div", {}, show(text.slice(0, LONG)));
  const more = h("button", { type: "button", class: "quiet", onclick: () => { replace(box, plain(text)); } }, `Show all ${tokens(text.length)} characters`);
  box.append(more);
  return box;
}

function userRow(item) {
  const source = item.source;
  const quiet = source?.kind === "runtime-context" || source?.kind === "settlement";
  const framed = source?.kind === "team-message" && item.content.length > 1;
  const content = framed ? item.content.slice(1) : item.content;
  const head = h("div", { class: "who" }, h("b", {}, clip(sourceName(source), 80)), h("span", { class: "tag" }, source?.kind ?? "no source"), source?.actor && source.kind === "team-message" ? h("span", { class: "tag" }, `sent by ${clip(source.actor, 40)}`) : null, stamp(item));
  if (quiet) return h("details", { class: "message quietmessage" }, h("summary", {}, h("b", {}, clip(sourceName(source), 80)), " ", stamp(item)), ...content.map((block) => plain(block.text ?? JSON.stringify(block))));
  return h("article", { class: `message from-${source?.kind === "human" ? "human" : "member"}` }, head, ...blocksOf(content));
}

function assistantRow(item) {
  const body = blocksOf(item.content).filter(Boolean);
  const usage = item.usage?.inputTokens || item.usage?.outputTokens ? `${tokens(item.usage.inputTokens ?? 0)} in, ${tokens(item.usage.outputTokens ?? 0)} out` : "";
  const head = h("div", { class: "who" }, h("b", {}, "answer"), h("span", { class: "tag", title: visible(item.model) }, clip(modelName(item.model), 40)), item.finish === "max-tokens" || item.finish === "refusal" ? h("span", { class: "tag bad" }, item.finish) : null, item.interrupted ? h("span", { class: "tag bad" }, "interrupted") : null, h("span", { class: "tag" }, usage), stamp(item));
  return h("article", { class: "message from-model" }, head, ...body);
}

// Streamed text grows in one text node: 300,000 pieces cost no more than their characters.
function renderLive(element, item) {
  let node = element.liveText;
  if (!node) {
    node = document.createTextNode("");
    element.liveText = node;
    element.liveSource = "";
    replace(element, h("article", { class: "message from-model live", "aria-busy": "true" }, h("div", { class: "who" }, h("b", {}, "answer"), h("span", { class: "tag" }, "streaming")), h("div", { class: "plain" }, node)));
  }
  const before = element.liveSource;
  if (item.text.startsWith(before)) node.appendData(visible(item.text.slice(before.length)));
  else node.data = visible(item.text);
  element.liveSource = item.text;
}

function argumentsOf(call) {
  try {
    const found = JSON.parse(call.arguments || "{}");
    if (found && typeof found === "object" && !Array.isArray(found)) return new Map(Object.entries(found));
  } catch {
    // Shown as it is.
  }
  return null;
}

function summaryOf(call, given) {
  if (!given) return clip(call.arguments, 120);
  for (const name of ["command", "path", "pattern", "subject", "target", "name", "task_id", "action"]) {
    const value = given.get(name);
    if (typeof value === "string") return clip(name === "task_id" && given.has("action") ? `${given.get("action")} ${value}` : value, 140);
  }
  return given.size ? clip(call.arguments, 120) : "";
}

const OUTCOMES = new Map([
  ["ok", ["✓", "done"]],
  ["error", ["✕", "bad"]],
  ["unknown", ["?", "warn"]],
]);

function renderCard(element, item) {
  const open = element.querySelector("details")?.open ?? false;
  const { call, result } = item;
  const given = argumentsOf(call);
  const [mark, tone] = result ? (OUTCOMES.get(result.outcome) ?? ["?", "warn"]) : ["…", "busy"];
  const state = result ? { ok: "done", error: "failed", unknown: "outcome unknown" }[result.outcome] ?? result.outcome : "no result yet";
  const body = h("div", { class: "cardbody" });
  const card = h("details", { class: `card tone-${tone}` }, h("summary", {}, h("span", { class: "mark", "aria-hidden": "true" }, mark), h("b", { class: "toolname" }, clip(call.name, 60)), h("span", { class: "toolarg" }, summaryOf(call, given)), h("span", { class: "toolstate" }, state), stamp(item)), body);
  const fill = () => {
    if (card.open && !body.hasChildNodes()) replace(body, ...cardBody(call, given, result));
  };
  card.addEventListener("toggle", fill);
  card.open = open;
  fill();
  replace(element, card);
}

function cardBody(call, given, result) {
  const output = result ? longText(call.name === "bash" ? result.content : pretty(result.content), terminal) : null;
  if (call.name === "bash" && given) return [h("pre", { class: "terminal command", tabindex: "0" }, `$ ${visible(given.get("command") ?? "")}`), output];
  if (call.name === "edit" && given) return [diff(String(given.get("old_text") ?? ""), String(given.get("new_text") ?? ""), given.get("path")), output];
  if (call.name === "write" && given) return [diff("", String(given.get("content") ?? ""), given.get("path")), output];
  const shown = given ? JSON.stringify(Object.fromEntries(given), null, 2) : call.arguments;
  return [h("pre", { class: "code", tabindex: "0" }, clipLines(visible(shown ?? ""))), output];
}

// Results of Team tools are compact JSON.
function pretty(text) {
  if (!/^[[{]/.test(text)) return text;
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

function terminal(text) {
  return h("pre", { class: "terminal", tabindex: "0" }, visible(text));
}

function clipLines(text) {
  return text.length > LONG ? `${text.slice(0, LONG)}…` : text;
}

const DIFF_LINES = 400;

// Lines that left and lines that came, without what begins and ends alike.
export function diff(before, after, path) {
  const old = before === "" ? [] : visible(before).split("\n");
  const fresh = after === "" ? [] : visible(after).split("\n");
  let start = 0;
  while (start < old.length && start < fresh.length && old[start] === fresh[start]) start += 1;
  let end = 0;
  while (end < old.length - start && end < fresh.length - start && old[old.length - 1 - end] === fresh[fresh.length - 1 - end]) end += 1;
  const lines = [
    ...old.slice(Math.max(0, start - 2), start).map((text) => [" ", text]),
    ...old.slice(start, old.length - end).map((text) => ["-", text]),
    ...fresh.slice(start, fresh.length - end).map((text) => ["+", text]),
    ...fresh.slice(fresh.length - end, fresh.length - end + 2).map((text) => [" ", text]),
  ];
  const kinds = { "+": "added", "-": "removed", " ": "kept" };
  const box = h("div", { class: "diff", tabindex: "0", role: "group", "aria-label": `Change of ${path ?? "a file"}` }, h("div", { class: "diffpath" }, clip(path ?? "", 200)));
  for (const [kind, text] of lines.slice(0, DIFF_LINES)) box.append(h("div", { class: kinds[kind] }, h("span", { class: "sign" }, kind), clipLines(text)));
  if (lines.length > DIFF_LINES) box.append(h("div", { class: "kept" }, `… ${lines.length - DIFF_LINES} more lines`));
  return box;
}

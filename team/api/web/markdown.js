// A small renderer of the Markdown that models write. It builds elements and text nodes; there is no HTML in between.

import { h, visible } from "./dom.js";

const SCHEMES = new Set(["http:", "https:", "mailto:"]);
// Underscores are no markup here: models write __init__ and snake_case far more often than bold with them.
const INLINE = /(`+)([\s\S]*?[^`])\1(?!`)|\*\*([^*\n]+)\*\*|\*([^*\n]+)\*|\[([^\]\n]{1,500})\]\(([^()\s]{1,2000})\)|(https?:\/\/[^\s<>"'`]{1,2000})/;

export function safeLink(address) {
  let url;
  try {
    url = new URL(address);
  } catch {
    return null;
  }
  return SCHEMES.has(url.protocol) ? url.href : null;
}

function link(address, text) {
  const href = safeLink(address);
  if (href === null) return h("span", { class: "badlink", title: "This link is not shown as one" }, visible(text));
  return h("a", { href, target: "_blank", rel: "noopener noreferrer nofollow" }, visible(text));
}

function inline(text) {
  const nodes = [];
  let rest = text;
  while (rest) {
    const found = INLINE.exec(rest);
    if (found === null) break;
    if (found.index > 0) nodes.push(visible(rest.slice(0, found.index)));
    const [all, , code, strong, emphasis, label, address, bare] = found;
    if (code !== undefined) nodes.push(h("code", {}, visible(code.trim() || code)));
    else if (strong) nodes.push(h("strong", {}, visible(strong)));
    else if (emphasis) nodes.push(h("em", {}, visible(emphasis)));
    else if (label) nodes.push(link(address, label));
    else {
      const trailing = /[.,;:!?)\]]+$/.exec(bare)?.[0] ?? "";
      const target = bare.slice(0, bare.length - trailing.length);
      nodes.push(link(target, target), trailing);
    }
    rest = rest.slice(found.index + all.length);
  }
  if (rest) nodes.push(visible(rest));
  return nodes;
}

const BULLET = /^\s{0,8}(?:[-*+]|\d{1,4}[.)])\s+(.*)$/;

export function markdown(text) {
  const root = h("div", { class: "prose" });
  const lines = String(text).split("\n");
  let paragraph = [];
  const flush = () => {
    if (paragraph.length) root.append(h("p", {}, ...inline(paragraph.join("\n"))));
    paragraph = [];
  };
  for (let at = 0; at < lines.length; at += 1) {
    const line = lines[at];
    const fence = /^\s{0,3}(```+|~~~+)\s*([\w+-]{0,20})/.exec(line);
    if (fence) {
      flush();
      const body = [];
      while (++at < lines.length && !lines[at].trimStart().startsWith(fence[1])) body.push(lines[at]);
      root.append(h("pre", { class: "code", tabindex: "0" }, h("code", {}, visible(body.join("\n")))));
      continue;
    }
    const heading = /^\s{0,3}(#{1,6})\s+(.*)$/.exec(line);
    if (heading) {
      flush();
      root.append(h("p", { class: `heading level${Math.min(heading[1].length, 3)}` }, ...inline(heading[2])));
    } else if (/^\s{0,3}([-*_])(\s*\1){2,}\s*$/.test(line)) {
      flush();
      root.append(h("hr"));
    } else if (BULLET.test(line)) {
      flush();
      const ordered = /^\s*\d/.test(line);
      const list = h(ordered ? "ol" : "ul");
      while (at < lines.length && BULLET.test(lines[at])) list.append(h("li", {}, ...inline(BULLET.exec(lines[at++])[1])));
      at -= 1;
      root.append(list);
    } else if (line.startsWith(">")) {
      flush();
      const quoted = [];
      while (at < lines.length && lines[at].startsWith(">")) quoted.push(lines[at++].replace(/^>\s?/, ""));
      at -= 1;
      root.append(h("blockquote", {}, ...inline(quoted.join("\n"))));
    } else if (line.trim() === "") flush();
    else paragraph.push(line);
  }
  flush();
  return root;
}

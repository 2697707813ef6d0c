// Elements made of names and text alone: nothing here, or in any file of the page, reads markup.

const SVG = "http://www.w3.org/2000/svg";
// What turns the direction of text, or cannot be seen, is shown as its code point.
const UNSEEN = /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]/g;

function fill(node, props, children) {
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") for (const [event, act] of Object.entries(value)) node.addEventListener(event, act);
    else if (name === "data") Object.assign(node.dataset, value);
    else if (name === "value" || name === "checked") node[name] = value;
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/** An element with attributes, listeners (`on`), data (`data`) and children; strings become text. */
export const el = (tag, props = {}, ...children) => fill(document.createElement(tag), props, children);

/** The same for SVG. */
export const svg = (tag, props = {}, ...children) => fill(document.createElementNS(SVG, tag), props, children);

export const byId = (id) => document.getElementById(id);

/** Text that a document wrote, as nodes: unseen and direction-turning characters stand out as `U+202E`. */
export function untrusted(text) {
  const given = String(text ?? "");
  const nodes = [];
  let from = 0;
  for (const match of given.matchAll(UNSEEN)) {
    if (match.index > from) nodes.push(given.slice(from, match.index));
    const code = match[0].codePointAt(0).toString(16).toUpperCase().padStart(4, "0");
    nodes.push(el("span", { class: "control" }, `U+${code}`));
    from = match.index + match[0].length;
  }
  if (from < given.length) nodes.push(given.slice(from));
  return nodes;
}

/** A short label that a document wrote, kept apart from the direction of what surrounds it. */
export const label = (text, props = {}) => el("bdi", props, untrusted(text));

/** Text in pieces [text, matched]; matched ones are marked. */
export const marked = (pieces) =>
  pieces.map(([text, matched]) => (matched ? el("mark", {}, untrusted(text)) : untrusted(text)));

/** A score, with as many digits as help to compare it; a dash where there is none. */
export function score(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  const digits = size >= 100 ? value.toFixed(0) : size >= 1 ? value.toFixed(2) : value.toPrecision(3);
  return (size !== 0 && size < 1e-4 ? value.toExponential(1) : size === 0 ? "0" : digits).replace("-", "−");
}

export const milliseconds = (ms) =>
  ms >= 1000 ? `${(ms / 1000).toFixed(2)} s` : ms >= 10 ? `${ms.toFixed(0)} ms` : `${ms.toFixed(1)} ms`;

export const plural = (n, one, many = `${one}s`) => `${n} ${n === 1 ? one : many}`;

// One hit: what it is and why at a glance, and all of it when it is opened.

import * as api from "./api.js";
import { el, label, marked, untrusted } from "./dom.js";
import { marks } from "./judgments.js";
import { snippet, trail, within } from "./model.js";
import { badge, scoreWithTip, stageLines, sumTable } from "./score.js";

/** The list of a result's hits. `compare` gives each hit a note on how the other side has it. */
export function hitList(result, { name = "hit", compare = () => null } = {}) {
  return el(
    "ol",
    { class: "hits" },
    result.hits.map((hit) => card(result, hit, `${name}-${hit.rank}`, compare(hit))),
  );
}

function card(result, hit, id, note) {
  const body = el("div", { class: "body", id: `${id}-body`, hidden: true });
  const title = el(
    "button",
    { type: "button", class: "title", "aria-expanded": "false", "aria-controls": body.id },
    place(hit),
  );
  title.addEventListener("click", () => toggle(title, body, () => whole(result, hit)));
  const short = el("p", { class: "snippet", dir: "auto" }, marked(snippet(hit.pieces)));
  return el(
    "li",
    { class: "hit", data: { id: hit.id, kb: hit.kb } },
    el(
      "article",
      { "aria-labelledby": `${id}-title` },
      el(
        "div",
        { class: "head" },
        el(
          "h3",
          { id: `${id}-title` },
          el("span", { class: "rank" }, `${hit.rank}`, el("span", { class: "unseen" }, ". ")),
          title,
        ),
        scoreWithTip(hit, id),
      ),
      el("div", { class: "facts" }, badge(hit.badge), hit.irrelevant && doubt(), note, way(result, hit), marks(result.query, hit)),
      short,
      hit.copies.length > 0 && el("p", { class: "thin" }, "Also in ", label(hit.copies.join(" "))),
      body,
    ),
  );
}

const doubt = () => el("span", { class: "doubt" }, "Irrelevant");

function place(hit) {
  const { file, page, section } = hit.source;
  return [
    el("span", { class: "file" }, label(file ?? hit.id)),
    page !== null && page !== undefined && el("span", { class: "where" }, " p. ", label(page)),
    section && el("span", { class: "where section" }, " ", label(section)),
  ];
}

/** The way of a hit through the search: where its channels had it, and where each stage put it. */
function way(result, hit) {
  const channels = hit.parts
    .filter((part) => part.found)
    .map((part) => el("li", {}, label(part.stage), ` ${part.rank ?? ""}`));
  const told = new Set((hit.stages ?? []).map(({ stage }) => stage));
  const worth = ({ name, change }) => change !== 0 || told.has(name); // not of a stage that neither moved nor scored it
  const later = trail(result, hit.id)
    .filter(worth)
    .map((step) => el("li", { class: "later" }, label(step.name), ` ${step.rank}`, moved(step.change)));
  return el("ol", { class: "way", "aria-label": "Rank in each list" }, channels, later);
}

/** An arrow with how many places something rose or fell. */
export function moved(change) {
  if (!change) return null;
  const rose = change > 0;
  return el(
    "span",
    { class: rose ? "moved up" : "moved down" },
    el("span", { "aria-hidden": "true" }, rose ? "↑" : "↓"),
    el("span", { class: "unseen" }, rose ? "up " : "down "),
    `${Math.abs(change)}`,
  );
}

function toggle(title, body, fill) {
  const open = title.getAttribute("aria-expanded") !== "true";
  title.setAttribute("aria-expanded", String(open));
  body.hidden = !open;
  title.closest(".hit").classList.toggle("open", open);
  if (!open || body.firstChild) return;
  body.append(...fill());
  body.querySelectorAll(".scrolled").forEach(seen);
}

/** Scroll what a model reads to where the chunk stands in it. */
function seen(region) {
  const place = region.querySelector(".own");
  if (place) region.scrollTop = place.offsetTop - region.offsetTop - 40;
}

/** Close an open hit; whether it was open. */
export function close(hit) {
  const title = hit?.querySelector(".title[aria-expanded=true]");
  title?.click();
  title?.focus();
  return Boolean(title);
}

function whole(result, hit) {
  return [
    el("div", { class: hit.context === null ? "texts" : "texts two" }, found(hit), read(hit)),
    el(
      "section",
      {},
      el("h4", {}, "Why it is here"),
      scrolled("Parts of the score", sumTable(hit, { wordings: true, query: result.query })),
      stageLines(hit),
    ),
    el("div", { class: "below" }, facts(hit), more(hit)),
  ];
}

/** What may be wider than a narrow screen, or long, scrolls by itself, by keys too. */
export const scrolled = (name, ...children) =>
  el("div", { class: "scrolled", role: "region", "aria-label": name, tabindex: 0 }, children);

const long = (name, ...pieces) => scrolled(name, el("p", { class: "text", dir: "auto" }, pieces));

function found(hit) {
  return el(
    "section",
    {},
    el("h4", {}, hit.context === null ? "Text" : "What was found"),
    hit.header_pieces.length ? el("p", { class: "above", dir: "auto" }, marked(hit.header_pieces)) : null,
    el("p", { class: "text", dir: "auto" }, marked(hit.pieces)),
  );
}

function read(hit) {
  if (hit.context === null || hit.context === undefined) return null;
  return el("section", {}, el("h4", {}, "What a model reads"), long("What a model reads", own(hit.text, hit.context)));
}

const own = (text, wide) =>
  within(text, wide).map(([piece, its]) => (its ? el("span", { class: "own" }, untrusted(piece)) : untrusted(piece)));

function facts(hit) {
  const entries = [["id", hit.id], ["base", hit.kb], ...Object.entries(hit.metadata ?? {})];
  const shown = entries.filter(([, value]) => value !== "" && value !== null);
  return el(
    "section",
    {},
    el("h4", {}, "Metadata"),
    el(
      "dl",
      { class: "facts-list" },
      shown.map(([key, value]) => [
        el("dt", {}, label(key)),
        el("dd", {}, label(typeof value === "string" ? value : JSON.stringify(value))),
      ]),
    ),
  );
}

function more(hit) {
  const shown = el("div", { class: "shown", "aria-live": "polite" });
  const button = (text, act) => {
    const node = el("button", { type: "button", class: "quiet" }, text);
    node.addEventListener("click", () => fetched(node, shown, act));
    return node;
  };
  return el(
    "section",
    {},
    el("h4", {}, "Around it"),
    el(
      "div",
      { class: "row" },
      hit.page_image && button("Show the page", () => pageImage(hit)),
      button("Show its parent", () => parent(hit)),
    ),
    shown,
  );
}

async function fetched(button, place, act) {
  button.disabled = true;
  place.replaceChildren(el("p", { class: "thin" }, "Loading…"));
  try {
    place.replaceChildren(await act());
    place.querySelectorAll(".scrolled").forEach(seen);
  } catch (error) {
    place.replaceChildren(el("p", { class: "wrong" }, untrusted(error.message)));
  } finally {
    button.disabled = false;
  }
}

async function pageImage(hit) {
  const address = URL.createObjectURL(await api.page(hit.kb, hit.id));
  const image = el("img", {
    class: "page",
    src: address,
    alt: `Page ${hit.source.page ?? ""} of ${hit.source.file ?? hit.id}`,
  });
  image.addEventListener("load", () => URL.revokeObjectURL(address), { once: true });
  return image;
}

async function parent(hit) {
  const { text, parent: wide } = await api.chunk(hit.kb, hit.id);
  if (!wide) return el("p", { class: "thin" }, "This chunk has no parent: it stands for itself.");
  return el(
    "div",
    {},
    el("p", { class: "thin" }, "Parent ", label(wide.id)),
    long("The parent's text", own(text, wide.text)),
  );
}

// Each channel's list beside the fused one and what stages made of it, with lines between the same chunks.

import * as api from "./api.js";
import { byId, el, label, plural, svg, untrusted } from "./dom.js";
import { moved, scrolled } from "./hits.js";
import { columns, effects } from "./model.js";
import { kindOf, shape } from "./score.js";

const SHOWN = 10;

/** The whole view of a result's lists: diagram, table, and what each stage moved and passed over. */
export function listsView(result, asked) {
  const names = new Names(result, asked.kb);
  const columnsOf = columns(result);
  const diagram = el("div", { class: "merge" }, svg("svg", { class: "lines", "aria-hidden": "true" }));
  const kept = new Set(result.hits.map((hit) => hit.id));
  for (const group of columnsOf) {
    diagram.append(
      el(
        "div",
        { class: "column" },
        group.map((list) => column(list, result, kept, names)),
      ),
    );
  }
  follow(diagram);
  new ResizeObserver(() => connect(diagram)).observe(diagram);
  return [
    el(
      "p",
      { class: "thin" },
      "The same chunk is joined from list to list. Hover or focus one to follow it, press it to read it.",
    ),
    scrolled("Lists of the search", diagram),
    el(
      "details",
      { class: "table-of" },
      el("summary", {}, "The lists as a table"),
      scrolled("Ranks in each list", table(columnsOf, names)),
    ),
    whatMoved(result, names),
  ];
}

/** Names of chunks: where the result has them, else asked of the server once a chunk. */
class Names {
  constructor(result, kbs) {
    this.kbs = kbs;
    this.known = new Map(result.hits.map((hit) => [hit.id, Promise.resolve(hit.source)]));
  }

  /** An element that has the chunk's name as soon as it is known, its id meanwhile. */
  of(id) {
    const node = el("span", { class: "chunk-name" }, label(id));
    if (!this.known.has(id)) this.known.set(id, this.ask(id));
    this.known.get(id).then(({ file, page, section }) => {
      const where = page !== null && page !== undefined ? `p. ${page}` : section;
      if (file) node.replaceChildren(label(file), ...(where ? [" ", label(where, { class: "thin" })] : []));
    });
    return node;
  }

  async ask(id) {
    const found = await this.chunk(id).catch(() => ({})); // its id is its name, then
    return sourceOf(found.metadata);
  }

  async chunk(id) {
    let failure = null;
    const first = this.kbs.filter((kb) => id.startsWith(`${kb}:`)); // as ids of several bases begin
    for (const kb of [...first, ...this.kbs.filter((kb) => !first.includes(kb))]) {
      try {
        return await api.chunk(kb, id);
      } catch (error) {
        failure = error; // it may be of the next base
      }
    }
    throw failure ?? new Error("No base is chosen.");
  }
}

const sourceOf = (metadata = {}) => ({
  file: metadata.source_file ?? metadata.source ?? metadata.file_name ?? null,
  page: metadata.page_number ?? metadata.page_label ?? null,
  section: metadata.section ?? null,
});

function column(list, result, kept, names) {
  const kind = list.kind === "channel" ? kindOf(channelKind(result, list.name)) : null;
  const told = list.wordings > 1 ? ` ${plural(list.wordings, "wording")}` : list.partial ? " those that stayed" : "";
  const head = el("h4", {}, kind && shape(kind), label(list.name), told && el("span", { class: "thin" }, told));
  const shown = list.hits.filter((hit) => hit.rank <= SHOWN || kept.has(hit.id));
  return el(
    "section",
    { class: "list" },
    head,
    el(
      "ol",
      {},
      shown.map((hit) => row(hit, list, kept, names)),
    ),
  );
}

function channelKind(result, name) {
  for (const hit of result.hits) for (const part of hit.parts) if (part.stage === name && part.kind) return part.kind;
  return { bm25: "keyword", dense: "semantic", graph: "graph", questions: "question" }[name];
}

function row(hit, list, kept, names) {
  const button = el(
    "button",
    { type: "button", class: kept.has(hit.id) ? "entry kept" : "entry", data: { id: hit.id } },
    el("span", { class: "rank" }, `${hit.rank}`),
    names.of(hit.id),
    list.wordings > 1 && change(hit),
  );
  button.addEventListener("click", () => read(hit.id, names));
  return el("li", { class: hit.rank > SHOWN ? "deeper" : null }, button);
}

/** What the further wordings did to a hit of a channel. */
const change = ({ rank, original }) =>
  original === null ? el("span", { class: "moved up" }, "new") : moved(original - rank);

/** Lines between the entries of each chunk in neighbouring columns; drawn again when the size changes. */
function connect(diagram) {
  const lines = diagram.querySelector(".lines");
  const box = diagram.getBoundingClientRect();
  const groups = [...diagram.querySelectorAll(".column")].map((group) => [...group.querySelectorAll(".entry")]);
  lines.setAttribute("width", String(diagram.scrollWidth));
  lines.setAttribute("height", String(diagram.scrollHeight));
  const paths = groups
    .slice(1)
    .flatMap((group, at) =>
      groups[at].flatMap((from) =>
        group.filter((to) => to.dataset.id === from.dataset.id).map((to) => path(from, to, box)),
      ),
    );
  lines.replaceChildren(...paths);
}

function path(from, to, box) {
  const [left, right] = [from.getBoundingClientRect(), to.getBoundingClientRect()];
  const [x1, y1] = [left.right - box.left, left.top + left.height / 2 - box.top];
  const [x2, y2] = [right.left - box.left, right.top + right.height / 2 - box.top];
  const bend = (x2 - x1) / 2;
  const d = `M${x1} ${y1}C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}`;
  const node = svg("path", { d, class: from.classList.contains("kept") ? "kept" : null });
  node.dataset.id = from.dataset.id;
  return node;
}

function follow(diagram) {
  const light = (id) => {
    for (const node of diagram.querySelectorAll("[data-id]"))
      node.classList.toggle("lit", id !== null && node.dataset.id === id);
    diagram.classList.toggle("following", id !== null);
  };
  const idOf = (event) => event.target.closest?.(".entry")?.dataset.id ?? null;
  diagram.addEventListener("mouseover", (event) => light(idOf(event)));
  diagram.addEventListener("mouseleave", () => light(null));
  diagram.addEventListener("focusin", (event) => light(idOf(event)));
  diagram.addEventListener("focusout", () => light(null));
}

function table(columnsOf, names) {
  const lists = columnsOf.flat();
  const ids = new Set(lists.flatMap((list) => list.hits.slice(0, SHOWN).map((hit) => hit.id)));
  const rank = (list, id) => list.hits.find((hit) => hit.id === id)?.rank ?? "–";
  return el(
    "table",
    { class: "parts" },
    el("caption", { class: "unseen" }, "Rank of each chunk in each list"),
    el(
      "thead",
      {},
      el(
        "tr",
        {},
        el("th", { scope: "col" }, "Chunk"),
        lists.map((list) => el("th", { scope: "col", class: "n" }, label(list.name))),
      ),
    ),
    el(
      "tbody",
      {},
      [...ids].map((id) =>
        el(
          "tr",
          {},
          el("th", { scope: "row" }, names.of(id)),
          lists.map((list) => el("td", { class: "n" }, `${rank(list, id)}`)),
        ),
      ),
    ),
  );
}

function whatMoved(result, names) {
  const all = effects(result);
  if (!all.length) return el("p", { class: "thin" }, "One wording was asked, and no stage came after the channels.");
  const line = (effect) => (effect.wordings ? expanded(effect, names) : staged(effect, names));
  return el(
    "section",
    { class: "effects" },
    el("h3", {}, "What wordings and stages moved"),
    el("ul", {}, all.map(line)),
  );
}

const furthest = (up, names) => up && [" Rose furthest: ", names.of(up[0]), " ", moved(up[1]), "."];

const expanded = ({ name, wordings, fresh, up }, names) =>
  el(
    "li",
    {},
    el("strong", {}, label(name)),
    ` was asked ${plural(wordings, "wording")}: ${fresh.length} of its first ${SHOWN} came by the further ones.`,
    furthest(up, names),
  );

const staged = ({ name, moved: places, cut, dropped, up }, names) =>
  el(
    "li",
    {},
    el("strong", {}, label(name)),
    cut
      ? ` passed over ${plural(cut, "hit")} that stood above the last it kept.`
      : places
        ? ` changed the place of ${plural(places, "hit")}.`
        : " left the order as it was.",
    !cut && furthest(up, names),
    dropped.length > SHOWN && ` The first ${SHOWN}:`,
    dropped.length > 0 &&
      el(
        "ul",
        { class: "dropped" },
        dropped
          .slice(0, SHOWN)
          .map((hit) => el("li", {}, el("span", { class: "rank" }, `${hit.rank}`), " ", opener(hit.id, names))),
      ),
  );

function opener(id, names) {
  const button = el("button", { type: "button", class: "link" }, names.of(id));
  button.addEventListener("click", () => read(id, names));
  return button;
}

/** Show the text of a chunk, which need not be among the hits. */
async function read(id, names) {
  const body = byId("chunk-body");
  body.replaceChildren(el("p", { class: "thin" }, "Loading…"));
  byId("chunk-title").replaceChildren(names.of(id));
  byId("chunk").showModal();
  try {
    const chunk = await names.chunk(id);
    body.replaceChildren(
      el("p", { class: "text", dir: "auto" }, untrusted(chunk.text)),
      el("p", { class: "thin" }, label(chunk.id), chunk.parent && [" in parent ", label(chunk.parent.id)]),
    );
  } catch (error) {
    body.replaceChildren(el("p", { class: "wrong" }, untrusted(error.message)));
  }
}

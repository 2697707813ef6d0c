// Why a hit has its score: a badge, a bar of the parts of the sum, and the parts as a table.

import { el, label, score, svg } from "./dom.js";

export const KINDS = {
  hybrid: "Hybrid",
  keyword: "Keyword",
  semantic: "Semantic",
  graph: "Graph",
  question: "Question",
  other: "Other",
};

// One shape a kind, so that none is told by colour alone.
const SHAPES = {
  hybrid: () => [ring(5.5, 8), ring(10.5, 8)],
  keyword: () => [svg("rect", { x: 3, y: 3, width: 10, height: 10, rx: 1.5, class: "full" })],
  semantic: () => [svg("circle", { cx: 8, cy: 8, r: 5.5, class: "full" })],
  graph: () => [svg("path", { d: "M2.5 13 8 3l5.5 10z", class: "full" })],
  question: () => [svg("path", { d: "M8 2l6 6-6 6-6-6z", class: "full" })],
  other: () => [svg("path", { d: "M3 8h10", class: "line" })],
};
const ring = (cx, cy) => svg("circle", { cx, cy, r: 4, class: "line" });

export const kindOf = (name) => (Object.hasOwn(KINDS, name) ? name : "other");

export function shape(name) {
  const kind = kindOf(name);
  return svg("svg", { class: `shape ${kind}`, viewBox: "0 0 16 16", "aria-hidden": "true" }, SHAPES[kind]());
}

export function badge(name) {
  const kind = kindOf(name);
  return el("span", { class: `badge ${kind}` }, shape(kind), KINDS[kind]);
}

/** A bar whose segments are the parts' shares of a sum; what adds nothing, or takes away, has no segment. */
function bar(parts) {
  const shown = parts.filter((part) => part.share > 0);
  if (!shown.length) return null;
  const node = el("span", { class: "bar", "aria-hidden": "true" });
  for (const part of shown) {
    const segment = el("span", { class: `segment ${kindOf(part.kind)}` });
    segment.style.flexGrow = String(part.share); // set by script: the policy allows no style in the markup
    node.append(segment);
  }
  return node;
}

/** The score, its bar, and its parts in a tip that hover and focus show and Escape closes. */
export function scoreWithTip(hit, id) {
  const tip = el("div", { class: "tip", role: "tooltip", id: `${id}-tip` }, sumTable(hit), stageLines(hit));
  const button = el(
    "button",
    { type: "button", class: "score", "aria-describedby": tip.id },
    el(
      "span",
      {},
      el("span", { class: "thin" }, label(scoredBy(hit)), " "),
      el("span", { class: "figure" }, score(hit.score)),
    ),
    bar(hit.parts),
  );
  const holder = el("div", { class: "score-holder" }, button, tip);
  const back = () => holder.classList.remove("dismissed");
  holder.addEventListener("mouseleave", back);
  button.addEventListener("blur", back);
  button.addEventListener("click", back);
  return holder;
}

/** What the score is of: the channel, the sum, or the last stage that gave one, which may blend it with the order. */
function scoredBy(hit) {
  if (hit.score === null) return "not scored";
  const scored = (hit.stages ?? []).filter(({ score: given }) => given !== null);
  if (hit.parts.length === 1 && hit.parts[0].score === hit.score) return hit.parts[0].stage;
  if (hit.fused === hit.score || !scored.length) return "fused";
  return (scored.findLast(({ score: given }) => given === hit.score) ?? scored.at(-1)).stage;
}

/** The parts of the fused score, a row each, nested ones below theirs, with the sum. */
export function sumTable(hit, { wordings = false, query = "" } = {}) {
  const summed = hit.parts.some((part) => part.contribution !== null && part.contribution !== undefined);
  const heads = [
    "Channel",
    "Rank",
    "Score",
    ...(summed ? ["Weight", "Adds"] : []),
    ...(wordings ? ["Words and way"] : []),
  ];
  return el(
    "table",
    { class: "parts" },
    el("caption", { class: "unseen" }, "Parts of the score"),
    el(
      "thead",
      {},
      el(
        "tr",
        {},
        heads.map((head, at) =>
          el("th", { scope: "col", class: at && at < 5 && head !== "Words and way" ? "n" : null }, head),
        ),
      ),
    ),
    el(
      "tbody",
      {},
      hit.parts.flatMap((part) => partRows(part, 0, { summed, wordings, query })),
    ),
    summed &&
      el(
        "tfoot",
        {},
        el(
          "tr",
          {},
          el("th", { scope: "row", colspan: 4 }, "Fused score"),
          el("td", { class: "n" }, score(hit.fused)),
          wordings && el("td", {}),
        ),
      ),
  );
}

function partRows(part, depth, shown) {
  const cells = [
    el("th", { scope: "row", class: depth ? "nested" : null }, part.kind && shape(part.kind), label(part.stage)),
    el("td", { class: "n" }, part.found === false || part.rank === null ? "not found" : String(part.rank)),
    el("td", { class: "n" }, score(part.score)),
  ];
  if (shown.summed)
    cells.push(el("td", { class: "n" }, weight(part)), el("td", { class: "n" }, score(part.contribution)));
  if (shown.wordings) cells.push(el("td", {}, way(part, shown.query)));
  return [el("tr", {}, cells), ...(part.parts ?? []).flatMap((below) => partRows(below, depth + 1, shown))];
}

const weight = (part) =>
  part.contribution === null || part.contribution === undefined ? "–" : `× ${score(part.weight)}`;

/** Which words matched, by which wording, and what led from it to the chunk. */
function way(part, query) {
  const lines = [];
  if (part.terms?.length)
    lines.push(
      el(
        "div",
        {},
        part.terms.map((term) => [label(term, { class: "term" }), " "]),
      ),
    );
  if (part.query && part.query !== query) lines.push(el("div", { class: "thin" }, "for “", label(part.query), "”"));
  if (part.via?.length)
    lines.push(
      el(
        "div",
        { class: "thin" },
        "via ",
        part.via.map((step, at) => [at ? " → " : "", label(step)]),
      ),
    );
  return lines.length ? lines : "–";
}

/** What later stages said: a line each, with a bar where a stage's score is a sum itself. */
export function stageLines(hit) {
  if (!hit.stages?.length) return null;
  const last = hit.score === hit.fused ? null : hit.stages.findLast((stage) => stage.score !== null);
  return el(
    "ul",
    { class: "stages" },
    hit.stages.map((stage) =>
      el(
        "li",
        {},
        el("strong", {}, label(stage.stage)),
        stage.rank !== null && ` rank ${stage.rank}`,
        stage.score !== null && `, score ${score(stage.score)}`,
        stage === last && last.score !== hit.score && `, with the order before it ${score(hit.score)}`,
        stage.probability !== null &&
          stage.probability !== undefined &&
          `, probability ${stage.probability.toFixed(3)}`,
        stage.parts?.length > 0 && signals(stage.parts),
      ),
    ),
  );
}

function signals(parts) {
  return el(
    "ul",
    {},
    parts.map((part) =>
      el("li", {}, label(part.stage), ` ${score(part.score)} ${weight(part)} adds ${score(part.contribution)}`),
    ),
  );
}

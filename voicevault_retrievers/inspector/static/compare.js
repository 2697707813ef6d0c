// Two configurations side by side: what moved between them, and what only one of them finds.

import { el, label, milliseconds, plural } from "./dom.js";
import { hitList, moved } from "./hits.js";
import { compared } from "./model.js";
import { counts, notices, nothing, summary } from "./overview.js";

export function compareView(results, searches) {
  const difference = compared(...results);
  return [
    el("h2", {}, "Side by side"),
    el(
      "dl",
      { class: "tally" },
      [
        ["In both", difference.both],
        ["Changed place", difference.moved],
        ["Only left", difference.onlyLeft],
        ["Only right", difference.onlyRight],
      ].map(([name, count]) => el("div", {}, el("dt", {}, name), el("dd", {}, `${count}`))),
    ),
    el(
      "div",
      { class: "sides" },
      results.map((result, side) => sideOf(result, searches[side], side, difference)),
    ),
  ];
}

/** What was compared, in one line for the status. */
export function compareSummary(results) {
  const { both, moved: places, onlyLeft, onlyRight } = compared(...results);
  const tally = `In both ${both}, ${places} changed place; only left ${onlyLeft}, only right ${onlyRight}.`;
  return `Left: ${summary(results[0])} Right: ${summary(results[1])} ${tally}`;
}

function sideOf(result, search, side, difference) {
  const name = side ? "Right" : "Left";
  const head = el(
    "h3",
    { id: `side-${side}` },
    `${name}: `,
    label(search.preset),
    el("span", { class: "thin" }, `, ${plural(search.k, "hit")}, ${milliseconds(result.total_ms)}`),
  );
  const note = (hit) => {
    const other = difference.other(hit, side);
    if (other === null) return el("span", { class: "note only" }, side ? "only right" : "only left");
    if (other === hit.rank) return el("span", { class: "note same" }, "same place");
    return el("span", { class: "note" }, `${side ? "left" : "right"} ${other} `, moved(other - hit.rank));
  };
  return el(
    "section",
    { class: "side", "aria-labelledby": head.id },
    head,
    search.where && el("p", { class: "thin" }, "Filter ", el("code", {}, label(JSON.stringify(search.where)))),
    notices(result),
    result.hits.length ? hitList(result, { name: side ? "right" : "left", compare: note }) : nothing(search),
    counts(result),
  );
}

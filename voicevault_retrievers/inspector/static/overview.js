// What a search was as a whole: hits by badge, wordings, timings, notes, and the context that a model reads.

import { el, label, milliseconds, plural, untrusted } from "./dom.js";
import { scrolled } from "./hits.js";
import { wordingVotes } from "./model.js";
import { KINDS, shape } from "./score.js";

/** One line that says it all, for the eye and for screen readers. */
export function summary(result) {
  if (!result.hits.length) return "Nothing found.";
  const brought = Object.entries(result.counts).filter(([, count]) => count > 0);
  const kinds = brought.map(([kind, count]) => `${count} ${(KINDS[kind] ?? KINDS.other).toLowerCase()}`);
  return `${plural(result.hits.length, "hit")} in ${milliseconds(result.total_ms)}: ${kinds.join(", ")}.`;
}

/** The panel beside the hits. */
export const overview = (result) => [counts(result), wordings(result), timings(result)];

export function counts(result) {
  const total = Math.max(1, result.hits.length);
  const rows = Object.entries(KINDS)
    .map(([kind, name]) => [kind, name, result.counts[kind] ?? 0])
    .filter(([kind, , count]) => count > 0 || kind !== "other");
  return el(
    "section",
    { class: "panel" },
    el("h3", {}, "Hits by how they were found"),
    el(
      "ul",
      { class: "counts" },
      rows.map(([kind, name, count]) => {
        const fill = el("span", { class: `fill ${kind}` });
        fill.style.width = `${(100 * count) / total}%`;
        return el(
          "li",
          { class: count ? null : "none" },
          shape(kind),
          el("span", {}, name),
          el("span", { class: "track", "aria-hidden": "true" }, fill),
          el("span", { class: "n" }, `${count}`),
        );
      }),
    ),
    el(
      "p",
      { class: "thin" },
      "Asked: ",
      label(result.channels_used.join(", ") || "no channel"),
      result.route && [". Route: ", label(result.route)],
      `. Confidence: ${result.confidence}.`,
    ),
  );
}

function wordings(result) {
  const asked = result.wordings ?? [];
  if (asked.length < 2) return null;
  const votes = wordingVotes(result);
  const total = [...votes.values()].reduce((sum, count) => sum + count, 0);
  return el(
    "section",
    { class: "panel" },
    el("h3", {}, "Wordings that were asked"),
    el(
      "ul",
      { class: "wordings" },
      asked.map((wording) => {
        const some =
          wording.channels.length < result.channels_used.length && `, asked of ${wording.channels.join(", ")}`;
        const said = `gave the best rank ${votes.get(wording.text) ?? 0} of ${total} times`;
        return el(
          "li",
          {},
          label(wording.text),
          el("span", { class: "thin" }, said, wording.weight !== 1 && `, weight ${wording.weight}`, some),
        );
      }),
    ),
  );
}

function timings(result) {
  const spans = result.timings ?? [];
  if (!spans.length) return null;
  const total = Math.max(result.total_ms, ...spans.map((span) => span.start_ms + span.ms), 1e-6);
  return el(
    "section",
    { class: "panel" },
    el("h3", {}, "Time by stage"),
    el(
      "table",
      { class: "waterfall" },
      el("caption", { class: "unseen" }, "Calls in the order of their start"),
      el(
        "thead",
        { class: "unseen" },
        el(
          "tr",
          {},
          ["Call", "When", "Took"].map((head) => el("th", { scope: "col" }, head)),
        ),
      ),
      el(
        "tbody",
        {},
        [...new Set(spans.map(({ name }) => name))].map((name) =>
          timing(
            spans.filter((span) => span.name === name),
            total,
          ),
        ),
      ),
      el(
        "tfoot",
        {},
        el(
          "tr",
          {},
          el("th", { scope: "row", colspan: 2 }, "Whole search"),
          el("td", { class: "n" }, milliseconds(result.total_ms)),
        ),
      ),
    ),
  );
}

/** A row for all calls of one name, each a stretch of its lane. */
function timing(spans, total) {
  const lane = el("span", { class: "lane", "aria-hidden": "true" });
  for (const span of spans) {
    const stretch = el("span", { class: span.error ? "stretch failed" : "stretch" });
    stretch.style.insetInlineStart = `${(100 * span.start_ms) / total}%`;
    stretch.style.width = `${(100 * span.ms) / total}%`;
    lane.append(stretch);
  }
  const failed = spans.some((span) => span.error);
  const took = spans.reduce((sum, span) => sum + span.ms, 0);
  return el(
    "tr",
    {},
    el(
      "th",
      { scope: "row" },
      label(spans[0].name),
      spans.length > 1 && el("span", { class: "thin" }, ` × ${spans.length}`),
    ),
    el("td", { class: "when" }, el("span", { class: "unseen" }, `from ${milliseconds(spans[0].start_ms)}`), lane),
    el("td", { class: "n" }, failed && el("span", { class: "wrong" }, "failed "), milliseconds(took)),
  );
}

/** What is to be known before the hits are read: skipped parts, notes, low confidence, nothing found. */
export function notices(result) {
  const errors = result.errors ?? [];
  const told = [];
  const list = (some) =>
    el(
      "ul",
      {},
      some.map((error) =>
        el(
          "li",
          {},
          el("strong", {}, label(error.stage)),
          ": ",
          untrusted(error.message),
          el("span", { class: "thin" }, " ", label(error.kind)),
        ),
      ),
    );
  const [skipped, notes] = [errors.filter((error) => error.degrades), errors.filter((error) => !error.degrades)];
  if (result.degraded)
    told.push(
      el(
        "div",
        { class: "notice bad" },
        el("p", {}, el("strong", {}, "Degraded: "), "a part of the search was skipped."),
        list(skipped),
      ),
    );
  if (notes.length)
    told.push(
      el("div", { class: "notice" }, el("p", {}, el("strong", {}, notes.length > 1 ? "Notes" : "Note")), list(notes)),
    );
  if (result.hits.length && result.confidence === "none")
    told.push(
      el(
        "div",
        { class: "notice" },
        el("p", {}, el("strong", {}, "Low confidence: "), "the reranker finds none of these relevant enough."),
      ),
    );
  return told;
}

export function nothing(search) {
  return el(
    "div",
    { class: "empty" },
    el("h3", {}, "Nothing found"),
    el("p", {}, "No channel has a chunk that matches."),
    el(
      "ul",
      {},
      search.where && el("li", {}, "A filter is set: try without it."),
      el("li", {}, "Try other words, or fewer."),
      el("li", {}, "Are these the right bases?"),
    ),
  );
}

/** The context as a model gets it. */
export function contextView(result) {
  const { text, tokens, over_budget: over } = result.context;
  return [
    el(
      "p",
      { class: "thin" },
      `What a model reads of this search: ${plural(tokens, "token")}.`,
      over.length > 0 && ` Shortened or left out for the budget: ${over.length}.`,
    ),
    over.length > 0 &&
      el(
        "ul",
        { class: "thin" },
        over.map((id) => el("li", {}, label(id))),
      ),
    scrolled("Context", el("pre", { class: "context", dir: "auto" }, untrusted(text))),
  ].filter(Boolean);
}

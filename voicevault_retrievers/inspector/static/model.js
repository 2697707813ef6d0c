// What the page works out from a result: pure functions over plain data, nothing is drawn here.

const SNIPPET = 300;
const MOST = 50; // hits that the server tells of each list

/** The part of a text that says most of what was asked: pieces, with an ellipsis where something is left out. */
export function snippet(pieces, length = SNIPPET) {
  const whole = pieces.map(([text]) => text).join("");
  const total = whole.length;
  if (total <= length) return pieces;
  const lead = Math.floor(length / 4);
  const first = telling(pieces, length - lead);
  let start = Math.max(0, Math.min(first - lead, total - length));
  const space = whole.indexOf(" ", start);
  if (start > 0 && space > 0 && space < first) start = space + 1;
  let stop = Math.min(total, start + length);
  const last = whole.lastIndexOf(" ", stop);
  if (stop < total && last > stop - lead) stop = last; // else it is written without spaces
  [start, stop] = [start, stop].map((at) => (LATTER_HALF.test(whole.charAt(at)) ? at - 1 : at));
  const cut = [];
  let at = 0;
  for (const [text, matched] of pieces) {
    const kept = text.slice(Math.max(0, start - at), Math.max(0, stop - at));
    if (kept) cut.push([kept, matched]);
    at += text.length;
  }
  return [...(start > 0 ? [["… ", false]] : []), ...cut, ...(stop < total ? [[" …", false]] : [])];
}

const LATTER_HALF = /[\udc00-\udfff]/; // of a character that takes two places

/** Where the stretch begins whose different matched words are the longest together: a long one says more. */
function telling(pieces, length) {
  const found = [];
  let at = 0;
  for (const [text, matched] of pieces) {
    if (matched) found.push({ at, end: at + text.length, word: text.toLowerCase() });
    at += text.length;
  }
  const inside = new Map(); // the words of the stretch, and how often each is in it
  let [best, most, size, next] = [0, 0, 0, 0];
  for (const { at: start, word } of found) {
    for (; next < found.length && (found[next].end <= start + length || found[next].at === start); next++) {
      const times = inside.get(found[next].word) ?? 0;
      if (!times) size += found[next].word.length;
      inside.set(found[next].word, times + 1);
    }
    if (size > most) [best, most] = [start, size];
    inside.set(word, inside.get(word) - 1);
    if (!inside.get(word)) size -= word.length;
  }
  return best;
}

const ids = (hits) => hits.map((hit) => hit.id);
const same = (left, right) => left.length === right.length && left.every((id, at) => id === right[at]);

/**
 * The lists of a search from left to right: all channels' in the first column, then fusion and stages, then the hits.
 * Each hit of a list has its rank; of a channel's also `original`, its rank for the question as it was asked.
 */
export function columns(result) {
  const last = new Map();
  for (const list of result.lists ?? []) {
    const key = JSON.stringify([list.kind, list.name, list.kind === "channel" ? list.query : ""]);
    last.delete(key); // a list that was asked for again, deeper, stands where it was asked for last
    last.set(key, list);
  }
  const lists = [...last.values()];
  const channels = merged(
    result,
    lists.filter((list) => list.kind === "channel"),
  );
  const later = lists.filter(({ kind }) => kind === "fusion" || kind === "stage");
  const told = later.filter((list) => list.hits.length);
  const next = (at) => told[at + 1]?.hits ?? result.hits;
  const filled = told.map((list, at) => ({ ...list, partial: partial(result, list, next(at)) }));
  const end = filled.at(-1);
  if (!end || end.partial || !same(ids(end.hits).slice(0, result.hits.length), ids(result.hits))) {
    filled.push({ name: "hits", kind: "final", hits: result.hits });
  }
  return [channels, ...filled.map((list) => [list])].filter((group) => group.length);
}

/** A list a channel: of several wordings each chunk keeps its best score, as the channel itself does. */
function merged(result, lists) {
  const weights = new Map((result.wordings ?? []).map(({ text, weight }) => [text, weight]));
  return [...new Set(lists.map(({ name }) => name))]
    .map((name) => {
      const own = lists.filter((list) => list.name === name && list.hits.length);
      const asked = own.find((list) => list.query === result.query);
      const original = new Map(asked?.hits.map((hit) => [hit.id, hit.rank]));
      const best = new Map();
      for (const { query, hits } of own) {
        for (const hit of hits) {
          const score = hit.score === null ? -hit.rank : weighted(hit.score, weights.get(query) ?? 1);
          if (!(best.get(hit.id) >= score)) best.set(hit.id, score);
        }
      }
      const order = [...best]
        .sort(([id, score], [other, than]) => than - score || (id < other ? -1 : 1))
        .slice(0, MOST);
      const ranks = new Map(order.map(([id], at) => [id, at + 1]));
      for (const { id, parts } of result.hits) {
        const rank = leaves(parts).find((part) => part.stage === name)?.rank;
        if (rank > MOST) ranks.set(id, rank); // deeper than the list that the server told
      }
      const hits = [...ranks].map(([id, rank]) => ({
        id,
        rank,
        original: original.get(id) ?? (rank > MOST ? rank : null),
      }));
      return { name, kind: "channel", hits: hits.sort((left, right) => left.rank - right.rank), wordings: own.length };
    })
    .filter((list) => list.hits.length);
}

const leaves = (parts) => parts.flatMap((part) => (part.parts?.length ? leaves(part.parts) : [part]));

const weighted = (score, weight) => score - (1 - weight) * Math.abs(score);

/** Whether a list has only those that the `next` one kept: so is that of a stage that gives scores, and no order. */
function partial(result, { kind, name, hits, before }, next) {
  const scored = result.hits.some(({ stages }) => stages.some(({ stage }) => stage === name));
  const kept = new Set(ids(next));
  return (
    kind === "stage" &&
    scored &&
    hits.length < Math.min(before?.length ?? 0, MOST) &&
    hits.every(({ id }) => kept.has(id))
  );
}

/** Where a hit stood in each later list: [{name, rank, change}], change from the list before (up is positive). */
export function trail(result, id) {
  const steps = [];
  let before = null;
  for (const [list] of columns(result).slice(1)) {
    const rank = list.hits.find((hit) => hit.id === id)?.rank;
    if (!rank) continue;
    if (list.kind !== "final") steps.push({ name: list.name, rank, change: before && before - rank });
    before = rank;
  }
  return steps;
}

/** What each channel's further wordings, and each stage, did to the order: who rose, and who was passed over. */
export function effects(result) {
  const [channels, ...later] = columns(result);
  const expanded = (channels ?? []).filter((list) => list.wordings > 1).map(expansion);
  return [
    ...expanded,
    ...later.flatMap(([list], at) => (list.kind === "stage" ? [staged(list, (later[at - 1] ?? channels)[0])] : [])),
  ];
}

const TOP = 10;

function expansion({ name, hits, wordings }) {
  const top = hits.slice(0, TOP);
  const fresh = top.filter((hit) => hit.original === null || hit.original > TOP);
  return {
    name,
    wordings,
    fresh: ids(fresh),
    up: highest(top.map((hit) => [hit.id, hit.original ? hit.original - hit.rank : 0])),
  };
}

function staged(list, before) {
  const rankBefore = new Map(before.hits.map((hit) => [hit.id, hit.rank]));
  const kept = new Set(ids(list.hits));
  const rises = list.hits.map(({ id, rank }) => [id, (rankBefore.get(id) ?? rank) - rank]);
  const deepest = Math.max(0, ...list.hits.map(({ id }) => rankBefore.get(id) ?? 0));
  const known = !before.partial && !list.partial && list.hits.length < MOST; // else it may stand below what was told
  const dropped = known ? before.hits.filter(({ id, rank }) => rank < deepest && !kept.has(id)) : [];
  // Of ranks that only the kept have, a gap is a hit that was passed over.
  const gaps = before.partial ? deepest - before.hits.filter(({ rank }) => rank <= deepest).length : dropped.length;
  const cut = known || before.partial ? gaps : 0;
  return { name: list.name, moved: rises.filter(([, rise]) => rise).length, cut, dropped, up: highest(rises) };
}

const highest = (rises) => rises.filter(([, rise]) => rise > 0).sort((left, right) => right[1] - left[1])[0] ?? null;

/** How two results differ: for each id its rank on either side. */
export function compared(left, right) {
  const sides = [left, right].map((result) => new Map(result.hits.map((hit) => [`${hit.kb}\n${hit.id}`, hit.rank])));
  const both = [...sides[0].keys()].filter((key) => sides[1].has(key));
  return {
    other: (hit, side) => sides[1 - side].get(`${hit.kb}\n${hit.id}`) ?? null,
    both: both.length,
    moved: both.filter((key) => sides[0].get(key) !== sides[1].get(key)).length,
    onlyLeft: sides[0].size - both.length,
    onlyRight: sides[1].size - both.length,
  };
}

/** How often each wording was the one that found a hit best, over all channels' votes. */
export function wordingVotes(result) {
  const votes = new Map();
  for (const part of result.hits.flatMap((hit) => leaves(hit.parts))) {
    if (part.found && part.query) votes.set(part.query, (votes.get(part.query) ?? 0) + 1);
  }
  return votes;
}

/** The wider text cut where the chunk's own text stands in it: [[text, own], ...]. */
export function within(text, wide) {
  const at = wide.indexOf(text.trim());
  if (at < 0 || !text.trim()) return [[wide, false]];
  const end = at + text.trim().length;
  return [
    [wide.slice(0, at), false],
    [wide.slice(at, end), true],
    [wide.slice(end), false],
  ].filter(([piece]) => piece);
}

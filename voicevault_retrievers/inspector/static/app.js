// The page: a search from the form or the address, sent, and drawn.

import * as address from "./address.js";
import * as api from "./api.js";
import { compareSummary, compareView } from "./compare.js";
import { byId, el, untrusted } from "./dom.js";
import * as form from "./form.js";
import { hitList } from "./hits.js";
import { exportSheet, say } from "./judgments.js";
import * as keys from "./keys.js";
import { listsView } from "./lists.js";
import { contextView, notices, nothing, overview, summary } from "./overview.js";

const PATIENCE = 1500; // milliseconds after which the page says why a first search takes long
const VIEWS = { hits: "Hits", lists: "Lists", context: "Context" };

let offered = false; // whether the form has the bases to choose from
let early = false; // whether somebody was quicker than that
let running = null;
let shown = null; // the search that is on the page

async function start() {
  keys.listen();
  byId("compare").addEventListener("click", form.toggleCompare);
  document.querySelector(".skip").addEventListener("click", (event) => {
    event.preventDefault(); // the address behind # is the search
    byId("results").focus();
  });
  byId("search").addEventListener("submit", (event) => {
    event.preventDefault();
    submit();
  });
  try {
    const given = await api.bases();
    form.offer(given);
    byId("judged-sheet").append(...exportSheet(given.bases));
  } catch (error) {
    busy(false);
    return failed(error);
  }
  offered = true;
  window.addEventListener("popstate", follow);
  const typed = form.taken();
  follow();
  if (!typed.q || address.read().q) return;
  form.put({ ...typed, kb: [] });
  if (early) submit();
}

function submit() {
  if (!offered) {
    early = true;
    return busy(true);
  }
  const search = { ...form.taken(), view: shown?.view ?? "hits" };
  if (!search.q) return byId("q").focus();
  if (attempt(search)) address.write(search);
}

/** Show what the address says, at the start and after going back. */
function follow() {
  const search = address.read();
  form.put(search);
  if (search.q) return void attempt({ ...form.taken(), view: search.view });
  running?.abort();
  shown = null;
  say("");
  byId("results").replaceChildren(welcome());
  byId("q").focus();
}

/** Whether the search could be asked: a form that cannot be understood says why instead. */
function attempt(search) {
  try {
    run(search, form.requests(search));
    return true;
  } catch (error) {
    form.complain(error);
    return false;
  }
}

async function run(search, requests) {
  running?.abort();
  const own = (running = new AbortController());
  busy(true);
  const late = setTimeout(() => say("Still searching: the first search of a preset loads its models."), PATIENCE);
  try {
    const results = await Promise.all(requests.map((request) => api.search(request, own.signal)));
    shown = search;
    draw(search, requests, results);
  } catch (error) {
    if (error.name !== "AbortError") failed(error);
  } finally {
    clearTimeout(late);
    if (running === own) busy(false);
  }
}

function busy(on) {
  byId("results").setAttribute("aria-busy", String(on));
  byId("go").textContent = on ? "Searching…" : "Search";
  if (on) say("Searching…");
}

function failed(error) {
  say("");
  byId("results").replaceChildren(
    el(
      "div",
      { class: "notice bad", role: "alert" },
      el("p", {}, el("strong", {}, "The search failed")),
      el("p", {}, untrusted(error.message)),
    ),
  );
}

function draw(search, requests, results) {
  document.title = `${search.q} · voicevault inspect`;
  say(results.length > 1 ? compareSummary(results) : summary(results[0]));
  byId("results").replaceChildren(
    ...(results.length > 1 ? compareView(results, requests) : single(results[0], requests[0], search)),
  );
}

function single(result, request, search) {
  const hits = result.hits.length ? hitList(result) : nothing(request);
  const drawn = { hits: () => [hits], lists: () => listsView(result, request), context: () => contextView(result) };
  return [
    el("h2", { class: "unseen" }, "Results"),
    ...notices(result),
    el(
      "div",
      { class: "split" },
      el("div", { class: "main" }, tabs(drawn, search)),
      el("aside", { "aria-label": "The search as a whole" }, overview(result)),
    ),
  ];
}

/** Views of one result as tabs; each is drawn when it is first opened. */
function tabs(drawn, search) {
  const views = Object.keys(VIEWS).map((name) => ({
    name,
    tab: el("button", { type: "button", role: "tab", id: `tab-${name}`, "aria-controls": `view-${name}` }, VIEWS[name]),
    panel: el("div", { role: "tabpanel", id: `view-${name}`, "aria-labelledby": `tab-${name}` }),
  }));
  const open = (chosen) => {
    for (const { name, tab, panel } of views) {
      tab.setAttribute("aria-selected", String(name === chosen));
      tab.tabIndex = name === chosen ? 0 : -1;
      panel.hidden = name !== chosen;
      if (name === chosen && !panel.firstChild) panel.append(...drawn[name]());
    }
    search.view = chosen;
  };
  const press = (name) => {
    open(name);
    address.write(search, { replaces: true });
  };
  const turn = (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const at = views.findIndex(({ name }) => name === search.view);
    const { name, tab } = views[(at + step + views.length) % views.length];
    press(name);
    tab.focus();
  };
  for (const { name, tab } of views) tab.addEventListener("click", () => press(name));
  open(Object.hasOwn(VIEWS, search.view ?? "") ? search.view : "hits");
  const list = el(
    "div",
    { role: "tablist", "aria-label": "Views of the result", on: { keydown: turn } },
    views.map(({ tab }) => tab),
  );
  return [list, ...views.map(({ panel }) => panel)];
}

const welcome = () =>
  el(
    "div",
    { class: "empty" },
    el("h2", {}, "See why each hit is there"),
    el(
      "p",
      {},
      "Ask a question above. Each hit shows which channels found it, what each added to its score, ",
      "and what the stages after them did with it.",
    ),
    el("p", { class: "thin" }, "Press ", el("kbd", {}, "?"), " for the keys."),
  );

start();

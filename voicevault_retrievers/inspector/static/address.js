// A search as the part of the address behind #, so that it can be shared and never reaches a server's log.

/** The search in the address; what is missing or not of its form is left out. */
export function read() {
  const given = new URLSearchParams(location.hash.slice(1));
  const search = { ...config(given, ""), q: given.get("q") ?? "", kb: given.getAll("kb"), view: given.get("view") };
  return { ...search, other: given.has("compare") ? config(given, "2") : null };
}

function config(given, mark) {
  const k = Number.parseInt(given.get(`k${mark}`), 10);
  return { preset: given.get(`preset${mark}`), k: k > 0 ? k : null, where: given.get(`where${mark}`) ?? "" };
}

/** Write a search: a new step of the history, unless it `replaces` the last. */
export function write(search, { replaces = false } = {}) {
  const params = new URLSearchParams({ q: search.q });
  search.kb.forEach((kb) => params.append("kb", kb));
  put(params, search, "");
  if (search.view && search.view !== "hits") params.set("view", search.view);
  if (search.other) {
    params.set("compare", "1");
    put(params, search.other, "2");
  }
  const address = `#${params}`;
  if (address === location.hash) return;
  history[replaces ? "replaceState" : "pushState"](null, "", address);
}

function put(params, { preset, k, where }, mark) {
  if (preset) params.set(`preset${mark}`, preset);
  if (k) params.set(`k${mark}`, String(k));
  if (where) params.set(`where${mark}`, where);
}

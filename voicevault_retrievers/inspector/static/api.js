// The server's answers, or an Error that says in its message what the server said. Paths are relative: the page may be
// a part of a larger site.

async function asked(path, options = {}) {
  let response;
  try {
    response = await fetch(path, { cache: "no-store", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The inspector does not answer. Is `voicevault inspect` still running?");
  }
  if (response.ok) return response;
  const said = await response.json().catch(() => ({}));
  throw new Error(said.error ?? `The inspector answered ${response.status}.`);
}

const json = async (path, options) => (await asked(path, options)).json();

const sent = (method, data, signal) => ({
  method,
  signal,
  headers: { "content-type": "application/json" },
  body: JSON.stringify(data),
});

const at = (path, params) => `${path}?${new URLSearchParams(params)}`;

export const bases = () => json("api/bases");
export const search = (asking, signal) => json("api/search", sent("POST", asking, signal));
export const chunk = (kb, id) => json(at("api/chunk", { kb, id }));
export const page = async (kb, id) => (await asked(at("api/page", { kb, id }))).blob();
export const judge = (query, kb, id, grade) => json("api/judgments", sent("PUT", { query, kb, id, grade }));
export const judged = async (kb) => (await json(at("api/judgments", { kb }))).judgments.length;
export const exportPath = (kb, part) => at("api/judgments/export", { kb, part });

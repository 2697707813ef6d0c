// The form: what it holds as a search, and a search put into it.

import { byId, el, label } from "./dom.js";

let known = { bases: [], presets: [], kb: [], preset: "", k: 10 };

/** Fill the form with the bases and presets that there are. */
export function offer(given) {
  known = given;
  const boxes = given.bases.map((base) =>
    el(
      "label",
      { class: "check" },
      el("input", {
        type: "checkbox",
        name: "kb",
        value: base.name,
        checked: given.kb.includes(base.name) && !base.error,
        disabled: Boolean(base.error),
      }),
      label(base.name),
      el("span", { class: "thin" }, base.error ? [" ", label(base.error)] : ` ${base.chunks}`),
    ),
  );
  byId("bases").append(
    ...(boxes.length
      ? boxes
      : [el("p", { class: "thin" }, "No base yet. Make one: voicevault index FOLDER --kb NAME")]),
  );
  for (const mark of ["", "2"]) {
    byId(`preset${mark}`).append(...given.presets.map((name) => el("option", { value: name }, name)));
  }
}

/** Put a search into the form; what it does not say is as the server has it. */
export function put(search) {
  byId("q").value = search.q;
  const chosen = search.kb.length ? search.kb : known.kb;
  for (const box of document.querySelectorAll("[name=kb]")) box.checked = chosen.includes(box.value) && !box.disabled;
  config("", search);
  config("2", search.other ?? {});
  compareWith(search.other !== null);
}

function config(mark, { preset, k, where }) {
  byId(`preset${mark}`).value = known.presets.includes(preset) ? preset : known.preset;
  byId(`k${mark}`).value = k ?? known.k;
  byId(`where${mark}`).value = where ?? "";
}

const comparing = () => byId("compare").getAttribute("aria-pressed") === "true";

function compareWith(on) {
  byId("compare").setAttribute("aria-pressed", String(on));
  byId("second").hidden = !on;
}

/** Compare, beginning with twice the same, or compare no more. */
export function toggleCompare() {
  if (!comparing()) config("2", one(""));
  compareWith(!comparing());
}

const one = (mark) => ({
  preset: byId(`preset${mark}`).value,
  k: Number(byId(`k${mark}`).value),
  where: byId(`where${mark}`).value.trim(),
});

/** The search that the form holds, as the address has it. */
export function taken() {
  const kb = [...document.querySelectorAll("[name=kb]:checked")].map((box) => box.value);
  return { ...one(""), q: byId("q").value.trim(), kb, other: comparing() ? one("2") : null };
}

/** What the server is asked: one request for each configuration. Raises where the form cannot be understood. */
export function requests(search) {
  complain(null);
  if (!search.kb.length) throw new Error("Choose at least one base to search.");
  return [search, search.other].filter(Boolean).map(({ preset, k, where }, at) => ({
    query: search.q,
    kb: search.kb,
    preset,
    k: hits(k, at),
    where: filter(where, at),
  }));
}

function hits(k, at) {
  if (Number.isInteger(k) && k >= 1) return k;
  throw fault(`k${at ? 2 : ""}`, "Hits is a whole number from 1.");
}

function filter(text, at) {
  if (!text) return null;
  let value;
  try {
    value = JSON.parse(text);
  } catch (error) {
    throw fault(`where${at ? 2 : ""}`, `The filter is not JSON: ${error.message}`);
  }
  if (typeof value === "object" && value !== null && !Array.isArray(value)) return value;
  throw fault(`where${at ? 2 : ""}`, 'The filter is a JSON object, such as {"source_file": "a.pdf"}.');
}

const fault = (field, message) => Object.assign(new Error(message), { field });

/** Show what is wrong with the form, at the field that it is about; null takes it away. */
export function complain(error) {
  for (const node of document.querySelectorAll("#search [aria-invalid]")) {
    node.removeAttribute("aria-invalid");
    node.removeAttribute("aria-describedby");
  }
  const place = byId("form-error");
  place.hidden = !error;
  place.textContent = error?.message ?? "";
  const field = error?.field && byId(error.field);
  if (!field) return;
  field.setAttribute("aria-invalid", "true");
  field.setAttribute("aria-describedby", place.id);
  field.focus();
}

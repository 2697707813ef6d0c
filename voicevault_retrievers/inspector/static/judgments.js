// Marks: which hits are right or wrong, kept by the server, and their export for tuning.

import * as api from "./api.js";
import { byId, el, label, plural, untrusted } from "./dom.js";

const GRADES = [
  ["Right", 1, "✓"],
  ["Wrong", 0, "✕"],
];

/** The two buttons of a hit; pressing one that is pressed takes the mark back. */
export function marks(query, hit) {
  const buttons = GRADES.map(([name, grade, sign]) =>
    el(
      "button",
      {
        type: "button",
        class: "judge",
        "aria-pressed": String(hit.judgment === grade),
        data: { grade: String(grade) },
      },
      el("span", { "aria-hidden": "true" }, sign),
      name,
    ),
  );
  for (const button of buttons) button.addEventListener("click", () => mark(query, hit, button));
  return el("div", { class: "judges", role: "group", "aria-label": `Is hit ${hit.rank} right?` }, buttons);
}

async function mark(query, hit, button) {
  const grade = button.getAttribute("aria-pressed") === "true" ? null : Number(button.dataset.grade);
  try {
    const { count } = await api.judge(query, hit.kb, hit.id, grade);
    hit.judgment = grade;
    show(hit, grade);
    counted(count);
    say(
      grade === null
        ? `The mark of hit ${hit.rank} is taken back.`
        : `Hit ${hit.rank} is marked ${grade ? "right" : "wrong"}.`,
    );
  } catch (error) {
    say(`The mark was not kept: ${error.message}`);
  }
}

/** The same chunk may stand on the page twice, where two configurations found it. */
function show(hit, grade) {
  for (const node of document.querySelectorAll(".hit")) {
    if (node.dataset.id !== hit.id || node.dataset.kb !== hit.kb) continue;
    for (const button of node.querySelectorAll(".judge")) {
      button.setAttribute("aria-pressed", String(grade !== null && Number(button.dataset.grade) === grade));
    }
  }
}

export function say(text) {
  byId("status").replaceChildren(...untrusted(text));
}

/** Write how many judgements there are. */
function counted(count) {
  byId("judged").querySelector("summary").textContent = count ? `Judgements (${count})` : "Judgements";
}

/** The sheet with the files of each base, and how many marks they hold; counted whenever it is opened. */
export function exportSheet(bases) {
  const numbers = new Map(bases.map(({ name }) => [name, el("span", { class: "thin" })]));
  byId("judged").addEventListener("toggle", (event) => {
    if (event.target.open) numbers.forEach(count);
  });
  return [
    el(
      "p",
      {},
      "Mark hits right or wrong, then take the marks along, as the questions and qrels that ",
      el("code", {}, "voicevault tune"),
      " and ",
      el("code", {}, "eval"),
      " read.",
    ),
    el(
      "ul",
      { class: "exports" },
      bases.map(({ name }) =>
        el(
          "li",
          {},
          label(name),
          numbers.get(name),
          link(name, "queries", "queries.jsonl"),
          link(name, "qrels", "qrels.tsv"),
        ),
      ),
    ),
  ];
}

async function count(node, kb) {
  node.textContent = await api.judged(kb).then(
    (number) => plural(number, "mark"),
    () => "",
  );
}

const link = (kb, part, name) =>
  el("a", { href: api.exportPath(kb, part), download: true }, name, el("span", { class: "unseen" }, ` of ${kb}`));

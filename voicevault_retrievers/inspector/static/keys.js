// Single keys; they can be switched off, for those whose tools type them.

import { byId } from "./dom.js";
import { close } from "./hits.js";

const KEPT = "voicevault-keys";
const MOVES = { j: 1, k: -1, ArrowDown: 1, ArrowUp: -1 };
const GRADES = { y: "1", n: "0" };

export function listen() {
  const box = byId("keys-on");
  box.checked = kept() !== "off";
  box.addEventListener("change", () => keep(box.checked ? "on" : "off"));
  byId("open-keys").addEventListener("click", () => byId("keys").showModal());
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    if (event.key === "Escape" ? escape(event) : typed(event, box.checked)) event.preventDefault();
  });
}

function kept() {
  try {
    return localStorage.getItem(KEPT);
  } catch {
    return null;
  }
}

function keep(value) {
  try {
    localStorage.setItem(KEPT, value);
  } catch {
    // a browser that keeps nothing: until the page is left
  }
}

function typed(event, on) {
  const inField = event.target.closest?.("input, select, textarea, dialog, [role=tablist]");
  if (inField || !on) return false;
  const hit = event.target.closest?.(".hit") ?? null;
  if (event.key === "/") return focused(byId("q"));
  if (event.key === "?") return (byId("keys").showModal(), true);
  if (event.key in MOVES) return event.key.length > 1 && !hit ? false : move(hit, MOVES[event.key]);
  if (event.key in GRADES && hit) return (hit.querySelector(`.judge[data-grade="${GRADES[event.key]}"]`).click(), true);
  return false;
}

function focused(node) {
  node?.focus();
  node?.select?.();
  return Boolean(node);
}

function move(hit, step) {
  const all = [...document.querySelectorAll(".hit")].filter((node) => node.offsetParent !== null);
  const at = hit ? all.indexOf(hit) + step : 0;
  const next = all[Math.max(0, Math.min(all.length - 1, at))];
  next?.querySelector(".title").focus();
  next?.scrollIntoView({ block: "nearest" });
  return Boolean(next);
}

/** Close the nearest thing that is open: a tip, a menu, a hit. Dialogs close by themselves. */
function escape(event) {
  if (document.querySelector("dialog[open]")) return false;
  const tip = event.target.closest?.(".score-holder") ?? document.querySelector(".score-holder:hover");
  if (tip && !tip.classList.contains("dismissed")) return (tip.classList.add("dismissed"), true);
  const menu = document.querySelector("details.menu[open]");
  if (menu) {
    menu.open = false;
    return focused(menu.querySelector("summary"));
  }
  return close(event.target.closest?.(".hit"));
}

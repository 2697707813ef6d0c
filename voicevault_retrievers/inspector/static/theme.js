// Loaded before anything is drawn, so that a theme that was chosen does not flash in late.
"use strict";

(() => {
  const KEY = "voicevault-theme";
  const root = document.documentElement;
  const kept = () => {
    try {
      return localStorage.getItem(KEY);
    } catch {
      return null; // a browser that keeps nothing: the system's theme
    }
  };
  const set = (theme) => {
    root.dataset.theme = ["light", "dark"].includes(theme) ? theme : "auto";
    for (const button of document.querySelectorAll("[data-set-theme]")) {
      button.setAttribute("aria-pressed", String(button.dataset.setTheme === root.dataset.theme));
    }
  };
  set(kept());
  document.addEventListener("DOMContentLoaded", () => set(kept()));
  document.addEventListener("click", (event) => {
    const button = event.target.closest?.("[data-set-theme]");
    if (!button) return;
    try {
      localStorage.setItem(KEY, button.dataset.setTheme);
    } catch {
      // it holds until the page is left
    }
    set(button.dataset.setTheme);
  });
})();

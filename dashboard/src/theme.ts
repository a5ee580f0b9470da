// Light or dark: as the system says, unless the user says otherwise.

import { useEffect, useSyncExternalStore } from "react";

const KEY = "coddl.theme";
const system = matchMedia("(prefers-color-scheme: dark)");
const listeners = new Set<() => void>();
let chosen = localStorage.getItem(KEY);

const read = () => (chosen === "dark" || chosen === "light" ? chosen : system.matches ? "dark" : "light");

function subscribe(onChange: () => void): () => void {
  listeners.add(onChange);
  system.addEventListener("change", onChange);
  return () => {
    listeners.delete(onChange);
    system.removeEventListener("change", onChange);
  };
}

export function useTheme(): { theme: "light" | "dark"; toggle: () => void } {
  const theme = useSyncExternalStore(subscribe, read);
  useEffect(() => {
    document.documentElement.dataset["theme"] = theme;
  }, [theme]);
  const toggle = () => {
    chosen = theme === "dark" ? "light" : "dark";
    localStorage.setItem(KEY, chosen);
    for (const listener of listeners) listener();
  };
  return { theme, toggle };
}

/** The colours of charts, which are drawn on a canvas and know no style sheet. */
export function inkOf(theme: "light" | "dark") {
  return theme === "dark"
    ? { text: "#9aa5b5", grid: "#252d3a", surface: "#161b24", strong: "#e6ebf2", line: "#58a6e8" }
    : { text: "#5b6675", grid: "#e8ebf0", surface: "#ffffff", strong: "#1b2430", line: "#0b6bb5" };
}

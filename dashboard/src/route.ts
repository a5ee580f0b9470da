// Where in the dashboard the user is: the part of the address after #, which no server sees.

import { useSyncExternalStore } from "react";

export type Route =
  | { page: "pool" }
  | { page: "job"; job: string }
  | { page: "nodes" }
  | { page: "decisions"; number?: number }
  | { page: "whatif" }
  | { page: "unknown"; hash: string };

export function routeOf(hash: string): Route {
  const [page, rest] = hash.replace(/^#\/?/, "").split("/");
  if (page === "jobs" && rest) return { page: "job", job: decoded(rest) };
  if (page === "nodes" || page === "whatif") return { page };
  if (page === "decisions") {
    if (rest === undefined || rest === "") return { page };
    if (/^\d+$/.test(rest)) return { page, number: Number(rest) };
  }
  return page === "" || page === "jobs" ? { page: "pool" } : { page: "unknown", hash };
}

function decoded(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

export const jobLink = (job: number) => `#/jobs/${job}`;

const subscribe = (onChange: () => void) => {
  addEventListener("hashchange", onChange);
  return () => removeEventListener("hashchange", onChange);
};

export function useHash(): string {
  return useSyncExternalStore(subscribe, () => location.hash);
}
